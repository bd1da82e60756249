"""What a report has of a study under dual heterogeneity: Paper B's tables and figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from fedhet_app.analysis.page import Block
from fedhet_app.analysis.plots import bridge, mixture, routed, shifts
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.bridge import bridge_table
from fedhet_app.analysis.tables.components import components_table
from fedhet_app.analysis.tables.durations import duration_table
from fedhet_app.analysis.tables.intensity import intensity_tables
from fedhet_app.analysis.tables.mixture import routing_table
from fedhet_app.analysis.tables.order import order_table

FIGURES: Sequence[tuple[str, Callable[[Section], Figure | None], str]] = (
    (
        "figure-2",
        bridge.bridge_errors,
        "Figure 2. Impact of the momentum: squared gradient norm of the profiled objective and "
        "bridge errors, a line for each seed, over the rounds in which the system (6) is feasible.",
    ),
    (
        "figure-3",
        mixture.impact_of_components,
        "Figure 3. Impact of the number of components C, with one encoder for all (1x) and one for "
        "each (Cx); one component is FedDRM; a line is of the seeds that all its points have, and "
        "named after what differs from the first; bars are one standard deviation.",
    ),
    (
        "figure-4",
        routed.accuracies,
        "Figure 4. Average and system accuracy, and routing accuracy of the methods that route; "
        "error bars are one standard deviation over seeds.",
    ),
    (
        "diagnostics",
        mixture.diagnostics,
        "What the E-steps find on the training images, means over clients and seeds: whether the "
        "component with the largest responsibility w is the true one and the one that P(c|x) "
        "chooses, and how often the head is right that each of them chooses.",
    ),
    (
        "routing-confusion",
        mixture.confusion,
        "Routing after the last round: of each client's queries, the percentage routed to each "
        "client, all seeds together.",
    ),
    (
        "figure-5",
        shifts.shift_grid,
        "Figure 5. One image under every client- and component-level transformation: the "
        "component's first, then the client's tint and bright edges.",
    ),
    (
        "figure-6",
        shifts.label_bars,
        "Figure 6. Labels of the clients, training and test images together, classes as they were "
        "before each component's own permutation.",
    ),
    ("figure-7", shifts.weight_bars, "Figure 7. Mixing weights of the clients, as drawn."),
)


def blocks(section: Section) -> Iterator[Block | None]:
    """Yield the tables of a section."""
    yield routing_table(section)
    yield order_table(section)
    yield from intensity_tables(section)
    yield components_table(section)
    yield bridge_table(section)
    yield duration_table(section)


def setting(config: Mapping[str, Any]) -> str:
    """Return the network, and how the clients differ."""
    network = (
        f"model {config['model']} (embedding {config['embedding'] or 'none'}, embed-norm "
        f"{config['embed-norm']}, norm {config['norm']})"
    )
    if config["partition"] != "dual":
        return f"{network}; clients as the data set has them"
    images = f"{config['dual.examples']:,}" if config["dual.examples"] else "all"
    return (
        f"{network}; dual heterogeneity of {images} images, "
        f"alpha-inter {config['dual.alpha-inter']:g}, alpha-intra {config['dual.alpha-intra']:g}, "
        f"amplitude {config['dual.amplitude']:g}"
    )

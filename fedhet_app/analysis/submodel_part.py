"""What a report has of a study of sub-models: Paper A's tables and figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from fedhet_app.analysis.page import Block, Bullets
from fedhet_app.analysis.plots import allocation, curves
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.audit import audit_labels, audit_table, correlation_table, verdicts
from fedhet_app.analysis.tables.cost import cost_table
from fedhet_app.analysis.tables.paper import allocation_table, comparison_table, coverage_table
from fedhet_app.analysis.tables.side import difference_table, stale_table

_BAND = "mean over seeds, and the range from the lowest to the highest seed"

FIGURES: Sequence[tuple[str, Callable[[Section], Figure | None], str]] = (
    ("figure-3", curves.allocation_curves, f"Figure 3. Allocation strategies: {_BAND}."),
    (
        "figure-4",
        allocation.estimates_over_rounds,
        "Figure 4. HAS-FL's mean estimate, divided by its mean at every normalisation, and the "
        "mean of the widths it allots.",
    ),
    (
        "figure-5",
        allocation.final_allocation,
        "Figure 5. HAS-FL's final allocation, a point for each client of each seed, against its "
        "capacity (dotted: width = capacity) and against the skew of its data.",
    ),
    (
        "figure-6",
        curves.frontier,
        "Figure 6. Final accuracy against upload; bars are one standard deviation over seeds.",
    ),
    ("figure-7", curves.comparison_curves, f"Figure 7. Full models and sub-models: {_BAND}."),
    ("figure-8", curves.loss_curves, f"Figure 8. Test loss: {_BAND}."),
)


def blocks(section: Section) -> Iterator[Block | None]:
    """Yield the tables of a section, the verdicts of its audit under theirs."""
    audited = audit_labels(section)
    yield allocation_table(section)
    yield coverage_table(section)
    yield correlation_table(section, audited)
    yield comparison_table(section)
    yield difference_table(section)
    yield audit_table(audited)
    if audited:
        yield Bullets(items=tuple(verdicts(audited)))
    yield stale_table(section)
    yield cost_table(section)


def setting(config: Mapping[str, Any]) -> str:
    """Return the network, and how the clients differ."""
    skew = f", alpha {config['alpha']:g}" if config["partition"] == "dirichlet" else ""
    return (
        f"model {config['model']} ({config['model-preset']}, norm {config['norm']}); "
        f"partition {config['partition']}{skew}"
    )

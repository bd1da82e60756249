"""Figures of dual heterogeneity: Paper B's 5 (shifts), 6 (labels) and 7 (mixing weights)."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.plots.style import finish, new_grid
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run

_IMAGE = 0.95
_LEGEND_LINE = 0.23
_COLUMNS = 3
_TITLED = ("dual.alpha-inter", "dual.alpha-intra", "seed")
_TOLD_APART = ("dual.examples", "dual.amplitude", "dual.fine", "num-clients")
_COMPONENTS = ("#0072B2", "#E69F00")
_EFFECTS = ("as they are", "inverted")


def shift_grid(section: Section) -> Figure | None:
    """Draw one image as every client has it in each component (Figure 5).

    Of the first run that kept one: clients shift alike in all partitions of one amplitude.
    """
    example = next(
        (run.shift_example for run in section.runs if run.shift_example is not None), None
    )
    if example is None:
        return None
    clients, components = example.shape[:2]
    figure, panels = new_grid(
        clients * components, components, 1.6 + _IMAGE * components, 0.5 + _IMAGE * clients
    )
    for position, axes in enumerate(panels):
        client, component = divmod(position, components)
        axes.imshow(example[client, component], interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        if client == 0:
            axes.set_title(f"component {component}\n{_EFFECTS[component]}", fontsize="small")
        if component == 0:
            name = f"client {client}\n{paper_b.shift_of(client)}"
            axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize="small")
    return figure


def label_bars(section: Section) -> Figure | None:
    """Draw how many images of each class each client has, before their shift (Figure 6)."""
    key = "class-histograms-before-shift"
    runs = _partitions(section, key)
    if not runs:
        return None
    classes = len(runs[0].partition[key][0])
    colours = colormaps["tab10" if classes <= 10 else "tab20"]
    names = [f"class {number}" for number in range(classes)]
    figure, panels = _panels(runs, classes)
    for axes, run in zip(panels, runs, strict=True):
        counts = np.array(run.partition[key])
        _stack(axes, counts, names, [colours(number % colours.N) for number in range(classes)])
        axes.set(xlabel="images of the client")
    return finish(figure)


def weight_bars(section: Section) -> Figure | None:
    """Draw the weight of each true component in each client's mixture (Figure 7)."""
    runs = _partitions(section, "mixing-weights")
    if not runs:
        return None
    figure, panels = _panels(runs, len(_EFFECTS))
    names = [f"component {number}, {effect}" for number, effect in enumerate(_EFFECTS)]
    for axes, run in zip(panels, runs, strict=True):
        _stack(axes, np.array(run.partition["mixing-weights"]), names, _COMPONENTS)
        axes.set(xlabel="weight in the client's mixture", xlim=(0, 1))
    return finish(figure)


def _partitions(section: Section, key: str) -> list[Run]:
    """Return a run of each partition that says something, by the alphas and the seed."""
    found: dict[tuple[float, ...], Run] = {}
    for run in section.runs:
        if run.partition.get(key):
            identity = tuple(float(run.config[name]) for name in (*_TITLED, *_TOLD_APART))
            found.setdefault(identity, run)
    return [found[identity] for identity in sorted(found)]


def _panels(runs: Sequence[Run], names: int) -> tuple[Figure, list[Axes]]:
    """Return a panel for each partition, titled, with room for so many names in the legend."""
    columns = min(_COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    clients = max(int(run.config["num-clients"]) for run in runs)
    height = max((0.9 + 0.24 * clients) * rows, 0.4 + _LEGEND_LINE * names)
    figure, panels = new_grid(len(runs), columns, 2.2 + 3.0 * columns, height, share_y=False)
    differing = [key for key in _TOLD_APART if len({run.config[key] for run in runs}) > 1]
    for axes, run in zip(panels, runs, strict=True):
        parts = [f"{key.rpartition('.')[2]} {run.config[key]:g}" for key in (*_TITLED, *differing)]
        axes.set_title("\n".join([", ".join(parts[:3]), *parts[3:]]), fontsize="small")
    return figure, panels


def _stack(
    axes: Axes,
    values: NDArray[np.float64],
    names: Sequence[str],
    colours: Sequence[object],
) -> None:
    """Draw a bar for each row of values (m, K), its K parts one after another."""
    clients = np.arange(len(values))
    starts = np.cumsum(values, axis=1) - values
    for number, name in enumerate(names):
        axes.barh(
            clients,
            values[:, number],
            left=starts[:, number],
            color=colours[number],
            label=name,
            height=0.8,
        )
    axes.set_yticks(clients, [f"client {client}" for client in clients], fontsize="small")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")

"""How figures look: one colour, dash and marker for a method wherever it appears."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's (2008) palette, whose colours differ to colour-blind eyes; full-width methods are
# dashed, so that hue is never all that tells two lines apart.
_STYLES: Mapping[str, tuple[str, str, str]] = {
    "has-fl": ("#0072B2", "-", "o"),
    "has-fl-off": ("#56B4E9", "-.", "o"),
    "heterofl": ("#009E73", "-", "s"),
    "fjord": ("#E69F00", "-", "^"),
    "fedrolex": ("#8C6D31", "-", "v"),
    "uniform": ("#D55E00", "-", "D"),
    "random-budget": ("#CC79A7", "-", "P"),
    "random-budget-permute": ("#CC79A7", ":", "X"),
    "fedavg": ("#000000", "--", "o"),
    "fedavg-plain": ("#000000", ":", "D"),
    "fedprox": ("#999999", "--", "s"),
    "scaffold": ("#7B3F99", "--", "^"),
    "scaffold-momentum": ("#7B3F99", ":", "v"),
    "feddrm": ("#0072B2", "--", "s"),
    "fedgmm": ("#009E73", "--", "D"),
    "fedspm": ("#D55E00", "-", "o"),
    "fedspm-cx": ("#E69F00", "--", "s"),
}
_OTHER = ("#666666", ":", ".")

_COLOURS = ("#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#7B3F99", "#8C6D31")
_DASHES = (("-", "^"), ("-.", "D"), (":", "v"))
_SPARE = [
    (colour, *_DASHES[(number + shift) % len(_DASHES)])
    for shift in range(len(_DASHES))
    for number, colour in enumerate(_COLOURS)
]

TIERS = ("#440154", "#31688E", "#35B779", "#B8A800")
"""Colours of capacity tiers, dark to light as they widen."""

_DPI = 150
_RC: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.dpi": _DPI,
    "savefig.dpi": _DPI,
}


def colour_of(label: str) -> str:
    """Return the colour of a method."""
    return _STYLES.get(label, _OTHER)[0]


def dash_of(label: str) -> str:
    """Return the line style of a method."""
    return _STYLES.get(label, _OTHER)[1]


def marker_of(label: str) -> str:
    """Return the marker of a method."""
    return _STYLES.get(label, _OTHER)[2]


def looks(labels: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return colour, dash and marker of each label: its method's, or the next that are free."""
    spare = iter(_SPARE)
    return {label: _STYLES.get(label) or next(spare, _OTHER) for label in labels}


def new_figure(
    panels: int = 1, width: float = 7.5, height: float = 3.6, *, share_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with panels side by side; sizes in inches."""
    return new_grid(panels, panels, width, height, share_y=share_y)


def new_grid(
    panels: int, columns: int, width: float, height: float, *, share_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with panels in rows of so many columns; sizes in inches."""
    rows = -(-panels // columns)
    with rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    axes = list(grid.flat)
    for each in axes[panels:]:
        each.remove()
    return figure, axes[:panels]


def finish(figure: Figure) -> Figure:
    """Give the figure one legend beside its panels, with every name in them once."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    if entries:
        with rc_context(_RC):
            figure.legend(list(entries.values()), list(entries), loc="outside right center")
    return figure

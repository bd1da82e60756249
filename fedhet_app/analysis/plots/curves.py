"""Figures of curves: Paper A's 3 (allocation), 6 (frontier), 7 (full models) and 8 (loss)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedhet_app.analysis import paper_a
from fedhet_app.analysis.plots.style import colour_of, dash_of, finish, marker_of, new_figure
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cost import relative_upload

_ALLOCATION = {
    "allocation": ("has-fl", "fjord", "uniform"),
    "coverage and control": ("has-fl", "has-fl-off", "heterofl", "random-budget"),
}
_COMPARISON = {"": ("fedavg", "scaffold", "fedprox", "has-fl", "random-budget")}
_FEWEST_TICKS = 4


def allocation_curves(section: Section) -> Figure | None:
    """Draw accuracy over rounds for each allocation strategy (Figure 3).

    The paper's three are the left panel; the right one has those of Table 3 and the control.
    """
    return _curves(section, _ALLOCATION, "accuracy")


def comparison_curves(section: Section) -> Figure | None:
    """Draw accuracy over rounds, full models against sub-models (Figure 7)."""
    return _curves(section, _COMPARISON, "accuracy")


def loss_curves(section: Section) -> Figure | None:
    """Draw test loss over rounds on a logarithmic axis (Figure 8)."""
    return _curves(section, _COMPARISON, "loss")


def frontier(section: Section) -> Figure | None:
    """Draw final accuracy against upload, a point per method with its spread (Figure 6)."""
    points = {}
    for label, runs in section.comparable(paper_a.METHODS).items():
        shares = [relative_upload(section, run) for run in runs]
        known = [100 * share for share in shares if share is not None]
        if len(known) == len(runs):
            points[label] = (known, [run.final for run in runs])
    if len(points) < 2:
        return None
    figure, (axes,) = new_figure()
    for label, (uploads, finals) in points.items():
        axes.errorbar(
            float(np.mean(uploads)),
            float(np.mean(finals)),
            xerr=_std(uploads),
            yerr=_std(finals),
            fmt=marker_of(label),
            color=colour_of(label),
            label=paper_a.method(label),
            markersize=6,
            elinewidth=1,
        )
    axes.set(xlabel="upload of a client in a round (% of the full model)")
    axes.set(ylabel="final test accuracy (%)")
    axes.set_xlim(left=0)
    return finish(figure)


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _curves(section: Section, panels: Mapping[str, Sequence[str]], column: str) -> Figure | None:
    shown = {title: section.comparable(labels) for title, labels in panels.items()}
    shown = {title: runs for title, runs in shown.items() if runs}
    if not shown:
        return None
    figure, grid = new_figure(len(shown), width=7.5 if len(shown) == 1 else 10.0)
    for axes, (title, by_label) in zip(grid, shown.items(), strict=True):
        for runs in by_label.values():
            _draw(axes, runs, column)
        axes.set(xlabel="round")
        axes.set_title(title, fontsize="medium")
        if column == "loss":
            axes.set(yscale="log")
            _plain_ticks(axes)
    label = "test loss (nats)" if column == "loss" else "test accuracy, full width (%)"
    grid[0].set(ylabel=label)
    return finish(figure)


def _draw(axes: Axes, runs: Sequence[Run], column: str) -> None:
    """Draw the mean over seeds, and the range from the lowest to the highest seed."""
    rounds, values = over_seeds(runs, column)
    if column == "accuracy":
        values = 100 * values
    label = runs[0].label
    mean = values.mean(axis=0)  # NaN, and so a gap, where a seed's loss is not finite
    name = paper_a.method(label)
    axes.plot(rounds, mean, color=colour_of(label), linestyle=dash_of(label), label=name)
    if len(runs) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(rounds, low, high, color=colour_of(label), alpha=0.12, linewidth=0)


def over_seeds(runs: Sequence[Run], column: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rounds, shape (T,), that all runs have a column of, and it, shape (S, T)."""
    curves = [run.curve(column) for run in runs]
    shared = sorted(set(curves[0]).intersection(*curves[1:]))
    values = np.array([[curve[number] for number in shared] for curve in curves], dtype=np.float64)
    return np.array(shared, dtype=np.int64), values.reshape(len(runs), len(shared))


def _plain_ticks(axes: Axes) -> None:
    """Write 0.5, 1, 2 on a logarithmic axis instead of powers of ten."""
    low, high = axes.get_ylim()
    powers = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    evenly = MaxNLocator(2 * _FEWEST_TICKS).tick_values(low, high)
    for steps in (powers, np.outer(powers, (1, 2, 5)).flat, evenly):
        ticks = [step for step in steps if low <= step <= high]
        if len(ticks) >= _FEWEST_TICKS:
            break
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()

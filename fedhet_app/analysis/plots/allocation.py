"""Figures of allocations: Paper A's 2 (cost), 4 (estimates over rounds) and 5 (who gets what)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedhet_app.analysis.plots.curves import over_seeds
from fedhet_app.analysis.plots.style import TIERS, colour_of, finish, new_figure
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Row, Run
from fedhet_app.analysis.tables.cost import costs

_BAR = 0.38
_SIDESTEP = 0.015


def cost_bars(sections: Sequence[Section]) -> Figure | None:
    """Draw what each width costs, a panel for each architecture (Figure 2)."""
    found: dict[str, Sequence[Row]] = {}
    for section in sections:
        for network, rows in costs(section).items():
            found.setdefault(f"{section.dataset}: {network}", rows)
    if not found:
        return None
    figure, panels = new_figure(len(found), width=max(6.5, 3.5 * len(found)), height=3.2)
    for axes, (name, rows) in zip(panels, found.items(), strict=True):
        at = np.arange(len(rows))
        for side, key, title, colour in (
            (-1, "params", "parameters", "#0072B2"),
            (1, "macs", "multiply-accumulates", "#E69F00"),
        ):
            shares = [100 * row[key] / rows[-1][key] for row in rows]
            bars = axes.bar(at + side * _BAR / 2, shares, _BAR, color=colour, label=title)
            axes.bar_label(bars, fmt="%.0f", fontsize=7.5, padding=1)
        axes.set_xticks(at, [f"{float(row['width']):g}" for row in rows])
        axes.set(xlabel="width p")
        axes.set_title(name, fontsize="medium")
        axes.grid(visible=False, axis="x")
    panels[0].set(ylabel="share of the full model (%)")
    return finish(figure)


def estimates_over_rounds(section: Section) -> Figure | None:
    """Draw HAS-FL's mean estimate and mean width over rounds (Figure 4)."""
    runs = [run for run in section.of("has-fl") if run.adaptations("divergence")]
    if not runs:
        return None
    figure, (left, right) = new_figure(2, width=10.0, height=3.2, share_y=False)
    for run in runs:
        _draw_steps(left, _mean_estimates([run]), thin=True)
        _draw_steps(right, _mean_widths([run]), thin=True)
    _draw_steps(left, _mean_estimates(runs), thin=False)
    _draw_steps(right, _mean_widths(runs), thin=False)
    left.set(xlabel="round", ylabel="mean estimate over clients")
    right.set(xlabel="round", ylabel="mean width over clients", ylim=(0, 1))
    return finish(figure)


def _draw_steps(axes: Axes, values: Mapping[int, float], *, thin: bool) -> None:
    """Draw values that hold until the next one: of a seed, or the mean over seeds."""
    axes.step(
        list(values),
        list(values.values()),
        where="post",
        color="#777777" if thin else colour_of("has-fl"),
        linewidth=0.9 if thin else 2.0,
        alpha=0.6 if thin else 1.0,
        label="one seed" if thin else "mean over seeds",
    )


def _mean_estimates(runs: Sequence[Run]) -> dict[int, float]:
    """Return the mean over clients and runs after each adaptation; it is 1 before the first."""
    known = [run.adaptations("divergence") for run in runs]
    shared = sorted(set(known[0]).intersection(*known[1:]))
    means = {number: float(np.mean([each[number].mean() for each in known])) for number in shared}
    return {0: 1.0, **means}


def _mean_widths(runs: Sequence[Run]) -> dict[int, float]:
    rounds, values = over_seeds(runs, "allocated-mean-width")
    return dict(zip(rounds.tolist(), values.mean(axis=0).tolist(), strict=True))


def final_allocation(section: Section) -> Figure | None:
    """Draw each client's last allotted width against capacity and skew (Figure 5)."""
    clients = [row for run in section.of("has-fl") for row in _last_allocation(run)]
    if not clients:
        return None
    tiers = sorted({capacity for _, capacity, _, _ in clients})
    seeds = sorted({seed for seed, _, _, _ in clients})
    figure, (left, right) = new_figure(2, width=10.0, height=3.4)
    for number, tier in enumerate(tiers):
        own = [row for row in clients if row[1] == tier]
        colour = TIERS[number * (len(TIERS) - 1) // max(1, len(tiers) - 1)]
        # Seeds stand side by side, or equal widths would hide one another.
        beside = [_SIDESTEP * (seeds.index(row[0]) - (len(seeds) - 1) / 2) for row in own]
        x, widths = np.array([row[1] for row in own]), [row[3] for row in own]
        name = f"capacity {tier:g}"
        left.scatter(x + beside, widths, s=22, color=colour, alpha=0.75, lw=0, label=name)
        right.scatter([row[2] for row in own], widths, s=22, color=colour, alpha=0.75, lw=0)
    left.plot([0, 1], [0, 1], color="#999999", lw=1, ls=":", zorder=0)
    left.set(xlabel="capacity (largest width)", ylabel="width after the last adaptation")
    left.set(xlim=(0.15, 1.05), ylim=(0.15, 1.05), xticks=tiers)
    right.set(xlabel="total variation between a client's labels and all", ylim=(0.15, 1.05))
    return finish(figure)


def _last_allocation(run: Run) -> list[tuple[int, float, float, float]]:
    """Return (seed, capacity, total variation, width) of each client, none without adaptation."""
    widths, capacities = (run.adaptations(key) for key in ("allocated-width", "capacity"))
    skew = run.partition.get("total-variation")
    if not widths or not skew:
        return []
    last = max(widths)
    rows = zip(capacities[last].tolist(), skew, widths[last].tolist(), strict=True)
    return [(run.seed, *row) for row in rows]

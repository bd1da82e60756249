"""Figure of all methods on natural clients: Paper B's 4."""

import numpy as np
from matplotlib.figure import Figure

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.paper_b_labels import by_row
from fedhet_app.analysis.plots.style import TIERS, finish, new_figure
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.cells import Spread
from fedhet_app.analysis.tables.mixture import AVERAGE, ROUTING, SYSTEM

_METRICS = {AVERAGE: "average", SYSTEM: "system", ROUTING: "routing"}
_WIDTH = 0.8 / len(_METRICS)


def accuracies(section: Section) -> Figure | None:
    """Draw average, system and, where a method routes, routing accuracy as bars (Figure 4).

    ``None`` for clients that were made to differ, or without a run that routes.
    """
    runs = section.comparable(by_row(section).values())
    spreads = {
        key: {
            label: Spread.of([run.percent(key) for run in own])
            for label, own in runs.items()
            if all(key in run.summary for run in own)
        }
        for key in _METRICS
    }
    if section.dataset not in paper_b.NATURAL or not spreads[ROUTING]:
        return None
    figure, (axes,) = new_figure(width=9.0, height=3.6)
    for number, (key, found) in enumerate(spreads.items()):
        places = [list(runs).index(label) for label in found]
        known = [spread for spread in found.values() if spread is not None]
        axes.bar(
            np.array(places) + (number - (len(_METRICS) - 1) / 2) * _WIDTH,
            [spread.mean for spread in known],
            width=0.92 * _WIDTH,
            yerr=np.nan_to_num([spread.std for spread in known]),
            color=TIERS[number],
            capsize=2,
            error_kw={"elinewidth": 1},
            label=_METRICS[key],
        )
    axes.set(ylabel="accuracy (%)", xticks=range(len(runs)))
    axes.set_xticklabels(list(runs), rotation=30, ha="right")
    axes.grid(visible=False, axis="x")
    return finish(figure)

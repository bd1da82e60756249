"""Figure of the methods that route on natural clients: Paper B's 4."""

import numpy as np
from matplotlib.figure import Figure

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.paper_b_labels import by_row
from fedhet_app.analysis.plots.style import finish, looks, new_figure
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.cells import Spread
from fedhet_app.analysis.tables.mixture import AVERAGE, ROUTING, SYSTEM
from fedhet_app.config_checks import ROUTING_METHODS

_METRICS = {AVERAGE: "average", SYSTEM: "system", ROUTING: "routing"}
_WIDTH = 0.8


def accuracies(section: Section) -> Figure | None:
    """Draw average, system and routing accuracy as bars, a colour for each method (Figure 4).

    ``None`` for clients that were made to differ, or without a run that routes.
    """
    routing = [
        label
        for label in by_row(section).values()
        if section.of(label)[0].config["strategy"] in ROUTING_METHODS
        and all(key in run.summary for run in section.of(label) for key in _METRICS)
    ]
    if section.dataset not in paper_b.NATURAL or not routing:
        return None
    runs, styles = section.comparable(routing), looks(routing)
    figure, (axes,) = new_figure(width=7.5, height=3.6)
    width = _WIDTH / len(runs)
    for number, (label, own) in enumerate(runs.items()):
        spreads = [Spread.of([run.percent(key) for run in own]) for key in _METRICS]
        known = [spread for spread in spreads if spread is not None]
        axes.bar(
            np.arange(len(_METRICS)) + (number - (len(runs) - 1) / 2) * width,
            [spread.mean for spread in known],
            width=0.92 * width,
            yerr=np.nan_to_num([spread.std for spread in known]),
            color=styles[label][0],
            capsize=3,
            error_kw={"elinewidth": 1},
            label=label,
        )
    axes.set(ylabel="accuracy (%)", xticks=range(len(_METRICS)))
    axes.set_xticklabels(list(_METRICS.values()))
    axes.grid(visible=False, axis="x")
    return finish(figure)

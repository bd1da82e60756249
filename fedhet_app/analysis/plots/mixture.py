"""Figures of mixtures: Paper B's 3 (impact of C), what components become, and who is routed to."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedhet_app.analysis.labels import settings, task_settings
from fedhet_app.analysis.paper_b_labels import elsewhere
from fedhet_app.analysis.plots.curves import over_seeds
from fedhet_app.analysis.plots.style import finish, looks, new_figure, new_grid
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Spread
from fedhet_app.analysis.tables.components import BY_W, BY_X
from fedhet_app.analysis.tables.mixture import AVERAGE, SYSTEM

_DIAGNOSTICS = {
    "purity": "purity of w (%)",
    "agreement": "w and P(c|x) agree (%)",
    BY_W: "train accuracy, head by w (%)",
    BY_X: "train accuracy, head by P(c|x) (%)",
}
_ENCODERS = {"shared": "1x", "per-component": "Cx"}
_VARIED = ("strategy", "fedspm.components", "fedspm.encoders", "fedspm.bridge-every")
_CONFUSION = "routing-confusion"
_COLUMNS = 4
_WRITTEN = 0.5

Setting = frozenset[tuple[str, Any]]


def impact_of_components(section: Section) -> Figure | None:
    """Draw system and average accuracy over the number of components (Figure 3).

    A line is of the seeds that all its labels ran, or of all of each where there is none.
    """
    lines = component_lines(section)
    if not lines:
        return None
    styles = looks(lines)
    figure, panels = new_figure(2, width=9.0, height=3.4)
    for axes, (key, title) in zip(panels, ((SYSTEM, "system"), (AVERAGE, "average")), strict=True):
        for name, own in lines.items():
            runs = _paired(section, [own[c] for c in sorted(own)])
            spreads = [Spread.of([run.percent(key) for run in each]) for each in runs]
            known = [spread for spread in spreads if spread is not None]
            colour, dash, marker = styles[name]
            axes.errorbar(
                sorted(own),
                [spread.mean for spread in known],
                yerr=np.nan_to_num([spread.std for spread in known]),
                color=colour,
                linestyle=dash,
                marker=marker,
                elinewidth=1,
                capsize=3,
                label=name,
            )
        axes.set(xlabel="components C", xticks=sorted({c for own in lines.values() for c in own}))
        axes.set_title(f"{title} accuracy", fontsize="medium")
    panels[0].set(ylabel="accuracy (%)")
    return finish(figure)


def _paired(section: Section, labels: Sequence[str]) -> list[Sequence[Run]]:
    """Return the runs of each label on the seeds that all of them have, or all where none is."""
    own = [section.of(label) for label in labels]
    shared = set.intersection(*({run.seed for run in runs} for runs in own))
    return [[run for run in runs if run.seed in shared] or list(runs) for runs in own]


def component_lines(section: Section) -> dict[str, dict[int, str]]:
    """Return labels by C, under a name for each choice of encoders and of other settings.

    The name says in which settings a line differs from the first. FedDRM of the same settings is
    one component, of either choice of encoders, unless FedSPM with one has as many seeds. A line
    has at least two numbers of components.
    Identical ones are one, whatever their number, and are left out.
    """
    found: dict[tuple[Setting, str], dict[int, str]] = {}
    configs = {label: settings(section.of(label)[0].config) for label in _shown(section)}
    for label, config in configs.items():
        if config["strategy"] == "fedspm" and config["fedspm.init"] != "identical":
            setting = _without(config, _VARIED)
            components = config["fedspm.components"]
            for encoders in _ENCODERS if components == 1 else (config["fedspm.encoders"],):
                found.setdefault((setting, encoders), {})[components] = label
    for label, config in configs.items():
        if config["strategy"] == "feddrm":
            shared = _without(task_settings(config), ())
            for (setting, _), own in found.items():
                if shared <= setting and _seeds(section, label) > _seeds(section, own.get(1)):
                    own[1] = label
    lines = {key: own for key, own in found.items() if len(own) > 1}
    first = next((setting for setting, _ in lines), frozenset())
    return {
        " ".join([_ENCODERS[encoders], *(f"{k}={v}" for k, v in sorted(setting - first))]): own
        for (setting, encoders), own in lines.items()
    }


def _seeds(section: Section, label: str | None) -> int:
    return len(section.of(label)) if label else 0


def _without(config: Mapping[str, Any], keys: Sequence[str]) -> Setting:
    return frozenset((key, value) for key, value in config.items() if key not in keys)


def diagnostics(section: Section) -> Figure | None:
    """Draw what the E-steps found over rounds: a line for each label, the mean over its seeds.

    One component alone has a purity that data give, and always agrees: those panels leave it out.
    """
    labels = [label for label in _shown(section) if section.of(label)[0].curve(BY_X)]
    if not labels:
        return None
    styles = looks(labels)
    several = [label for label in labels if _components(section.of(label)[0]) > 1]
    # Natural clients have no true components, and so no purity.
    having = {
        column: [label for label in own if section.of(label)[0].curve(column)]
        for column, own in zip(_DIAGNOSTICS, (several, several, labels, labels), strict=True)
    }
    columns = [column for column, own in having.items() if own]
    figure, panels = new_grid(len(columns), 2, 10.0, 5.6, share_y=False)
    for axes, column in zip(panels, columns, strict=True):
        for label in having[column]:
            rounds, values = over_seeds(section.of(label), column)
            colour, dash, _ = styles[label]
            mean = 100 * values.mean(axis=0)
            axes.plot(rounds, mean, color=colour, linestyle=dash, label=_in_lines(label))
        axes.set_title(_DIAGNOSTICS[column], fontsize="medium")
    for axes in panels[-2:]:
        axes.set(xlabel="round")
    return finish(figure)


def confusion(section: Section) -> Figure | None:
    """Draw which client the queries of each client are routed to, after the last round."""
    counts = {}
    for label in _shown(section):
        last = [row[_CONFUSION] for run in section.of(label) if (row := _last_routed(run))]
        # Seeds of one label have as many clients.
        if last:
            counts[label] = np.sum(last, axis=0)
    if not counts:
        return None
    columns = min(_COLUMNS, len(counts))
    rows = -(-len(counts) // columns)
    figure, panels = new_grid(len(counts), columns, 3.2 * columns, 3.3 * rows)
    for axes, (label, table) in zip(panels, counts.items(), strict=True):
        shares = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        for (row, column), share in np.ndenumerate(shares):
            if share >= _WRITTEN:
                colour = "white" if share > 50 else "black"
                axes.text(
                    column,
                    row,
                    f"{share:.0f}",
                    color=colour,
                    ha="center",
                    va="center",
                    fontsize=6.5,
                )
        at = range(len(table))
        axes.set(xticks=at, yticks=at, xlabel="routed to client")
        axes.grid(visible=False)
        axes.set_title(_in_lines(label), fontsize="small")
    for axes in panels[::columns]:
        axes.set(ylabel="query of client")
    return figure


def _shown(section: Section) -> list[str]:
    """Return the labels less those of Table 2's other settings, which would be too many to see."""
    apart = elsewhere(section)
    return [label for label in section.labels if label not in apart]


def _components(run: Run) -> int:
    return run.config["fedspm.components"] if run.config["strategy"] == "fedspm" else 1


def _in_lines(label: str) -> str:
    """Return a label with each of its options on a line of its own."""
    return label.replace(" ", "\n")


def _last_routed(run: Run) -> Mapping[str, Any] | None:
    return next((row for row in reversed(run.rounds) if row.get(_CONFUSION)), None)

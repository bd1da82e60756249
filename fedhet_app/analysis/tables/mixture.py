"""Paper B's Table 1, with the accuracy of the routing."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.correlation import paired_difference
from fedhet_app.analysis.labels import task_settings
from fedhet_app.analysis.paper_b_labels import elsewhere
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Cell, Column, Estimate, Spread, Table

SYSTEM, AVERAGE, ROUTING = "system-accuracy", "average-accuracy", "routing-accuracy"
VOTE, FAIR, FAIR_AVERAGE = "vote-accuracy", "balanced-accuracy", "balanced-average-accuracy"

_BASIS = "feddrm"
_ALIKE = ("num-clients", "num-server-rounds", "local-steps", "local-epochs", "lr", "lr-schedule")
_SEEDS = (
    "Mean ± sample standard deviation over the n seeds that a third of these labels ran (two at "
    "least), after the last round; differences are paired by seed, with 95 % t intervals."
)
_PAPER = " The paper's are of Table 1: alpha-inter 1, alpha-intra 2, three components."
_VOTE = " Vote is the majority of all clients' predictions, which needs no routing."


def routing_table(section: Section) -> Table | None:
    """Return system, average and routing accuracy beside the paper's; ``None`` without a run."""
    apart = elsewhere(section)
    shown = [label for label in section.labels if label not in apart]
    runs = section.comparable(label for label in shown if _all_have(section.of(label), SYSTEM))
    if not runs:
        return None
    paper = any(_published(section, label) for label in runs)
    bases = [basis(section, label) for label in runs]
    more = _extra(runs)
    columns = [
        Column(name="Label"),
        Column(name="n"),
        *_columns("System (%)", "System, paper" if paper else ""),
        *_columns("Average (%)", "Average, paper" if paper else ""),
        Column(name="System minus average (points)", form="+.2f"),
        Column(name="Routing (%)", form=".2f"),
        *(Column(name=name, form=".2f") for name in more.values()),
        *_columns(
            "System minus FedDRM (points)", "System minus FedDRM, paper" if paper else "", "+.2f"
        ),
        Column(name="FedDRM is"),
    ]
    rows: list[tuple[Cell, ...]] = []
    for (label, own), base in zip(runs.items(), bases, strict=True):
        cells = _accuracies(section, own, paper=paper)
        cells += [Spread.of([run.percent(key) for run in own]) for key in more]
        cells += _differences(section, label, base, paper=paper)
        rows.append((label, len(own), *cells, base or None))
    if len({*bases} - {""}) < 2:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(
        name="routing",
        title="Table 1. System, average and routing accuracy",
        columns=tuple(columns),
        rows=tuple(rows),
        note=_SEEDS + (_PAPER if paper else "") + (_VOTE if VOTE in more else ""),
    )


def basis(section: Section, label: str) -> str:
    """Return the label of FedDRM's runs that a label's are compared with; empty for none.

    They have the same partitions and the same training, and of several such labels it is that
    whose other settings are most alike.
    """
    config = section.of(label)[0].config
    own = task_settings(config)
    differing: dict[str, list[str]] = {}
    for other in section.labels:
        their_config = section.of(other)[0].config
        if their_config["strategy"] == _BASIS != config["strategy"]:
            theirs = task_settings(their_config)
            keys = [key for key in own.keys() & theirs.keys() if own[key] != theirs[key]]
            if not any(key.startswith("dual.") or key in _ALIKE for key in keys):
                differing[other] = keys
    return min(differing, key=lambda other: len(differing[other]), default="")


def _all_have(runs: Sequence[Run], key: str) -> bool:
    return all(isinstance(run.summary.get(key), int | float) for run in runs)


def _extra(runs: Mapping[str, Sequence[Run]]) -> dict[str, str]:
    """Return the columns that only some studies have: the vote, and balanced accuracies."""
    every = [run for own in runs.values() for run in own]
    natural = any(run.config["dataset"] in paper_b.NATURAL for run in every)
    names = {VOTE: "Vote (%)"} if any(VOTE in run.summary for run in every) else {}
    if natural:
        names |= {FAIR: "System, balanced (%)", FAIR_AVERAGE: "Average, balanced (%)"}
    return names


def _published(section: Section, label: str) -> paper_b.Published | None:
    return paper_b.published(section.dataset, section.of(label)[0].config) if label else None


def _columns(name: str, paper: str, form: str = ".2f") -> list[Column]:
    return [Column(name=each, form=form) for each in (name, paper) if each]


def _accuracies(section: Section, runs: Sequence[Run], *, paper: bool) -> list[Cell]:
    system, average = ([run.percent(key) for run in runs] for key in (SYSTEM, AVERAGE))
    known = _published(section, runs[0].label)
    cells: list[Cell] = []
    for values, theirs in (
        (system, known.system if known else None),
        (average, known.average if known else None),
    ):
        cells += [Spread.of(values), theirs] if paper else [Spread.of(values)]
    gaps = [one - other for one, other in zip(system, average, strict=True)]
    routing = [run.percent(ROUTING) for run in runs]
    return [*cells, Spread.of(gaps), Spread.of(routing)]


def _differences(section: Section, label: str, base: str, *, paper: bool) -> list[Cell]:
    if not base:
        return [None, None] if paper else [None]
    pairs = section.pairs(label, base)
    ours, theirs = (np.array([pair[side].percent(SYSTEM) for pair in pairs]) for side in (0, 1))
    own, other = _published(section, label), _published(section, base)
    gap = own.system.mean - other.system.mean if own and other else None
    return [Estimate.of(paired_difference(ours, theirs)), *([gap] if paper else [])]

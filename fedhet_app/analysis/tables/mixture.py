"""Paper B's Table 1 with the routing's accuracy, and what became of the components."""

import math
from collections.abc import Sequence

import numpy as np

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.correlation import paired_difference
from fedhet_app.analysis.labels import task_settings
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Cell, Column, Estimate, Spread, Table

SYSTEM, AVERAGE, ROUTING = "system-accuracy", "average-accuracy", "routing-accuracy"
BY_W, BY_X = "accuracy-by-w", "accuracy-by-x"

_BASIS = "feddrm"
_ALIKE = ("num-clients", "num-server-rounds", "local-steps", "local-epochs", "lr", "lr-schedule")
_SEEDS = (
    "Mean ± sample standard deviation over the n seeds that at least two of these labels ran, "
    "after the last round; differences are paired by seed, with 95 % t intervals."
)
_PAPER = " The paper's are of Table 1: alpha-inter 1, alpha-intra 2, three components."
_COMPONENTS = (
    "Means over clients, weighted by examples, and over seeds, in the last round's E-step. w are "
    "the responsibilities, which have seen the label; P(c|x) is what predicts. Purity is the share "
    "of images whose true component is the most frequent one of their component by w; one "
    "component alone has that of the larger true component."
)


def routing_table(section: Section) -> Table | None:
    """Return system, average and routing accuracy beside the paper's; ``None`` without a run."""
    measured = [label for label in section.labels if _all_have(section.of(label), SYSTEM)]
    runs = section.comparable(measured)
    if not runs:
        return None
    paper = any(_published(section, label) for label in runs)
    bases = [basis(section, label) for label in runs]
    columns = [
        Column(name="Label"),
        Column(name="n"),
        *_columns("System (%)", "System, paper" if paper else ""),
        *_columns("Average (%)", "Average, paper" if paper else ""),
        Column(name="System minus average (points)", form="+.2f"),
        Column(name="Routing (%)", form=".2f"),
        *_columns(
            "System minus FedDRM (points)", "System minus FedDRM, paper" if paper else "", "+.2f"
        ),
        Column(name="FedDRM is"),
    ]
    rows: list[tuple[Cell, ...]] = []
    for (label, own), base in zip(runs.items(), bases, strict=True):
        cells = _accuracies(section, own, paper=paper)
        cells += _differences(section, label, base, paper=paper)
        rows.append((label, len(own), *cells, base or None))
    if len({*bases} - {""}) < 2:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(
        name="routing",
        title="Table 1. System, average and routing accuracy",
        columns=tuple(columns),
        rows=tuple(rows),
        note=_SEEDS + (_PAPER if paper else ""),
    )


def components_table(section: Section) -> Table | None:
    """Return how far the components are the true ones; ``None`` where no run has any."""
    rows = []
    for label in section.labels:
        runs = [run for run in section.of(label) if run.curve("agreement")]
        if not runs:
            continue
        by_w, by_x = (_last(runs, key) for key in (BY_W, BY_X))
        gaps = [w - x for w, x in zip(by_w, by_x, strict=True)]
        larger = [share for share in map(larger_share, runs) if not math.isnan(share)]
        values = (
            larger,
            *(_last(runs, key) for key in ("purity", "agreement")),
            *(by_w, by_x, gaps),
            [value / 100 for value in _last(runs, "effective-components")],
        )
        rows.append((label, len(runs), *map(Spread.of, values)))
    columns = [
        Column(name="Label"),
        Column(name="n"),
        Column(name="Larger true component (%)"),
        Column(name="Purity of w (%)"),
        Column(name="Agreement of w and P(c|x) (%)"),
        Column(name="Train accuracy, head by w (%)"),
        Column(name="Train accuracy, head by P(c|x) (%)"),
        Column(name="By w minus by P(c|x) (points)", form="+.1f"),
        Column(name="Effective components", form=".2f"),
    ]
    if not rows:
        return None
    return Table(
        name="components",
        title="Components after training",
        columns=tuple(columns),
        rows=tuple(rows),
        note=_COMPONENTS,
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


def larger_share(run: Run) -> float:
    """Return the share of training examples in their client's larger component, in percent."""
    counts = run.partition.get("component-counts")
    if not counts:
        return math.nan
    table = np.array(counts)
    return 100 * float(table.max(axis=1).sum() / table.sum())


def _all_have(runs: Sequence[Run], key: str) -> bool:
    return all(isinstance(run.summary.get(key), int | float) for run in runs)


def _last(runs: Sequence[Run], column: str) -> list[float]:
    """Return the last value of a column in each run that has it, in percent."""
    curves = [list(run.curve(column).values()) for run in runs]
    return [100 * float(curve[-1]) for curve in curves if curve]


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

"""What became of the components of a mixture."""

import math
from collections.abc import Sequence

import numpy as np

from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Column, Spread, Table

BY_W, BY_X = "accuracy-by-w", "accuracy-by-x"

_COMPONENTS = (
    "Means over clients, weighted by examples, and over seeds, in the last round's E-step. w are "
    "the responsibilities, which have seen the label; P(c|x) is what predicts. Purity is the share "
    "of images whose true component is the most frequent one of their component by w; one "
    "component alone has that of the larger true component."
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


def larger_share(run: Run) -> float:
    """Return the share of training examples in their client's larger component, in percent."""
    counts = run.partition.get("component-counts")
    if not counts:
        return math.nan
    table = np.array(counts)
    return 100 * float(table.max(axis=1).sum() / table.sum())


def _last(runs: Sequence[Run], column: str) -> list[float]:
    """Return the last value of a column in each run that has it, in percent."""
    curves = [list(run.curve(column).values()) for run in runs]
    return [100 * float(curve[-1]) for curve in curves if curve]

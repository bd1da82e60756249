"""The order of the methods beside the paper's, and their rank correlation."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.paper_b_labels import by_row
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.cells import Cell, Column, Table
from fedhet_app.analysis.tables.mixture import AVERAGE, SYSTEM

FEWEST = 3
"""Methods, below which an order says nothing."""


def order_table(section: Section) -> Table | None:
    """Return each method's place by system and average accuracy here and in Table 1.

    ``None`` where the paper lacks the data set, or fewer than ``FEWEST`` methods share a seed.
    """
    known = paper_b.ACCURACIES.get(section.dataset, {})
    rows, means = shared_means(section)
    if not known or len(rows) < FEWEST:
        return None
    cells: list[list[Cell]] = [[paper_b.METHODS[row]] for row in rows]
    notes = []
    for side, (key, name) in enumerate(((SYSTEM, "System"), (AVERAGE, "Average"))):
        theirs = [(known[row].system if key == SYSTEM else known[row].average).mean for row in rows]
        ours = means[side]
        for cell, *values in zip(cells, ours, places(ours), theirs, places(theirs), strict=True):
            cell.extend(map(float, values))
        notes.append(f"{name.lower()} {rank_correlation(ours, theirs):+.2f}")
    columns = [Column(name="Method")]
    for name in ("System", "Average"):
        columns += [
            Column(name=f"{name} (%)", form=".2f"),
            Column(name=f"{name}, place", form="g"),
            Column(name=f"{name}, paper", form=".2f"),
            Column(name=f"{name}, paper's place", form="g"),
        ]
    return Table(
        name="order",
        title="Order of the methods",
        columns=tuple(columns),
        rows=tuple(map(tuple, cells)),
        note=f"Spearman's rank correlation with the paper's order over {len(rows)} methods: "
        f"{', '.join(notes)}. Means over the seeds that all of them ran.",
    )


def shared_means(section: Section) -> tuple[list[str], tuple[list[float], list[float]]]:
    """Return the rows that ran, and their mean system and average accuracy over shared seeds."""
    labels = {
        row: label
        for row, label in by_row(section).items()
        if all(SYSTEM in run.summary for run in section.of(label))
    }
    seeds = [{run.seed for run in section.of(label)} for label in labels.values()]
    shared = set.intersection(*seeds) if seeds else set()
    if not shared:
        return [], ([], [])
    runs = [[run for run in section.of(each) if run.seed in shared] for each in labels.values()]
    system, average = (
        [float(np.mean([run.percent(key) for run in own])) for own in runs]
        for key in (SYSTEM, AVERAGE)
    )
    return list(labels), (system, average)


def places(values: Sequence[float]) -> list[float]:
    """Return the place of each value, 1 for the largest; equal ones share their mean place."""
    return [float(place) for place in stats.rankdata([-value for value in values])]


def rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN where either is constant."""
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return float("nan")
    return float(stats.spearmanr(ours, theirs).statistic)

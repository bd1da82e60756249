"""Tables beside the paper's: paired differences, stale parameters, and every run."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedhet_app.analysis import paper_a
from fedhet_app.analysis.correlation import paired_difference
from fedhet_app.analysis.labels import task_settings
from fedhet_app.analysis.study import Section, Study
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Cell, Column, Estimate, Spread, Table
from fedhet_app.analysis.tables.cost import relative_upload

_PAIRS = (
    ("has-fl", "random-budget"),
    ("has-fl", "random-budget-permute"),
    ("has-fl", "has-fl-off"),
    ("has-fl", "fjord"),
    ("fedavg", "has-fl"),
)


def difference_table(section: Section) -> Table | None:
    """Return paired differences in final accuracy; ``None`` where no two methods share a seed."""
    paper = paper_a.column(section.dataset)
    published = paper_a.DIFFERENCES.get(paper_a.source(section.dataset), {})
    rows: list[tuple[Cell, ...]] = []
    for label, other in _PAIRS:
        pairs = section.pairs(label, other)
        if pairs:
            row: tuple[Cell, ...] = (
                f"{paper_a.method(label)} minus {paper_a.method(other)}",
                *_difference(pairs),
            )
            rows.append((*row, published.get((label, other))) if paper else row)
    columns = [
        Column(name="Final accuracy of"),
        Column(name="n"),
        Column(name="Mean difference (points)", form="+.1f"),
        Column(name="Per seed (points)"),
        Column(name="Difference of mean p", form="+.3f"),
        *([Column(name=paper)] if paper else []),
    ]
    note = "Pairs share seed, partition, capacities and cohorts; 95 % t intervals over seeds."
    return _table(
        "paired-differences", "Paired differences, the matched control", columns, rows, note
    )


def stale_table(section: Section) -> Table | None:
    """Return what the parameters that no client trains do to the final model; ``None`` without."""
    rows = []
    for label in section.trained:
        stale = [run.summary["stale"] for run in section.of(label) if run.summary.get("stale")]
        if not stale:
            continue
        as_is, zeroed, cut = (
            [100 * each[key] for each in stale] for key in ("as-is", "classifier-zeroed", "slice")
        )
        gain = paired_difference(np.array(cut), np.array(as_is))
        spreads = [Spread.of(values) for values in (as_is, zeroed, cut)]
        widths = Spread.of([each["width"] for each in stale])
        rows.append((paper_a.method(label), len(stale), widths, *spreads, Estimate.of(gain)))
    columns = [
        Column(name="Algorithm"),
        Column(name="n"),
        Column(name="Trained width", form=".2f"),
        Column(name="As trained (%)"),
        Column(name="Classifier's outer columns zeroed (%)"),
        Column(name="All outer channels zeroed (%)"),
        Column(name="All zeroed minus as trained (points)", form="+.1f"),
    ]
    note = (
        "Accuracy of the final model with the channels beyond the trained width left as they are, "
        "cut off from the classifier alone, and cut off everywhere (the slice of that width)."
    )
    return _table("stale-parameters", "Stale parameters", columns, rows, note)


def all_runs_table(section: Section) -> Table | None:
    """Return every label, those of no other table too."""
    rows = []
    for label in section.labels:
        runs = section.of(label)
        losses = [_finite(run.summary.get("final-loss")) for run in runs]
        shares = [share for share in (relative_upload(section, run) for run in runs) if share]
        never, uncovered = (
            [100 * float(run.summary.get(key, math.nan)) for run in runs]
            for key in ("never-trained", "uncovered")
        )
        finals = ", ".join(f"{run.seed}: {run.final:.1f}" for run in runs)
        cells: list[Cell] = [
            Spread.of([run.best for run in runs]),
            Spread.of([run.final for run in runs]),
            # A run that diverged has no loss, and a mean over the others would hide it.
            "not finite" if np.isnan(losses).any() else Spread.of(losses),
            Spread.of([run.width for run in runs]),
            Spread.of(shares),
            Spread.of(never),
            Spread.of(uncovered),
        ]
        rows.append((label, len(runs), *cells, finals))
    columns = [
        Column(name="Label"),
        Column(name="n"),
        Column(name="Best (%)"),
        Column(name="Final (%)"),
        Column(name="Final loss (nats)", form=".3f"),
        Column(name="Mean p", form=".3f"),
        Column(name="Upload, of the full model's", form=".2f"),
        Column(name="Never trained (%)"),
        Column(name="Not covered at the end (%)"),
        Column(name="Final by seed (%)"),
    ]
    return _table("all-runs", "All runs", columns, rows)


def settings_table(section: Section) -> Table | None:
    """Return the options of no method in which labels differ; ``None`` where they are all alike."""
    values: dict[str, dict[str, list[str]]] = {}
    for label in section.labels:
        for key, value in task_settings(section.of(label)[0].config).items():
            values.setdefault(key, {}).setdefault(str(value), []).append(label)
    rows = [
        (key, value or "(none)", ", ".join(labels))
        for key, own in values.items()
        if len(own) > 1
        for value, labels in own.items()
    ]
    columns = [Column(name="Option"), Column(name="Value"), Column(name="Labels")]
    return _table("settings", "Options that are not the same in all runs", columns, rows)


def left_out_table(study: Study) -> Table | None:
    """Return the runs that no table shows, with the reason; ``None`` where there are none."""
    rows = [
        (each.label, str(each.seed), each.directory.name, each.reason) for each in study.left_out
    ]
    columns = [Column(name=name) for name in ("Label", "Seed", "Directory", "Reason")]
    return _table("left-out", "Runs left out", columns, rows)


def _finite(loss: float | None) -> float:
    return math.nan if loss is None else float(loss)


def _difference(pairs: Sequence[tuple[Run, Run]]) -> tuple[Any, ...]:
    ours, theirs = (np.array([pair[side].final for pair in pairs]) for side in (0, 1))
    gap = float(np.mean([run.width - other.width for run, other in pairs]))
    each = ", ".join(f"{run.seed}: {run.final - other.final:+.1f}" for run, other in pairs)
    return len(pairs), Estimate.of(paired_difference(ours, theirs)), each, gap


def _table(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[Cell, ...]],
    note: str = "",
) -> Table | None:
    if not rows:
        return None
    return Table(name=name, title=title, columns=tuple(columns), rows=tuple(rows), note=note)

"""Paper A's tables of accuracies: 2 (allocation), 3 (coverage), 5 (full models) and 6 (text).

Best and final accuracy and mean width over seeds, each beside the paper's. A method of the paper's
table that has no run keeps its row; the others appear where they ran.
"""

from collections.abc import Mapping, Sequence

from fedhet_app.analysis import paper_a
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Cell, Column, Spread, Table

_ALLOCATION = ("has-fl", "fjord", "uniform")
_COVERAGE = ("has-fl", "has-fl-off", "heterofl")
_FULL = ("fedavg", "scaffold", "fedprox")
_COMPARISON = {
    "fedavg": "full model",
    "scaffold": "full model, control variates",
    "fedprox": "full model, proximal term",
    "has-fl": "sub-model, adaptive",
    "random-budget": "sub-model, random",
    "random-budget-permute": "sub-model, random",
    "fedrolex": "sub-model, rolling",
}
_SEEDS = (
    "Mean ± sample standard deviation over the n seeds that a third of these methods ran (two at "
    "least); final is the last round's accuracy, best that of the best evaluated round."
)
_ON_PART = (
    " Peak to final is between evaluations on the same part of the test set: the last round's, on "
    "all of it, is left out."
)

Runs = Mapping[str, tuple[Run, ...]]


def allocation_table(section: Section) -> Table | None:
    """Return Table 2, which is Table 6 on Shakespeare; ``None`` without a run for it."""
    runs = section.comparable(_ALLOCATION)
    if not runs:
        return None
    number = 6 if section.dataset == "shakespeare" else 2
    rows = [
        (paper_a.method(label), *_cells(section, runs.get(label, ()), label))
        for label in _shown(section, runs, _ALLOCATION)
    ]
    return Table(
        name=f"table-{number}",
        title=f"Table {number}. Sub-model allocation strategies",
        columns=(Column(name="Algorithm"), *_columns(section)),
        rows=tuple(rows),
        note=_SEEDS,
    )


def coverage_table(section: Section) -> Table | None:
    """Return Table 3; ``None`` without a run that HAS-FL's could be compared with."""
    runs = section.comparable(_COVERAGE)
    if not runs.keys() - {"has-fl"}:
        return None
    paper = paper_a.column(section.dataset)
    known = paper_a.DROPS.get(paper_a.source(section.dataset), {})
    rows: list[tuple[Cell, ...]] = []
    for label in _shown(section, runs, _COVERAGE):
        own = runs.get(label, ())
        drop = Spread.of([-run.fall for run in own])
        drops: list[Cell] = [drop, known.get(label)] if paper else [drop]
        rows.append((paper_a.method(label), *_cells(section, own, label), *drops))
    on_part = any(run.config.get("evaluate-examples") for own in runs.values() for run in own)
    names = ["Peak to final (points)", f"Peak to final, {paper}"][: 2 if paper else 1]
    return Table(
        name="table-3",
        title="Table 3. The coverage guarantee",
        columns=(
            Column(name="Configuration"),
            *_columns(section),
            *(Column(name=name, form="+.1f") for name in names),
        ),
        rows=tuple(rows),
        note=_SEEDS + (_ON_PART if on_part else ""),
    )


def comparison_table(section: Section) -> Table | None:
    """Return Table 5; ``None`` without a run of a full-model method."""
    runs = section.comparable(_COMPARISON)
    if not runs.keys() & set(_FULL):
        return None
    rows = [
        (paper_a.method(label), _COMPARISON[label], *_cells(section, runs.get(label, ()), label))
        for label in _shown(section, runs, tuple(_COMPARISON))
    ]
    return Table(
        name="table-5",
        title="Table 5. Comparison with full-model methods",
        columns=(Column(name="Algorithm"), Column(name="Type"), *_columns(section)),
        rows=tuple(rows),
        note=_SEEDS,
    )


def _shown(section: Section, runs: Runs, labels: Sequence[str]) -> list[str]:
    """Return the labels that ran, or that the paper has a row of on this data set."""
    paper = paper_a.ACCURACIES.get(paper_a.source(section.dataset), {})
    return [label for label in labels if label in runs or label in paper]


def _columns(section: Section) -> list[Column]:
    paper = paper_a.column(section.dataset)
    columns = [Column(name="n")]
    for name, unit, form in (
        ("Best", " (%)", ".1f"),
        ("Final", " (%)", ".1f"),
        ("Mean p", "", ".2f"),
    ):
        columns.append(Column(name=f"{name}{unit}", form=form))
        if paper:
            columns.append(Column(name=f"{name}, {paper}", form=form))
    return columns


def _cells(section: Section, runs: Sequence[Run], label: str) -> list[Cell]:
    measured = {
        "best": Spread.of([run.best for run in runs]),
        "final": Spread.of([run.final for run in runs]),
        "width": Spread.of([run.width for run in runs]),
    }
    published = paper_a.published(section.dataset, label)
    cells: list[Cell] = [len(runs)]
    for key, value in measured.items():
        cells += [value, published[key]] if paper_a.column(section.dataset) else [value]
    return cells

"""Paper B's Table 2: accuracies under more and less heterogeneity."""

from collections.abc import Iterator, Mapping

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.paper_b_labels import Alphas, lines
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Cell, Column, Spread, Table
from fedhet_app.analysis.tables.mixture import AVERAGE, SYSTEM

SIDES = ("inter", "intra")
_BETWEEN = ("between clients", "within clients")
_NOTE = (
    "Mean ± sample standard deviation over the n seeds that a label ran in all its settings here; "
    "the paper's are of its Table 2."
)


def intensity_tables(section: Section) -> Iterator[Table]:
    """Yield a table for each alpha that varies while the other is as in Table 1."""
    for side, name in enumerate(SIDES):
        chosen = {label: along(own, side) for label, own in lines(section).items()}
        chosen = {label: own for label, own in chosen.items() if len(own) > 1}
        if chosen:
            yield _table(section, chosen, side, name)


def along(own: Mapping[Alphas, str], side: int) -> dict[float, str]:
    """Return a line's labels by one alpha, ascending, the other at the paper's usual value."""
    other = 1 - side
    found = {
        alphas[side]: label
        for alphas, label in own.items()
        if alphas[other] == paper_b.USUAL[other]
    }
    return dict(sorted(found.items()))


def shared_runs(section: Section, own: Mapping[float, str]) -> dict[float, list[Run]]:
    """Return the runs by alpha, of the seeds that ran under every one of them."""
    runs = {
        alpha: [run for run in section.of(label) if SYSTEM in run.summary]
        for alpha, label in own.items()
    }
    shared = set.intersection(*({run.seed for run in each} for each in runs.values()))
    return {alpha: [run for run in each if run.seed in shared] for alpha, each in runs.items()}


def _table(
    section: Section, chosen: Mapping[str, Mapping[float, str]], side: int, name: str
) -> Table:
    alphas = sorted({alpha for own in chosen.values() for alpha in own})
    rows = []
    for label, own in chosen.items():
        runs = shared_runs(section, own)
        cells: list[Cell] = [label, len(next(iter(runs.values())))]
        for key in (SYSTEM, AVERAGE):
            for alpha in alphas:
                known = (
                    paper_b.published(section.dataset, section.of(own[alpha])[0].config)
                    if alpha in own
                    else None
                )
                cells.append(Spread.of([run.percent(key) for run in runs.get(alpha, [])]))
                theirs = known and (known.system if key == SYSTEM else known.average)
                cells.append(theirs.mean if theirs else None)
        rows.append(tuple(cells))
    columns = [Column(name="Label"), Column(name="n")]
    for metric in ("System", "Average"):
        for alpha in alphas:
            at = f"{metric} at {alpha:g}"
            columns += [
                Column(name=f"{at} (%)", form=".2f"),
                Column(name=f"{at}, paper", form=".2f"),
            ]
    kept = [
        position
        for position, column in enumerate(columns)
        if "paper" not in column.name or any(row[position] is not None for row in rows)
    ]
    return Table(
        name=f"table-2-{name}",
        title=f"Table 2. Heterogeneity {_BETWEEN[side]}: alpha-{name}",
        columns=tuple(columns[position] for position in kept),
        rows=tuple(tuple(row[position] for position in kept) for row in rows),
        note=_NOTE,
    )

"""The allocation audit (Paper A, Section 4.4 and Table 4), from results alone.

Whether an estimate that steers widths carries information about the clients' data, or restates
their capacity: correlations of each run, pooled over seeds, with intervals; the same inside each
capacity tier; and final accuracy against a control that spends the budget at random. Any numeric
column of ``clients.jsonl`` can be the estimate.

Deviations:

1. The paper's table leaves r(TV, capacity) out; chance values of it drive the sign of the raw
   r(estimate, TV) at 20 clients, so it is given.
2. A verdict needs a whole 95 % interval pooled over runs, where the paper reads single values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet_app.analysis.audit import verdict
from fedhet_app.analysis.audit.control import Comparison, compare, unpaired
from fedhet_app.analysis.audit.groups import Group, full_names, grouped, method_name
from fedhet_app.analysis.audit.measures import LABELS, RunAudit, audit_run
from fedhet_app.analysis.audit.runs import find_runs, read_run
from fedhet_app.analysis.correlation import Correlation, pooled
from fedhet_app.config import DEFAULTS
from fedhet_app.errors import FedhetError
from fedhet_app.results import CLIENTS

CONTROL = "random-budget"
"""The strategy whose runs are controls without being named."""


@dataclass(frozen=True, kw_only=True)
class GroupAudit:
    """The runs of one method on one task, which differ in nothing but the seed.

    Attributes:
        name: Strategy, data set, and the options that tell it from the other groups.
        strategy: Its strategy.
        dataset: Its data set.
        options: Every option that is not at its default.
        runs: By seed, ascending.
        pooled: Correlations over all runs, by the keys of ``LABELS``.
        controls: Comparisons with controls of the same task.
        verdicts: What the evidence supports, in sentences.
        cautions: What weakens it.
    """

    name: str
    strategy: str
    dataset: str
    options: Mapping[str, Any]
    runs: tuple[RunAudit, ...]
    pooled: Mapping[str, Correlation]
    controls: tuple[Comparison, ...]
    verdicts: tuple[str, ...]
    cautions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Everything: one entry per method and task.

    Attributes:
        column: The column that is the estimate.
        columns: All numeric columns that any of the runs has.
        groups: One per method and task.
        cautions: Controls without a partner, and why.
    """

    column: str
    columns: tuple[str, ...]
    groups: tuple[GroupAudit, ...]
    cautions: tuple[str, ...]


def audit(
    directories: Sequence[Path],
    column: str = "divergence",
    control: Sequence[Path] | None = None,
) -> Audit:
    """Audit runs.

    Args:
        directories: Run directories, or folders with run directories anywhere below.
        column: The column that is the estimate.
        control: Likewise directories, of runs to compare final accuracy with; runs of random-budget
            among ``directories`` are controls anyway.

    Raises:
        FedhetError: A directory holds no run, or a file of a run cannot be read.
    """
    methods = grouped([read_run(path, column) for path in find_runs(directories)])
    named = grouped([read_run(path, column) for path in find_runs(control or ())])
    at_random = [each for each in methods if each.method["strategy"] == CONTROL]
    groups = tuple(
        _audit_group(name, each, column, named if each in at_random else [*named, *at_random])
        for name, each in zip(full_names(methods), methods, strict=True)
    )
    notes = (unpaired(run, [each.runs for each in methods]) for each in named for run in each.runs)
    columns = {name for each in methods for run in each.runs for name in run.columns}
    return Audit(
        column=column,
        columns=tuple(sorted(columns)),
        groups=groups,
        cautions=tuple(filter(None, notes)),
    )


def check_column(result: Audit) -> None:
    """Refuse an audit of nothing: a report may hold runs without estimates, a question may not.

    Raises:
        FedhetError: No run has a number in the column that is the estimate.
    """
    if result.column not in result.columns:
        there = ", ".join(result.columns) or "none"
        remedy = f"no run has a finite number there in {CLIENTS}; name a column that has: {there}"
        raise FedhetError("--column", result.column, remedy)


def _audit_group(name: str, group: Group, column: str, rivals: Sequence[Group]) -> GroupAudit:
    runs = tuple(audit_run(run, column) for run in group.runs)
    pools = {key: pooled([run.correlations[key] for run in runs]) for key in LABELS}
    controls = tuple(_comparisons(group, rivals))
    return GroupAudit(
        name=name,
        strategy=group.method["strategy"],
        dataset=group.method["dataset"],
        options={key: value for key, value in group.method.items() if value != DEFAULTS.get(key)},
        runs=runs,
        pooled=pools,
        controls=controls,
        verdicts=verdict.verdicts(pools, controls, column),
        cautions=verdict.cautions(
            pools,
            adaptations=[run.adaptations for run in runs],
            notes=[f"seed {run.seed}: {note}" for run in runs for note in run.notes],
            unfinished=sum(not run.finished for run in runs),
            repeated=group.repeated,
        ),
    )


def _comparisons(group: Group, rivals: Sequence[Group]) -> Iterator[Comparison]:
    """Compare with every control of the same task; named ones come first."""
    compared = {group.key}
    for rival in rivals:
        if rival.key in compared or rival.runs[0].task != group.runs[0].task:
            continue
        comparison = compare(group.runs, rival.runs, method_name(rival))
        if comparison is not None:
            compared.add(rival.key)
            yield comparison

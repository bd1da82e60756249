"""Runs that differ in nothing but the seed belong together; others are told apart by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet_app.analysis.audit.runs import AuditedRun
from fedhet_app.analysis.labels import MATCH
from fedhet_app.config import DEFAULTS

Key = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one method on one task.

    Attributes:
        runs: One per seed, ascending.
        repeated: Directories left out because another run has the same options and seed: such runs
            are copies, and counting both would claim evidence that is not there.
    """

    runs: tuple[AuditedRun, ...]
    repeated: tuple[Path, ...]

    @property
    def method(self) -> Mapping[str, Any]:
        """The options that all its runs share."""
        return self.runs[0].method

    @property
    def key(self) -> Key:
        """The same, to look groups up by."""
        return key_of(self.runs[0])


def key_of(run: AuditedRun) -> Key:
    """Return what two runs of one group have in common."""
    return tuple(sorted(run.method.items()))


def grouped(runs: Sequence[AuditedRun]) -> list[Group]:
    """Return the groups in the order of their first runs; of copies a finished one is kept."""
    by_key: dict[Key, list[AuditedRun]] = {}
    for run in runs:
        by_key.setdefault(key_of(run), []).append(run)
    return [_group(members) for members in by_key.values()]


def method_name(group: Group) -> str:
    """Return the strategy, and those of its own options that are not at their defaults."""
    strategy = group.method["strategy"]
    own = [key for key in group.method if key.startswith(f"{strategy}.") and key != MATCH]
    told = [key for key in own if group.method[key] != DEFAULTS.get(key)]
    options = ", ".join(f"{key.partition('.')[2]}={group.method[key]}" for key in told)
    return f"{strategy} ({options})" if told else strategy


def full_names(groups: Sequence[Group]) -> list[str]:
    """Return each group's method, data set, and the options of its task that differ among them."""
    tasks = [group.runs[0].task for group in groups]
    differing = [key for key in tasks[0] if len({task.get(key) for task in tasks}) > 1]
    names = []
    for group, task in zip(groups, tasks, strict=True):
        told = [f"{key}={task.get(key)}" for key in differing if key != "dataset"]
        names.append(", ".join([f"{method_name(group)} on {task['dataset']}", *told]))
    return names


def _group(members: Sequence[AuditedRun]) -> Group:
    kept: dict[int, AuditedRun] = {}
    for run in sorted(members, key=lambda run: not run.summary):
        kept.setdefault(run.seed, run)
    runs = tuple(kept[seed] for seed in sorted(kept))
    repeated = tuple(run.directory for run in members if kept[run.seed] is not run)
    return Group(runs=runs, repeated=repeated)

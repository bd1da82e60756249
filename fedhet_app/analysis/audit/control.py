"""An allocation against a control that spends the same budget without looking at the clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhet_app.analysis.audit.runs import AuditedRun
from fedhet_app.analysis.correlation import Difference, paired_difference

MATCHED = 0.03
"""Mean widths further apart are not one budget; in Paper A they are 0.52 and the control's 0.49."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Paired runs of a method and a control on the same task.

    Attributes:
        control: The control's name.
        seeds: The seeds both have finished.
        accuracy: Final accuracy minus the control's, as fractions.
        width_gap: Mean width of the rounds minus the control's.
    """

    control: str
    seeds: tuple[int, ...]
    accuracy: Difference
    width_gap: float

    @property
    def matched(self) -> bool:
        """Whether both spent the same budget."""
        return abs(self.width_gap) <= MATCHED


def compare(
    runs: Sequence[AuditedRun], controls: Sequence[AuditedRun], name: str
) -> Comparison | None:
    """Pair runs of one method with runs of one control by seed.

    Args:
        runs: One method, distinct seeds.
        controls: One control, distinct seeds.
        name: The control's.

    Returns:
        ``None`` where no seed has finished in both.
    """
    ours, theirs = _finished(runs), _finished(controls)
    seeds = tuple(sorted(set(ours) & set(theirs)))
    if not seeds:
        return None
    accuracy, width = (
        [np.array([each[seed][key] for seed in seeds], dtype=np.float64) for each in (ours, theirs)]
        for key in ("final-accuracy", "mean-width")
    )
    return Comparison(
        control=name,
        seeds=seeds,
        accuracy=paired_difference(*accuracy),
        width_gap=paired_difference(*width).mean,
    )


def unpaired(control: AuditedRun, methods: Sequence[Sequence[AuditedRun]]) -> str:
    """Return why a control run has no partner among the runs of any method, or nothing."""
    name = f"control {control.directory}"
    if not control.summary:
        return f"{name} has not finished: left out"
    if all(runs[0].method == control.method for runs in methods):
        return f"{name} is left out: it is a run of the audited method"
    same_task = [runs for runs in methods if runs[0].task == control.task]
    if any(control.seed in _finished(runs) for runs in same_task):
        return ""
    if same_task:
        return f"{name} is left out: no finished run has its seed, {control.seed}"
    ours, theirs = methods[0][0].task, control.task
    key = next(key for key in theirs if theirs[key] != ours.get(key))
    return f"{name} is left out: its {key} is {theirs[key]!r}, not {ours.get(key)!r}"


def _finished(runs: Sequence[AuditedRun]) -> dict[int, Mapping[str, Any]]:
    return {run.seed: run.summary for run in runs if run.summary}

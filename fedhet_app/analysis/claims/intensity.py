"""Claim B7: less skew between clients is harder for everybody (Paper B, Table 2).

Where labels are skewed, a client has few classes to tell apart. Along alpha-intra the paper's own
numbers are not monotone, so nothing is claimed of it.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from fedhet_app.analysis.claims.base import MIN_SEEDS, ROUNDING, Claim, judge
from fedhet_app.analysis.paper_b_labels import lines
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.intensity import along, shared_runs
from fedhet_app.analysis.tables.mixture import AVERAGE, SYSTEM

FALLING_SHARE = 0.9
SETTINGS = 3

_ByAlpha = Mapping[float, Sequence[Run]]


def b7(section: Section) -> list[Claim]:
    """Accuracy falls as alpha-inter rises, in nearly every cell."""
    measured = _measured(section)
    cells = [step < 0 for own in measured.values() for step in _steps(own, None)]
    seeds = set.intersection(*(_seeds(own) for own in measured.values())) if measured else set()
    by_seed = {
        seed: [step < 0 for own in measured.values() for step in _steps(own, seed)]
        for seed in sorted(seeds)
    }
    share = float(np.mean(cells)) if cells else np.nan
    return [
        judge(
            section,
            "B7",
            "Accuracy falls as alpha-inter rises.",
            statistic="steps to the next larger alpha-inter in which the mean over seeds falls, of "
            f"system and average accuracy of {', '.join(measured) or 'each method'}",
            threshold=f"at least {FALLING_SHARE:.0%} of them",
            per_seed={seed: f"{sum(own)} of {len(own)}" for seed, own in by_seed.items()},
            measured=f"{sum(cells)} of {len(cells)} ({share:.0%})" if cells else "",
            holds=share >= FALLING_SHARE - ROUNDING,
            missing=""
            if cells
            else f"a method at {SETTINGS} values of alpha-inter, {MIN_SEEDS} seeds each",
        )
    ]


def _measured(section: Section) -> dict[str, _ByAlpha]:
    """Return the runs by alpha-inter of the methods that ran at enough, on enough seeds."""
    found = {label: shared_runs(section, along(own, 0)) for label, own in lines(section).items()}
    return {
        label: own
        for label, own in found.items()
        if len(own) >= SETTINGS and len(_seeds(own)) >= MIN_SEEDS
    }


def _seeds(own: _ByAlpha) -> set[int]:
    return {run.seed for runs in own.values() for run in runs}


def _steps(own: _ByAlpha, seed: int | None) -> list[float]:
    """Return the changes of both accuracies along alpha, of the mean or of one seed."""
    return [
        after - before
        for key in (SYSTEM, AVERAGE)
        for before, after in pairwise(
            float(np.mean([run.percent(key) for run in runs if seed in (None, run.seed)]))
            for runs in own.values()
        )
    ]

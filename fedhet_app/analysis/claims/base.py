"""What a claim is, and how it is judged: a statistic against a threshold, seed by seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedhet_app.analysis.audit.verdict import counted
from fedhet_app.analysis.claims import paper, paper_b
from fedhet_app.analysis.correlation import Correlation, Difference, paired_difference
from fedhet_app.analysis.study import Section

HOLDS, FAILS, NOT_MEASURED = "holds", "does not hold", "not measured: "
MIN_SEEDS = 3
ROUNDING = 1e-9
"""Percent taken of decimal fractions may miss a threshold they meet by this much."""

HAS_FL, OFF, COLLAPSE = "has-fl", "has-fl-off", "collapse-"
COLLAPSE_PRESET = ", collapse preset"

PerSeed = Mapping[int, float | str]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the paper on one data set.

    Attributes:
        id: Its number, with the part of it and the preset where there are several.
        dataset: The data set it was evaluated on.
        suite: The sweep whose runs it was evaluated on, empty for runs of no sweep.
        statement: What is claimed, in one sentence.
        statistic: What is measured.
        threshold: When the claim holds.
        paper: What the paper reports.
        per_seed: The statistic of each seed, a number or a short text.
        measured: Its summary over seeds.
        verdict: ``holds``, ``does not hold``, or ``not measured:`` and what is missing.
    """

    id: str
    dataset: str
    suite: str
    statement: str
    statistic: str
    threshold: str
    paper: str
    per_seed: PerSeed
    measured: str
    verdict: str


def judge(
    section: Section,
    id: str,
    statement: str,
    *,
    statistic: str,
    threshold: str,
    per_seed: PerSeed,
    measured: str,
    holds: bool,
    missing: str = "",
) -> Claim:
    """Return a judged claim; where something is missing, whether it ``holds`` is not asked."""
    verdict = HOLDS if holds else FAILS
    source = paper_b if section.dual else paper
    return Claim(
        id=id,
        dataset=section.dataset,
        suite=section.suite,
        statement=statement,
        statistic=statistic,
        threshold=threshold,
        paper=source.reported(id.removesuffix(COLLAPSE_PRESET), section.dataset),
        per_seed=per_seed,
        measured=measured,
        verdict=NOT_MEASURED + missing if missing else verdict,
    )


def contrast(
    section: Section, id: str, statement: str, *, more: str, less: str, at_least: float
) -> Claim:
    """Judge a mean difference in final accuracy between two labels, paired by seed.

    Args:
        section: The runs.
        id: The claim.
        statement: What is claimed.
        more: The label that is claimed to do better.
        less: The other.
        at_least: Smallest mean of ``more`` minus ``less`` with which it holds, in points.
    """
    pairs = section.pairs(more, less)
    difference = differences([(ours.final, theirs.final) for ours, theirs in pairs])
    return judge(
        section,
        id,
        statement,
        statistic=f"final accuracy of {more} minus that of {less}, paired by seed, in points",
        threshold=f"mean >= {at_least:g}",
        per_seed={ours.seed: ours.final - theirs.final for ours, theirs in pairs},
        measured=points(difference),
        holds=difference.mean >= at_least - ROUNDING,
        missing=lacks(section, more, less),
    )


def differences(pairs: list[tuple[float, float]]) -> Difference:
    """Return the mean difference of pairs with its interval."""
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return paired_difference(table[:, 0], table[:, 1])


def lacks(section: Section, *labels: str, seeds: int = MIN_SEEDS) -> str:
    """Return which runs are missing for a comparison of labels over seeds, or nothing."""
    absent = [label for label in labels if not section.of(label)]
    if absent:
        return " and ".join(absent)
    shared = set.intersection(*({run.seed for run in section.of(label)} for label in labels))
    if len(shared) >= seeds:
        return ""
    finished = ", ".join(map(str, sorted(shared))) or "none"
    return f"{counted(seeds, 'seed')} of {' and '.join(labels)} (finished: {finished})"


def no_fall(section: Section, *labels: str) -> str:
    """Return which runs have no evaluation that a fall could be measured from, or nothing."""
    bare = [run for label in labels for run in section.of(label) if math.isnan(run.fall)]
    named = ", ".join(f"{run.label} seed {run.seed}" for run in bare)
    return f"an evaluation before the last round of {named}" if bare else ""


def num_classes(section: Section) -> int:
    """Return the number of classes of a section's data set, 0 where no run says it."""
    histograms = section.runs[0].partition.get("class-histograms")
    return len(histograms[0]) if histograms else 0


def points(difference: Difference) -> str:
    """Return a mean paired difference in words."""
    if not difference.n:
        return ""
    if difference.reason:
        return f"{difference.mean:+.1f} points, one seed"
    interval = f"95 % interval [{difference.low:+.1f}, {difference.high:+.1f}]"
    seeds = counted(difference.n, "seed")
    return f"{difference.mean:+.1f} ± {difference.sd:.1f} points, {interval}, {seeds}"


def interval(correlation: Correlation) -> str:
    """Return a pooled correlation in words; nothing where there was none to pool."""
    if not correlation.parts + correlation.left_out:
        return ""
    if correlation.reason:
        return f"undefined: {correlation.reason}"
    ends = f"95 % interval [{correlation.low:+.2f}, {correlation.high:+.2f}]"
    return f"pooled r {correlation.r:+.2f}, {ends}, {counted(correlation.parts, 'seed')}"

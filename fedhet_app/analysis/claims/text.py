"""Claim A14: on text the order of the allocations is turned round (Paper A, Section 4.6)."""

from collections.abc import Mapping

import numpy as np

from fedhet_app.analysis.claims.base import (
    HAS_FL,
    ROUNDING,
    Claim,
    PerSeed,
    judge,
    lacks,
    no_fall,
)
from fedhet_app.analysis.study import Section

TEXT_DROP = 2.0  # points: between the paper's 4.0 of HAS-FL and the others' 0.9
_ON_TEXT = ("uniform", "fjord", HAS_FL)


def a14(section: Section) -> list[Claim]:
    """On text the order of the allocations is turned round."""
    final = {label: {run.seed: run.final for run in section.of(label)} for label in _ON_TEXT}
    drop = {label: {run.seed: run.fall for run in section.of(label)} for label in _ON_TEXT}
    uniform, fjord, ours = _means(final)
    *others, dropped = _means(drop)
    missing = lacks(section, *_ON_TEXT)
    return [
        judge(
            section,
            "A14 (a)",
            "On text Uniform ends at or above FjORD, and FjORD above HAS-FL.",
            statistic="final accuracy of Uniform, FjORD and HAS-FL",
            threshold="mean of Uniform >= mean of FjORD > mean of HAS-FL",
            per_seed=_side_by_side(final),
            measured=f"{uniform:.1f}, {fjord:.1f}, {ours:.1f}",
            holds=uniform >= fjord - ROUNDING and fjord > ours + ROUNDING,
            missing=missing,
        ),
        judge(
            section,
            "A14 (b)",
            "On text HAS-FL alone falls from its peak.",
            statistic="highest minus last accuracy of the evaluations on the same examples, of "
            "Uniform, FjORD and HAS-FL, in points",
            threshold=f"mean of HAS-FL >= {TEXT_DROP:g}, means of the others below it",
            per_seed=_side_by_side(drop),
            measured=f"{others[0]:.1f}, {others[1]:.1f}, {dropped:.1f}",
            holds=dropped >= TEXT_DROP - ROUNDING
            and all(each < TEXT_DROP - ROUNDING for each in others),
            missing=missing or no_fall(section, *_ON_TEXT),
        ),
    ]


def _means(values: Mapping[str, Mapping[int, float]]) -> list[float]:
    return [float(np.mean(list(own.values()))) if own else np.nan for own in values.values()]


def _side_by_side(values: Mapping[str, Mapping[int, float]]) -> PerSeed:
    seeds = set.intersection(*(set(own) for own in values.values()))
    return {
        seed: ", ".join(f"{own[seed]:.1f}" for own in values.values()) for seed in sorted(seeds)
    }

"""Claims B5, B6 and B8: what a mixture adds to FedDRM (Paper B, Section 3.2)."""

from itertools import pairwise

import numpy as np

from fedhet_app.analysis.claims.base import ROUNDING, Claim, judge
from fedhet_app.analysis.claims.between import (
    FEDDRM,
    METRICS,
    PER_COMPONENT,
    SHARED,
    Bound,
    between,
    unmeasured,
)
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.mixture import AVERAGE, SYSTEM

MIXTURE_SEEDS = 5
TWO = "fedspm-c2"


def b5(section: Section) -> list[Claim]:
    """FedSPM does better than FedDRM."""
    return [
        between(
            section,
            f"B5 ({part})",
            f"FedSPM's {METRICS[key]} accuracy is above FedDRM's.",
            more=SHARED,
            less=FEDDRM,
            key=key,
            bound=Bound(above=0.0),
            seeds=MIXTURE_SEEDS,
        )
        for part, key in (("a", SYSTEM), ("b", AVERAGE))
    ]


def b6(section: Section) -> list[Claim]:
    """The second component gains the most."""
    labels = (FEDDRM, TWO, SHARED)
    shared = set.intersection(*({run.seed for run in section.of(label)} for label in labels))
    table = {
        seed: [
            run.percent(SYSTEM) for each in labels for run in section.of(each) if run.seed == seed
        ]
        for seed in sorted(shared)
    }
    steps = {seed: [b - a for a, b in pairwise(own)] for seed, own in table.items()}
    second, third = np.mean(list(steps.values()), axis=0) if steps else (np.nan, np.nan)
    return [
        judge(
            section,
            "B6",
            "A second component gains more than a third one, and that loses nothing.",
            statistic="gain in system accuracy from one component (feddrm) to two, and from two to "
            "three, paired by seed, in points",
            threshold="first mean > second mean >= 0",
            per_seed={seed: f"{a:+.1f}, {b:+.1f}" for seed, (a, b) in steps.items()},
            measured=f"{second:+.1f}, {third:+.1f}" if steps else "",
            holds=bool(second > third + ROUNDING and third >= -ROUNDING),
            missing=unmeasured(section, *labels),
        )
    ]


def b8(section: Section) -> list[Claim]:
    """Encoders of their own are not worth their data on benchmarks.

    The paper's differences are below a point, so that three seeds may well miss them.
    """
    return [
        between(
            section,
            f"B8 ({part})",
            f"With one encoder for all components {METRICS[key]} accuracy is not below that with "
            "one for each.",
            more=SHARED,
            less=PER_COMPONENT,
            key=key,
            bound=Bound(low=0.0),
        )
        for part, key in (("a", SYSTEM), ("b", AVERAGE))
    ]

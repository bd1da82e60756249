"""Claims B2 and B13: who answers a query (Paper B, Sections 3.2 and 4)."""

import numpy as np

from fedhet_app.analysis.claims.base import ROUNDING, Claim, judge
from fedhet_app.analysis.claims.between import (
    FEDDRM,
    FEDGMM,
    NAMES,
    PER_COMPONENT,
    SHARED,
    Bound,
    between,
    unmeasured,
)
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.mixture import AVERAGE, ROUTING, SYSTEM

ROUTED_PERCENT = 98.0
ROUTED_POINTS = 0.5
PARAMETRIC_POINTS = 20.0
TRAINED_FEATURES = "fedgmm-trained-features"
"""The label of a run of FedGMM whose Gaussians are over FedSPM's trained routing features."""


def b2(section: Section) -> list[Claim]:
    """Density ratios find nearly every query's client, so that nothing is lost by routing."""
    return [
        _routed(section, f"B2 ({part})", label)
        for part, label in zip("abc", (FEDDRM, SHARED, PER_COMPONENT), strict=True)
    ]


def b13(section: Section) -> list[Claim]:
    """Gaussians that all clients share cannot tell eight clients apart."""
    return [
        between(
            section,
            id,
            f"Density ratios route better than Gaussians over {features}.",
            more=FEDDRM,
            less=label,
            key=ROUTING,
            bound=Bound(low=PARAMETRIC_POINTS),
        )
        for id, label, features in (
            ("B13 (a)", FEDGMM, "random features"),
            ("B13 (b)", TRAINED_FEATURES, "FedSPM's trained routing features"),
        )
    ]


def _routed(section: Section, id: str, label: str) -> Claim:
    runs = section.of(label)
    own = {
        run.seed: (run.percent(ROUTING), run.percent(SYSTEM), run.percent(AVERAGE)) for run in runs
    }
    routing, system, average = np.mean(list(own.values()), axis=0) if own else [np.nan] * 3
    return judge(
        section,
        id,
        f"{NAMES[label]} routes nearly every query to its client, and loses nothing by it.",
        statistic="routing accuracy in percent; system minus average accuracy in points",
        threshold=f"mean routing >= {ROUTED_PERCENT:g}; mean difference at most {ROUTED_POINTS:g} "
        "apart",
        per_seed={seed: f"{r:.2f}; {s - a:+.2f}" for seed, (r, s, a) in own.items()},
        measured=f"{routing:.2f}; {system - average:+.2f}" if own else "",
        holds=bool(
            routing >= ROUTED_PERCENT - ROUNDING
            and abs(system - average) <= ROUTED_POINTS + ROUNDING
        ),
        missing=unmeasured(section, label, key=ROUTING) or unmeasured(section, label),
    )

"""Claims A1 to A4: what HAS-FL's estimate of heterogeneity measures (Paper A, Section 4.4).

An estimate is the smoothed one of the last adaptation, over all clients of a run.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedhet_app.analysis.audit.measures import RunAudit, audit_run
from fedhet_app.analysis.audit.runs import read_run
from fedhet_app.analysis.claims.base import HAS_FL, Claim, PerSeed, interval, judge, lacks
from fedhet_app.analysis.correlation import Correlation, pooled
from fedhet_app.analysis.study import Section

CONFOUND = -0.5
MIN_ADAPTATIONS = 10
ALLOCATION_BOUND = 0.2
ORACLE = "estimator-oracle-tv"
ESTIMATORS: Mapping[str, tuple[str, str]] = {
    "paper": (HAS_FL, "iid-paper"),
    "leave-one-out": ("estimator-leave-one-out", "iid-leave-one-out"),
    "common-core": ("estimator-common-core", "iid-common-core"),
}
"""The labels of an estimator's runs on skewed and on identical data."""

ESTIMATE = "divergence"
TO_CAPACITY = "estimate-capacity"
TO_SKEW = "estimate-tv-given-capacity"
OF_WIDTH = "width-tv-given-capacity"


def audited(section: Section, label: str) -> dict[int, RunAudit]:
    """Return the audits of a label's runs by seed."""
    return {
        run.seed: audit_run(read_run(run.directory, ESTIMATE), ESTIMATE)
        for run in section.of(label)
    }


def correlations(runs: Mapping[int, RunAudit], key: str) -> dict[int, Correlation]:
    """Return one correlation of every run by seed; ``key`` is one of the audit's."""
    return {seed: run.correlations[key] for seed, run in sorted(runs.items())}


def a1(section: Section) -> list[Claim]:
    """The estimate falls with capacity."""
    runs = audited(section, HAS_FL)
    known = correlations(runs, TO_CAPACITY)
    whole = pooled(list(known.values()))
    return [
        judge(
            section,
            "A1",
            "HAS-FL's divergence estimate falls with capacity, on every seed.",
            statistic="r(estimate, capacity)",
            threshold=f"below 0 on every seed, pooled <= {CONFOUND:g}",
            per_seed=_shown(known),
            measured=interval(whole),
            holds=all(each.r < 0 for each in known.values()) and whole.r <= CONFOUND,
            missing=lacks(section, HAS_FL) or _few_adaptations(runs) or _undefined(known),
        )
    ]


def a2(section: Section) -> list[Claim]:
    """With capacity held fixed, the estimate says nothing of the data; an oracle does."""
    estimate = correlations(audited(section, HAS_FL), TO_SKEW)
    oracle = correlations(audited(section, ORACLE), TO_SKEW)
    whole, control = pooled(list(estimate.values())), pooled(list(oracle.values()))
    statistic = "r(estimate, TV | capacity), pooled over seeds"
    return [
        judge(
            section,
            "A2",
            "Once capacity is held fixed, the estimate does not rise with label skew.",
            statistic=statistic,
            threshold="95 % interval not wholly above 0",
            per_seed=_shown(estimate),
            measured=interval(whole),
            holds=whole.sign <= 0,
            missing=lacks(section, HAS_FL) or _undefined(estimate),
        ),
        judge(
            section,
            "A2, positive control",
            "The same test finds the skew where the estimate is the true label distance: 1 by "
            "construction, a check of the pipeline.",
            statistic=statistic,
            threshold="95 % interval wholly above 0",
            per_seed=_shown(oracle),
            measured=interval(control),
            holds=control.sign > 0,
            missing=lacks(section, ORACLE) or _undefined(oracle),
        ),
    ]


def a3(section: Section) -> list[Claim]:
    """The widths that are allotted do not follow the data."""
    known = correlations(audited(section, HAS_FL), OF_WIDTH)
    defined = [each.r for each in known.values() if not each.reason]
    mean = float(np.mean(defined)) if defined else math.nan
    return [
        judge(
            section,
            "A3",
            "The widths that HAS-FL allots do not follow label skew.",
            statistic="r(allotted width, TV | capacity)",
            threshold=f"mean over seeds <= {ALLOCATION_BOUND:g}",
            per_seed=_shown(known),
            measured=f"mean {mean:+.2f}; {interval(pooled(list(known.values())))}"
            if defined
            else "",
            holds=mean <= ALLOCATION_BOUND,
            missing=lacks(section, HAS_FL) or _undefined(known),
        )
    ]


def a4(section: Section) -> list[Claim]:
    """Identical data leave the estimate's fall with capacity as it is."""
    return [_on_identical_data(section, name, label) for name, (_, label) in ESTIMATORS.items()]


def _on_identical_data(section: Section, name: str, label: str) -> Claim:
    runs = audited(section, label)
    known = correlations(runs, TO_CAPACITY)
    whole = pooled(list(known.values()))
    return judge(
        section,
        f"A4, {name}",
        f"With identically distributed data the {name} estimate falls with capacity all the same.",
        statistic="r(estimate, capacity) on an IID partition",
        threshold=f"pooled <= {CONFOUND:g}",
        per_seed=_shown(known),
        measured=interval(whole),
        holds=whole.r <= CONFOUND,
        missing=lacks(section, label) or _undefined(known),
    )


def _few_adaptations(runs: Mapping[int, RunAudit]) -> str:
    fewest = min(run.adaptations for run in runs.values())
    if fewest >= MIN_ADAPTATIONS:
        return ""
    return f"{HAS_FL} with {MIN_ADAPTATIONS} adaptation rounds (one has {fewest})"


def _undefined(known: Mapping[int, Correlation]) -> str:
    reasons = [f"seed {seed}: {each.reason}" for seed, each in known.items() if each.reason]
    return f"a correlation that is undefined ({'; '.join(reasons)})" if reasons else ""


def _shown(known: Mapping[int, Correlation]) -> PerSeed:
    return {seed: each.reason or each.r for seed, each in known.items()}

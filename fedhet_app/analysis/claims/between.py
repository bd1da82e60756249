"""What Paper B's claims share: labels, accuracies of summaries, and differences between two."""

from dataclasses import dataclass

import numpy as np

from fedhet_app.analysis.claims.base import (
    MIN_SEEDS,
    ROUNDING,
    Claim,
    differences,
    judge,
    lacks,
    points,
)
from fedhet_app.analysis.correlation import Difference
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.mixture import AVERAGE, ROUTING, SYSTEM

FEDAVG, FEDPROX, FINE_TUNED, DITTO, CLUSTERED = "fedavg", "fedprox", "fedavg-ft", "ditto", "ifca"
FEDEM, FEDGMM, FEDDRM = "fedem", "fedgmm", "feddrm"
SHARED, PER_COMPONENT = "fedspm", "fedspm-cx"
NAMES = {
    FINE_TUNED: "FedAvgFT",
    DITTO: "Ditto",
    CLUSTERED: "ClusterFL",
    FEDEM: "FedEM",
    FEDGMM: "FedGMM",
    FEDDRM: "FedDRM",
    SHARED: "FedSPM (1x)",
    PER_COMPONENT: "FedSPM (Cx)",
}
METRICS = {SYSTEM: "system", AVERAGE: "average", ROUTING: "routing"}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Between which numbers a mean difference holds, in points; ``above`` is not enough itself."""

    above: float = -np.inf
    low: float = -np.inf
    high: float = np.inf

    def holds(self, mean: float) -> bool:
        """Return whether a mean lies between them, to rounding."""
        within = self.low - ROUNDING <= mean <= self.high + ROUNDING
        return within and mean > self.above + ROUNDING

    def __str__(self) -> str:
        """Return the bounds that there are."""
        if np.isfinite(self.high) and -self.low == self.high:
            return f"|mean| <= {self.high:g}"
        named = ((">", self.above), (">=", self.low), ("<=", self.high))
        return f"mean {' and '.join(f'{sign} {end:g}' for sign, end in named if np.isfinite(end))}"


def gaps(section: Section, more: str, less: str, key: str) -> dict[int, float]:
    """Return an accuracy of one label minus that of another by seed, in points."""
    return {
        ours.seed: ours.percent(key) - theirs.percent(key)
        for ours, theirs in section.pairs(more, less)
    }


def mean_gap(section: Section, more: str, less: str, key: str) -> Difference:
    """Return the mean of those with its interval."""
    pairs = section.pairs(more, less)
    return differences([(ours.percent(key), theirs.percent(key)) for ours, theirs in pairs])


def unmeasured(section: Section, *labels: str, key: str = SYSTEM, seeds: int = MIN_SEEDS) -> str:
    """Return which runs are missing for an accuracy of labels over seeds, or nothing."""
    bare = [
        f"{METRICS[key]} accuracy of {run.label} seed {run.seed}"
        for label in labels
        for run in section.of(label)
        if key not in run.summary
    ]
    return lacks(section, *labels, seeds=seeds) or ", ".join(bare)


def between(
    section: Section,
    id: str,
    statement: str,
    *,
    more: str,
    less: str,
    key: str,
    bound: Bound,
    seeds: int = MIN_SEEDS,
) -> Claim:
    """Judge the mean difference of an accuracy between two labels, paired by seed."""
    difference = mean_gap(section, more, less, key)
    return judge(
        section,
        id,
        statement,
        statistic=f"{METRICS[key]} accuracy of {more} minus that of {less}, paired by seed, in "
        "points",
        threshold=f"{bound}, over {seeds} seeds or more",
        per_seed=gaps(section, more, less, key),
        measured=points(difference),
        holds=bound.holds(difference.mean),
        missing=unmeasured(section, more, less, key=key, seeds=seeds),
    )

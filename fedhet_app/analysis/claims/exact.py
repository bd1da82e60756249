"""Claims B11 and B12: what is exactly so (Paper B, Section 2; identifiability in Section 2.1).

One finished run is enough. B11 compares the same operations, bit for bit. B12 allows for rounding:
the gradients of equal components are sums in 32 bits whose terms a vectorised kernel may add in
another order for the last columns, so that their last digits part.
"""

import math

from fedhet_app.analysis.claims.base import Claim, judge, lacks
from fedhet_app.analysis.claims.between import FEDDRM
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Row, Run

ONE, IDENTICAL = "fedspm-c1", "fedspm-identical"
ROUNDING = 1e-5
_OF_THE_CLOCK = "seconds"


def b11(section: Section) -> list[Claim]:
    """FedSPM with one component is FedDRM."""
    pairs = section.pairs(ONE, FEDDRM)
    apart = {ours.seed: (differing(ours, theirs), len(ours.rounds)) for ours, theirs in pairs}
    return [
        judge(
            section,
            "B11",
            "FedSPM with one component is FedDRM, round by round.",
            statistic="rounds in which any number but the time differs",
            threshold="none",
            per_seed={seed: f"{rounds} of {total}" for seed, (rounds, total) in apart.items()},
            measured=f"{sum(rounds for rounds, _ in apart.values())} of "
            f"{sum(total for _, total in apart.values())}"
            if apart
            else "",
            holds=not any(rounds for rounds, _ in apart.values()),
            missing=lacks(section, ONE, FEDDRM, seeds=1),
        )
    ]


def b12(section: Section) -> list[Claim]:
    """Components that start alike stay alike."""
    gaps = {run.seed: from_uniform(run) for run in section.of(IDENTICAL)}
    unknown = [str(seed) for seed, gap in gaps.items() if math.isnan(gap)]
    nothing = f"tau of {IDENTICAL} seed {', '.join(unknown)}"
    return [
        judge(
            section,
            "B12",
            "Components that start identical are never told apart.",
            statistic="largest distance of a client's tau_ic / n_i from 1/C, over rounds",
            threshold=f"at most {ROUNDING:g}, what rounding leaves of zero",
            per_seed=gaps,
            measured=f"{max(gaps.values()):.1g}" if gaps else "",
            holds=all(gap <= ROUNDING for gap in gaps.values()),
            missing=lacks(section, IDENTICAL, seeds=1) or (nothing if unknown else ""),
        )
    ]


def differing(run: Run, other: Run) -> int:
    """Return the rounds that only one of two runs has, or in which any of their numbers differ."""
    longest = max(len(run.rounds), len(other.rounds))
    alike = sum(
        _timeless(ours) == _timeless(theirs)
        for ours, theirs in zip(run.rounds, other.rounds, strict=False)
    )
    return longest - alike


def from_uniform(run: Run) -> float:
    """Return how far a mixing weight tau_ic / n_i is from 1/C at worst; NaN where unknown."""
    evenly = 1 / float(run.config["fedspm.components"])
    return max(
        (abs(tau / row["examples"] - evenly) for row in run.clients for tau in row.get("tau", ())),
        default=math.nan,
    )


def _timeless(row: Row) -> Row:
    return {key: value for key, value in row.items() if not key.startswith(_OF_THE_CLOCK)}

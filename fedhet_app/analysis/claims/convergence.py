"""Claim B10: the profiled objective converges and its bridge errors stay small (Paper B, Fig. 2).

Curves are over the rounds in which the system (6) has a solution, gamma raw or shifted, whichever
has more of them. One run of a momentum is enough.
"""

import numpy as np
from numpy.typing import NDArray

from fedhet_app.analysis.claims.base import Claim, judge
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.bridge import bridged, courses, momentum_of, usual_variant

FEWEST_ROUNDS = 4
"""Feasible rounds, below which there is no course to speak of."""
_CURVES = (
    ("a", "gradient", "(1/t) sum of ||grad F||^2", "The squared gradient norm of the profiled "),
    ("b", "delta", "t^(-1/2) sum of delta", "The function-value bridge error of the "),
    ("c", "epsilon", "(1/t) sum of epsilon", "The gradient bridge error of the "),
)


def b10(section: Section) -> list[Claim]:
    """Each running sum of Figure 2 falls over the second half of the rounds."""
    variant = usual_variant(section)
    found = [
        (momentum_of(run), run.seed, course.estimates, len(course.rounds))
        for label in bridged(section)
        for run, course in zip(
            [each for each in section.of(label) if courses([each], variant)],
            courses(section.of(label), variant),
            strict=True,
        )
    ]
    short = [f"momentum {mu:g} seed {seed}" for mu, seed, _, n in found if n < FEWEST_ROUNDS]
    few = f"{FEWEST_ROUNDS} feasible rounds of {', '.join(short)}"
    claims = []
    for part, key, sum_of, what in _CURVES:
        falls: dict[int, list[str]] = {}
        kept = []
        for mu, seed, estimates, rounds in found:
            if rounds >= FEWEST_ROUNDS:
                half, end = ends(getattr(estimates, key))
                kept.append(end <= half)
                falls.setdefault(seed, []).append(f"mu {mu:g} {half:.1e} to {end:.1e}")
        claims.append(
            judge(
                section,
                f"B10 ({part})",
                f"{what}objective falls with the rounds, for every momentum.",
                statistic=f"{sum_of} after half of the feasible rounds and after all (gamma "
                f"{variant})",
                threshold="not larger after all of them, for every momentum",
                per_seed={seed: ", ".join(texts) for seed, texts in falls.items()},
                measured=f"{sum(kept)} of {len(kept)} momenta" if kept else "",
                holds=all(kept),
                missing=few if short else "" if found else "runs with fedspm.bridge-every",
            )
        )
    return claims


def ends(curve: NDArray[np.float64]) -> tuple[float, float]:
    """Return a curve's value after half of its rounds, rounded up, and after all."""
    return float(curve[(len(curve) + 1) // 2 - 1]), float(curve[-1])

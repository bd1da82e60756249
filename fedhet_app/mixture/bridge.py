"""Estimates of the bridge errors between f and its surrogate (Paper B, Theorem 1, Appendix D.4).

Everything is of T rounds and divided by the number of examples. Rounds in which the system (6) has
no admissible solution have no f: they are left out before anything is estimated.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SMALLEST_NORM2 = 1e-9
QUANTILE = 0.95

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """Figure 2 for one run; curves over its R feasible rounds, in their order.

    Attributes:
        gamma2: The estimate of Gamma_2; NaN where no round allows one.
        gradient: (1/t) sum of ||grad F||^2 up to t, shape ``(R,)``.
        epsilon: (1/t) sum of the gradient bridge errors, shape ``(R,)``.
        delta: t^(-1/2) sum of the function-value bridge errors, shape ``(R,)``.
        infeasible: Share of the T rounds that were left out; NaN for no rounds.
    """

    gamma2: float
    gradient: Values
    epsilon: Values
    delta: Values
    infeasible: float


def bridge(
    *,
    gradient_norm2: Values,
    surrogate_gradient_norm2: Values,
    f: Values,
    f_next: Values,
    surrogate: Values,
    surrogate_next: Values,
    feasible: NDArray[np.bool_],
) -> Bridge:
    """Return figure 2 from what was measured in T rounds, every array of shape ``(T,)``.

    Args:
        gradient_norm2: ||grad f||^2, which is ||grad F||^2 (Lemma 2).
        surrogate_gradient_norm2: ||grad f~||^2.
        f: f before the round's steps.
        f_next: f after them.
        surrogate: f~ before them.
        surrogate_next: f~ after them.
        feasible: Whether (6) was solved, before and after.
    """
    kept = np.asarray(feasible, dtype=bool)
    norms, surrogates = gradient_norm2[kept], surrogate_gradient_norm2[kept]
    gamma2 = gamma2_hat(norms, surrogates)
    deltas = delta(f[kept], f_next[kept], surrogate[kept], surrogate_next[kept])
    return Bridge(
        gamma2=gamma2,
        gradient=running(norms),
        epsilon=running(epsilon(norms, surrogates, gamma2)),
        delta=running(deltas, power=0.5),
        infeasible=float(1 - kept.mean()) if kept.size else float("nan"),
    )


def gamma2_hat(gradient_norm2: Values, surrogate_gradient_norm2: Values) -> float:
    """Return the 95 % quantile of ||grad f||^2 / ||grad f~||^2 (Appendix D.4).

    Rounds count whose ||grad f~||^2 exceeds ``SMALLEST_NORM2``; without any it is NaN.

    Args:
        gradient_norm2: ||grad f||^2, shape ``(T,)``.
        surrogate_gradient_norm2: ||grad f~||^2, shape ``(T,)``.
    """
    valid = surrogate_gradient_norm2 > SMALLEST_NORM2
    if not valid.any():
        return float("nan")
    return float(np.quantile(gradient_norm2[valid] / surrogate_gradient_norm2[valid], QUANTILE))


def epsilon(gradient_norm2: Values, surrogate_gradient_norm2: Values, gamma2: float) -> Values:
    """Return max(||grad f||^2 - Gamma_2 ||grad f~||^2, 0), shape ``(T,)`` (Appendix D.4)."""
    return np.maximum(gradient_norm2 - gamma2 * surrogate_gradient_norm2, 0.0)


def delta(f: Values, f_next: Values, surrogate: Values, surrogate_next: Values) -> Values:
    """Return by how much f rose more than f~ in each round, at least 0, ``(T,)`` (App. D.4)."""
    return np.maximum((f_next - f) - (surrogate_next - surrogate), 0.0)


def running(values: Values, power: float = 1.0) -> Values:
    """Return t^(-power) times the sum of the first t values, for every t, shape ``(T,)``."""
    rounds = np.arange(1, len(values) + 1, dtype=np.float64)
    return np.cumsum(values) / rounds**power


def accumulation(momentum: float, steps: int) -> tuple[float, float]:
    """Return a_E and s_E, the sums over e < E of mu_{E,e} and its square (Paper B, Theorem 1).

    mu_{E,e} = (1 - mu^(E-e)) / (1 - mu) is how often the gradient of step e is in the sum of all
    steps, so that E steps of SGD, their buffer zero at first, move a_E times lr along a constant
    gradient. Both are E without momentum.

    Args:
        momentum: mu in [0, 1).
        steps: E.
    """
    ages = np.arange(steps, 0, -1)
    counted = (1.0 - momentum**ages) / (1.0 - momentum)
    return float(counted.sum()), float((counted**2).sum())

"""The profiled objectives that the surrogate stands in for (Paper B, Section 2.4, App. C.5, D.4).

n is examples of all clients together, q = m C pairs of client and component; a row's own columns
are the C pairs of the client that it belongs to. Objectives and gradients are divided by n, as the
clients' losses are, and all arithmetic is float64.

Deviations:
    1. The solvers meet (6) continued below d = 1 / n, see ``Constraints.equations``: the paper does
       not say how it keeps the weights positive.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, linprog, root
from scipy.special import logsumexp, softmax

from fedhet_app.mixture.constraints import Values, constraints_of
from fedhet_app.mixture.density_ratio import SMALLEST_TAU

Columns = NDArray[np.integer]

_MOST_EVALUATIONS = 1000


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """What solving (6) led to.

    Attributes:
        lambda_: The multipliers, shape ``(q,)``.
        residual: By how much the constraints (4) are violated at most.
        smallest_weight: The smallest d_j, of which r_j is the reciprocal over n.
        feasible: Whether all d_j are positive and the residual within the tolerance.
    """

    lambda_: Values
    residual: float
    smallest_weight: float
    feasible: bool


def shift(s: Values, tau: Values) -> float:
    """Return the constant whose sum with all gamma makes lambda = tau / n satisfy sum_j r_j = 1.

    At a critical point of the surrogate the rest of (4) then holds as well (App. C.5).

    Args:
        s: Scores, shape ``(n, q)``.
        tau: Summed responsibilities, of sum n, shape ``(q,)``.
    """
    return float(logsumexp(-_log_totals(s, tau)))


def solve_multipliers(s: Values, start: Values, tolerance: float = 1e-8) -> Multipliers:
    """Solve (6) by Powell's hybrid method, and by trust-region least squares where it fails.

    Args:
        s: Scores, shape ``(n, q)``.
        start: First guess, normally tau / n, shape ``(q,)``.
        tolerance: Largest residual of a solution.
    """
    constraints = constraints_of(s)
    lambda_ = root(constraints.equations, start, jac=True, method="hybr", tol=1e-12).x
    if not constraints.violation(lambda_) <= tolerance:
        lambda_ = least_squares(
            lambda x: constraints.equations(x)[0],
            start,
            jac=lambda x: constraints.equations(x)[1],
            method="trf",
            x_scale="jac",
            xtol=1e-14,
            ftol=1e-14,
            gtol=1e-14,
            max_nfev=_MOST_EVALUATIONS,
        ).x
    residual = constraints.violation(lambda_)
    return Multipliers(
        lambda_=lambda_,
        residual=residual,
        smallest_weight=constraints.smallest_weight(lambda_),
        feasible=residual <= tolerance,
    )


def feasible_by_lp(s: Values) -> bool:
    """Return whether (6) has a solution with positive weights, by linear programming.

    It has one if zero lies in the relative interior of the convex hull of the vectors exp(s_j) - 1,
    that is if some positive multiples of them add up to zero. Positive factors of rows and columns
    do not matter, so every multiple may be asked to be one at least.

    Args:
        s: Scores, shape ``(n, q)``.
    """
    vectors = constraints_of(s).vectors
    largest = np.abs(vectors).max(axis=0)
    vectors = vectors / np.where(largest > 0, largest, 1.0)
    found = linprog(
        np.ones(len(s)), A_eq=vectors.T, b_eq=np.zeros(vectors.shape[1]), bounds=(1, None)
    )
    return bool(found.status == 0)


def objective(s: Values, lambda_: Values, w: Values, columns: Columns) -> float:
    """Return f = -Q2 / n (Eq. 8); NaN if a weight is not positive.

    Args:
        s: Scores, shape ``(n, q)``.
        lambda_: The solution of (6) for them, shape ``(q,)``.
        w: Responsibilities, shape ``(n, C)``.
        columns: Every row's own columns, shape ``(n, C)``.
    """
    log_weights = constraints_of(s).log_weights(lambda_)
    return float((log_weights - _own_scores(s, w, columns)).mean())


def gradient(s: Values, lambda_: Values, w: Values, columns: Columns) -> Values:
    """Return df / ds, shape ``(n, q)``; the way s moves lambda adds nothing, because of (6).

    Args:
        s: Scores, shape ``(n, q)``.
        lambda_: The solution of (6) for them, shape ``(q,)``.
        w: Responsibilities, shape ``(n, C)``.
        columns: Every row's own columns, shape ``(n, C)``.
    """
    constraints = constraints_of(s)
    weights = constraints.scaled_weights(lambda_)
    return _less_own(lambda_ * constraints.ratios / weights[:, None], w, columns)


def surrogate_objective(s: Values, tau: Values, w: Values, columns: Columns) -> float:
    """Return f~ = -Q2~ / n (Section 2.2).

    Args:
        s: Scores, shape ``(n, q)``.
        tau: Summed responsibilities, shape ``(q,)``.
        w: Responsibilities, shape ``(n, C)``.
        columns: Every row's own columns, shape ``(n, C)``.
    """
    return float((_log_totals(s, tau) - _own_scores(s, w, columns)).mean())


def surrogate_gradient(s: Values, tau: Values, w: Values, columns: Columns) -> Values:
    """Return df~ / ds, shape ``(n, q)``; arguments as for ``surrogate_objective``."""
    return _less_own(softmax(s + _log_table(tau), axis=1), w, columns)


def profile_objective(s: Values, lambda_: Values, log_mix: Values) -> float:
    """Return F / n = -pl / n, the profiled log empirical likelihood; NaN as for ``objective``.

    Args:
        s: Scores, shape ``(n, q)``.
        lambda_: The solution of (6) for them, shape ``(q,)``.
        log_mix: log sum_c pi_c exp(s_own,c) P_c(y|x) of every example, shape ``(n,)``.
    """
    return float((np.log(len(s)) + constraints_of(s).log_weights(lambda_) - log_mix).mean())


def _log_table(tau: Values) -> Values:
    return np.log(np.maximum(tau, SMALLEST_TAU))


def _log_totals(s: Values, tau: Values) -> Values:
    totals: Values = logsumexp(s + _log_table(tau), axis=1)
    return totals


def _own_scores(s: Values, w: Values, columns: Columns) -> Values:
    own: Values = (w * np.take_along_axis(s, columns, axis=1)).sum(axis=1)
    return own


def _less_own(shares: Values, w: Values, columns: Columns) -> Values:
    rows = np.arange(len(shares))[:, None]
    shares[rows, columns] -= w
    return shares / len(shares)

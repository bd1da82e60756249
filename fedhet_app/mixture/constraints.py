"""What empirical likelihood asks of the baseline distribution's weights (Paper B, Eq. 4-6).

With scores s_jl of example j, l running over all q = m C pairs of client and component, the weights
are r_j = 1 / (n d_j), d_j = 1 + sum_l lambda_l (exp(s_jl) - 1), and lambda has to solve
sum_j (exp(s_jl) - 1) / d_j = 0 for all l (6), with every d_j positive.

Row j is handled as exp(-M_j) (d_j, exp(s_jl) - 1) with M_j = max(0, max_l s_jl). That is exact and
cannot overflow, whatever the scores.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_SMALLEST_EDGE = 1e-75  # its square can still be divided by; reached by scores beyond 160
_LARGEST_EXPONENT = 700.0  # of which exp is still finite


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """The constraints that some scores make, every row scaled; see ``constraints_of``.

    Attributes:
        exponents: M, shape ``(n,)``.
        ratios: exp(s - M), shape ``(n, q)``.
    """

    exponents: Values
    ratios: Values

    @cached_property
    def units(self) -> Values:
        """exp(-M), what is left of the one in d, shape ``(n,)``."""
        return np.exp(-self.exponents)

    @cached_property
    def vectors(self) -> Values:
        """exp(-M) (exp(s) - 1), shape ``(n, q)``."""
        return self.ratios - self.units[:, None]

    def scaled_weights(self, lambda_: Values) -> Values:
        """Return exp(-M) d, shape ``(n,)``."""
        return self.units + self.vectors @ lambda_

    def log_weights(self, lambda_: Values) -> Values:
        """Return log d, shape ``(n,)``; NaN where d is not positive."""
        weights = self.scaled_weights(lambda_)
        return self.exponents + np.log(np.where(weights > 0, weights, np.nan))

    def smallest_weight(self, lambda_: Values) -> float:
        """Return min_j d_j; of rows with a score above 700 it is an underestimate."""
        stretch = np.exp(np.minimum(self.exponents, _LARGEST_EXPONENT))
        with np.errstate(over="ignore"):  # infinite ones are never the smallest
            return float((stretch * self.scaled_weights(lambda_)).min())

    def equations(self, lambda_: Values) -> tuple[Values, Values]:
        """Return the left side of (6) over n, shape ``(q,)``, and its Jacobian, ``(q, q)``.

        Below d_j = 1 / n the terms 1 / d_j go on as straight lines (Owen 2001, Section 3.14). They
        are then the gradient of a concave function everywhere. No solution with positive weights
        lies there, since no r_j exceeds one, and the roots of (6) with negative weights are gone.
        """
        size = len(self.units)
        edge = np.maximum(self.units / size, _SMALLEST_EDGE)
        weights = self.scaled_weights(lambda_)
        capped = np.maximum(weights, edge)
        with np.errstate(over="ignore", invalid="ignore"):  # solvers step back from infinity
            terms = np.where(weights >= edge, 1 / capped, (2 - weights / edge) / edge)
            slopes = self.vectors / capped[:, None]
            return self.vectors.T @ terms / size, -(slopes.T @ slopes) / size

    def violation(self, lambda_: Values) -> float:
        """Return the most by which sum_j r_j = 1 or sum_j r_j exp(s_jl) = 1 is missed (Eq. 4).

        It is infinite where a weight is not positive. The left side of (6) would not tell: it goes
        to zero as lambda grows without end, solution or not. Nor would the second sums alone: with
        multipliers of sum one, as tau / n are, they allow any constant in the scores.
        """
        weights = self.scaled_weights(lambda_)
        if not (weights > 0).all():
            return float("inf")
        shares = 1 / (len(weights) * weights)
        sums = np.append(self.ratios.T @ shares, self.units @ shares)
        return float(np.abs(sums - 1).max())


def constraints_of(s: Values) -> Constraints:
    """Return the constraints that scores make, shape ``(n, q)``."""
    exponents = np.maximum(s.max(axis=1), 0.0)
    return Constraints(exponents=exponents, ratios=np.exp(s - exponents[:, None]))

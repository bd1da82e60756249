"""Correlations with intervals, and paired differences: the statistics behind the audit.

Intervals are Fisher's (1921): z = artanh r is nearly normal with standard error 1/sqrt(N - 3 - k),
k being the number of variables held fixed. What cannot be computed says why instead of a number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
QUANTILE = float(stats.norm.ppf((1 + LEVEL) / 2))
_ROUNDING = 1e-12
_SPEARMAN_VARIANCE = 1.06  # of z, times N - 3 (Fieller, Hartley and Pearson 1957)

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A correlation and its 95 % interval.

    Attributes:
        r: The coefficient, in [-1, 1]; NaN, like both ends, where it is undefined.
        low: Lower end of the interval.
        high: Upper end.
        n: Observations; of a pooled one, the sum over its parts.
        k: Variables held fixed.
        weight: Inverse variance of Fisher's z; of a pooled one, the sum over its parts.
        parts: How many correlations it is pooled from.
        left_out: How many were undefined and left out of it.
        reason: Why it is undefined, or empty.
    """

    r: float
    low: float
    high: float
    n: int
    k: int = 0
    weight: float
    parts: int = 1
    left_out: int = 0
    reason: str = ""

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval lies on that side of 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def smallest(self) -> float:
        """Size up to which a correlation's interval would hold 0 with this weight."""
        return math.tanh(QUANTILE / math.sqrt(self.weight)) if self.weight else math.nan


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The mean of ``n`` paired differences, their standard deviation, and a 95 % t interval.

    What is undefined is NaN, and ``reason`` says why.
    """

    mean: float
    sd: float
    low: float
    high: float
    n: int
    reason: str = ""


def undefined(reason: str, n: int = 0, k: int = 0) -> Correlation:
    """Return the correlation that cannot be computed, with the reason."""
    nan = math.nan
    return Correlation(r=nan, low=nan, high=nan, n=n, k=k, weight=0.0, parts=0, reason=reason)


def pearson(a: Values, b: Values, names: Sequence[str] = ("a", "b")) -> Correlation:
    """Return the correlation of two variables.

    Args:
        a: Shape (N,).
        b: Shape (N,).
        names: What to call them where the correlation is undefined.
    """
    return partial(a, b, np.empty((len(a), 0)), names)


def partial(
    a: Values, b: Values, given: Values, names: Sequence[str] = ("a", "b", "given")
) -> Correlation:
    """Return the correlation of what a linear fit on ``given`` leaves of ``a`` and ``b``.

    Args:
        a: Shape (N,).
        b: Shape (N,).
        given: The variables held fixed, shape (N,) or (N, k).
        names: What to call a, b and each variable held fixed where the correlation is undefined;
            the last name serves for all that follow.
    """
    table = np.column_stack([a, b, given]).astype(np.float64)
    n, k = len(table), table.shape[1] - 2
    reason = _unusable(table, names)
    if reason:
        return undefined(reason, n, k)
    scaled = table / np.abs(table).max(axis=0)
    centred = scaled - scaled.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=0)
    fit, _, rank, _ = np.linalg.lstsq(unit[:, 2:], unit[:, :2])
    residuals = unit[:, :2] - unit[:, 2:] @ fit
    norms = np.linalg.norm(residuals, axis=0)
    if rank < k:
        return undefined("the variables held fixed determine one another", n, k)
    for name, norm in zip(names[:2], norms, strict=True):
        if norm <= _ROUNDING**0.5:
            return undefined(f"{' and '.join(names[2:])} determines {name}", n, k)
    r = float(residuals[:, 0] @ residuals[:, 1] / norms.prod())
    return _with_interval(r, weight=n - 3.0 - k, n=n, k=k)


def pooled(correlations: Sequence[Correlation]) -> Correlation:
    """Return Fisher's mean: z weighted by inverse variance, undefined ones left out and counted.

    The interval is right where all parts estimate one true correlation.
    """
    used = [each for each in correlations if not each.reason]
    left_out = len(correlations) - len(used)
    if not used:
        reasons = dict.fromkeys(each.reason for each in correlations)
        n = sum(each.n for each in correlations)
        reason = "; ".join(reasons) or "nothing to pool"
        return replace(undefined(reason, n), left_out=left_out)
    weights = np.array([each.weight for each in used])
    z = np.average([_fisher_z(each.r) for each in used], weights=weights)
    whole = _with_interval(
        math.tanh(z), weight=float(weights.sum()), n=sum(each.n for each in used), k=used[0].k
    )
    return replace(whole, parts=len(used), left_out=left_out)


def within_tiers(
    a: Values, b: Values, tiers: Values, names: Sequence[str] = ("a", "b")
) -> Correlation:
    """Return Spearman's rank correlation inside each tier, pooled over tiers.

    A perfect rank correlation enters with the continuity correction 1 - 6/(N^3 - N), because its z
    would be infinite.

    Args:
        a: Shape (N,).
        b: Shape (N,).
        tiers: Shape (N,): equal values are one tier. Tiers of fewer than 4, or in which a variable
            is constant, are left out and counted.
        names: What to call both where no tier is left.
    """
    ranked = [_spearman(a[tiers == tier], b[tiers == tier]) for tier in np.unique(tiers)]
    result = pooled(ranked)
    if result.reason:
        reason = f"in no tier of 4 or more do both {names[0]} and {names[1]} vary"
        return replace(result, reason=reason)
    return result


def paired_difference(x: Values, y: Values) -> Difference:
    """Return the mean of x - y over pairs, with Student's interval.

    Args:
        x: One value per pair (a seed), shape (S,).
        y: The other, shape (S,).
    """
    differences = np.asarray(x, dtype=np.float64) - np.asarray(y, dtype=np.float64)
    n = len(differences)
    mean = float(differences.mean()) if n else math.nan
    if n < 2:
        reason = "one pair has no spread" if n else "no pairs"
        return Difference(mean=mean, sd=math.nan, low=math.nan, high=math.nan, n=n, reason=reason)
    sd = float(differences.std(ddof=1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * sd / math.sqrt(n)
    return Difference(mean=mean, sd=sd, low=mean - half, high=mean + half, n=n)


def _unusable(table: Values, names: Sequence[str]) -> str:
    """Return why columns (N, 2 + k) have no correlation, or nothing."""
    n, columns = table.shape
    if n < columns + 2:
        return f"N = {n}, where an interval takes {columns + 2}"
    for position, column in enumerate(table.T):
        name = names[min(position, len(names) - 1)]
        if not np.isfinite(column).all():
            return f"{name} has values that are not finite"
        # A mean of equal numbers may differ from them in its last bit.
        if np.ptp(column) <= _ROUNDING * np.abs(column).max():
            return f"{name} is constant"
    return ""


def _spearman(a: Values, b: Values) -> Correlation:
    ranks = pearson(stats.rankdata(a), stats.rankdata(b))
    if ranks.reason:
        return ranks
    bound = 1 - 6 / (ranks.n**3 - ranks.n)
    r = min(max(ranks.r, -bound), bound)
    return _with_interval(r, weight=ranks.weight / _SPEARMAN_VARIANCE, n=ranks.n, k=0)


def _fisher_z(r: float) -> float:
    # A perfect correlation's z is infinite; pooled with others it should stay a number.
    bound = 1 - np.finfo(np.float64).eps
    return math.atanh(min(max(r, -bound), bound))


def _with_interval(r: float, *, weight: float, n: int, k: int) -> Correlation:
    z, half = _fisher_z(r), QUANTILE / math.sqrt(weight)
    low, high = math.tanh(z - half), math.tanh(z + half)
    return Correlation(r=min(max(r, -1.0), 1.0), low=low, high=high, n=n, k=k, weight=weight)

"""Who trains which width: pure functions of capacities, estimates and a generator.

Paper A, Section 3 (HAS-FL, Eq. 6) and Section 4 (its comparison set). HeteroFL needs no function:
every client trains its cap. HAS-FL with gamma = 0 and no guarantee is a uniform width of p_min.

Deviations:

1. The paper does not give its random-budget sampler; here one factor scales uniform draws so that
   the clipped widths meet the budget exactly.
2. A run without a client at the largest tier promotes one: otherwise HeteroFL would not cover the
   full network, which the paper takes for granted.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Widths = NDArray[np.float64]


def has_fl_widths(
    caps: Widths,
    estimates: NDArray[np.float64],
    *,
    p_min: float,
    gamma: float,
    coverage: bool,
    eps: float = 1e-8,
) -> Widths:
    """Return p_i = min(cap_i, p_min + gamma H_i / mean(H)) (Eq. 6).

    Args:
        caps: Largest width of each client, shape (N,).
        estimates: Smoothed divergence H of all clients, non-negative, shape (N,).
        p_min: Width of a client without any divergence.
        gamma: Width gained by a client of mean divergence.
        coverage: Whether the clients with the largest cap always train it.
        eps: Guards the denominator.

    Returns:
        Shape (N,).
    """
    widths = np.minimum(caps, p_min + gamma * estimates / (estimates.mean() + eps))
    return np.where(caps == caps.max(), caps, widths) if coverage else widths


def fjord_widths(caps: Widths, tiers: Sequence[float], rng: np.random.Generator) -> Widths:
    """Draw each client's width uniformly from the tiers up to its cap, as FjORD does per round.

    Args:
        caps: Largest width of each client, shape (N,); below every tier it is the width.
        tiers: The widths in use.
        rng: Advanced by one draw per client, whatever the caps.

    Returns:
        Shape (N,).
    """
    ladder = np.unique(tiers)
    within = np.searchsorted(ladder, caps, side="right")
    drawn = ladder[(rng.random(caps.size) * within).astype(np.int64)]
    return np.where(within > 0, drawn, caps)


def uniform_widths(caps: Widths, width: float) -> Widths:
    """Return min(cap_i, width), shape (N,): the Uniform baseline."""
    return np.minimum(caps, width)


def random_budget_widths(
    caps: Widths,
    budget: float,
    *,
    floor: float = 0.25,
    coverage: bool,
    rng: np.random.Generator,
) -> Widths:
    """Draw random widths whose mean is a budget: HAS-FL's control that looks at no data.

    u_i ~ U(floor, cap_i) and p_i = clip(s u_i, floor, cap_i), with the one s that meets the budget.

    Args:
        caps: Largest width of each client, positive, shape (N,).
        budget: Mean width; one that no s reaches gives the nearest mean that can be reached.
        floor: Smallest width; a cap below it is the width.
        coverage: Whether the clients with the largest cap always train it, within the budget.
        rng: Advanced by one draw per client.

    Returns:
        Shape (N,).
    """
    lowest = np.minimum(floor, caps)
    drawn = rng.uniform(lowest, caps)
    if coverage:
        lowest = np.where(caps == caps.max(), caps, lowest)
    # The mean is piecewise linear in s: its knots are where a client leaves its floor or meets
    # its cap.
    knots = np.unique(np.concatenate([lowest / drawn, caps / drawn]))
    means = np.clip(knots[:, np.newaxis] * drawn, lowest, caps).mean(axis=1)
    scale = np.interp(budget, means, knots)
    widths: Widths = np.clip(scale * drawn, lowest, caps)
    return widths


def permuted_widths(caps: Widths, widths: Widths, rng: np.random.Generator) -> Widths:
    """Deal widths out anew among the clients of equal cap.

    Args:
        caps: Largest width of each client, shape (N,).
        widths: What is dealt out, at most its client's cap, shape (N,).
        rng: Advanced by one permutation per distinct cap, ascending.

    Returns:
        Shape (N,); within each cap the same widths.
    """
    dealt = widths.copy()
    for cap in np.unique(caps):
        of_tier = np.flatnonzero(caps == cap)
        dealt[of_tier] = widths[rng.permutation(of_tier)]
    return dealt


def draw_capacities(
    num_clients: int, tiers: Sequence[float], probs: Sequence[float], rng: np.random.Generator
) -> tuple[Widths, bool]:
    """Draw the clients' caps, at least one of them at the largest tier.

    Args:
        num_clients: N, at least 1.
        tiers: The caps in use.
        probs: Their probabilities.
        rng: The generator of the run's capacities.

    Returns:
        The caps, shape (N,), and whether one client had to be promoted to the largest tier.
    """
    caps = rng.choice(np.asarray(tiers, dtype=np.float64), size=num_clients, p=probs)
    promoted = not np.any(caps == max(tiers))
    if promoted:
        caps[rng.integers(num_clients)] = max(tiers)
    return caps, promoted

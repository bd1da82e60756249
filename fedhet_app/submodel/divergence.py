"""How far a client's update lies from the mean update: HAS-FL's estimate of heterogeneity.

Paper A, Section 3: Definition 1 and its observable form, and lines 20-31 of Algorithm 1. Beside the
paper's estimator there are two that try to take the width out of it: ``leave_one_out``, whose mean
does not contain the client itself, and the paper's on a ``core`` that all clients share.

Deviations:

1. The display of Eq. 5 and the formula of the moving average are missing from the text; both are
   rebuilt from its prose.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhet_app.submodel.aggregation import Aggregate, Update


def divergence(
    updates: Sequence[Update],
    vector_before: NDArray[np.float32],
    aggregated: Aggregate,
    num_params: int,
    eps: float = 1e-8,
    *,
    core: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return ||m(Delta_i - Dbar)||^2 / (||m Dbar||^2 + eps) of every update (Eq. 5).

    Dbar includes client i itself; m is client i's slice, without buffers, or its part in ``core``.

    Args:
        updates: The replies of the round.
        vector_before: The model that was sent, shape (D,).
        aggregated: What ``aggregate`` made of both.
        num_params: Coordinates of the full vector from this one on are buffers and do not count.
        eps: Guards the denominator.
        core: Ascending coordinates to measure on; ``None`` for each client's whole slice.

    Returns:
        One estimate per update, in their order.
    """
    estimates = []
    for update in updates:
        at, delta = _delta(update, vector_before, num_params, core)
        mean = aggregated.mean_delta[at]
        estimates.append(_squared_norm(delta - mean) / (_squared_norm(mean) + eps))
    return np.array(estimates, dtype=np.float64)


def leave_one_out(
    updates: Sequence[Update],
    vector_before: NDArray[np.float32],
    aggregated: Aggregate,
    num_params: int,
    eps: float = 1e-8,
) -> NDArray[np.float64]:
    """Return ``divergence`` from the mean of the other clients.

    Coordinates that nobody else trained leave both norms.

    Args:
        updates: The replies of the round.
        vector_before: The model that was sent, shape (D,).
        aggregated: What ``aggregate`` made of both.
        num_params: Coordinates of the full vector from this one on are buffers and do not count.
        eps: Guards the denominator.

    Returns:
        One estimate per update, in their order; NaN for a client that shares no coordinate.
    """
    estimates = []
    for update in updates:
        at, delta = _delta(update, vector_before, num_params, None)
        others = aggregated.weight[at] - update.weight
        shared = others > 0
        total = aggregated.mean_delta[at] * aggregated.weight[at] - update.weight * delta
        mean = total[shared] / others[shared]
        distance = _squared_norm(delta[shared] - mean)
        estimates.append(distance / (_squared_norm(mean) + eps) if shared.any() else np.nan)
    return np.array(estimates, dtype=np.float64)


def smooth(
    estimates: NDArray[np.float64],
    observed: NDArray[np.float64],
    who: NDArray[np.int64],
    beta: float,
) -> NDArray[np.float64]:
    """Move the estimates of the observed clients: H <- beta H + (1 - beta) Hhat.

    Args:
        estimates: One per client, shape (N,).
        observed: This round's divergences, shape (S,).
        who: The clients they belong to, distinct, shape (S,).
        beta: Weight of the past, in [0, 1].

    Returns:
        New estimates, shape (N,); those of clients not in ``who`` are unchanged.
    """
    smoothed = estimates.copy()
    smoothed[who] = beta * estimates[who] + (1 - beta) * observed
    return smoothed


def rescale(estimates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the estimates divided by their mean; all-zero ones have no scale and stay zero."""
    mean = estimates.mean()
    return estimates / mean if mean > 0 else estimates.copy()


def _delta(
    update: Update,
    before: NDArray[np.float32],
    num_params: int,
    core: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64] | slice, NDArray[np.float64]]:
    """Return the coordinates measured, and what the client added to each."""
    if update.index is None:
        at: NDArray[np.int64] | slice = slice(num_params)
        if core is not None:
            at = core[core < num_params]
        values = update.values[at]
    else:
        chosen = update.index < num_params
        if core is not None:
            chosen &= np.isin(update.index, core, assume_unique=True)
        at, values = update.index[chosen], update.values[chosen]
    return at, values.astype(np.float64) - before[at]


def _squared_norm(x: NDArray[np.float64]) -> float:
    # A BLAS dot product would depend on the number of threads.
    return float(np.square(x).sum())

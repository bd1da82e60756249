"""How far a client's update lies from the mean update: HAS-FL's estimate of heterogeneity.

Paper A, Section 3: Definition 1 and its observable form, and lines 20-31 of Algorithm 1.

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
) -> NDArray[np.float64]:
    """Return ||m(Delta_i - Dbar)||^2 / (||m Dbar||^2 + eps) of every update (Eq. 5).

    Dbar includes client i itself; m is client i's slice, without buffers.

    Args:
        updates: The replies of the round.
        vector_before: The model that was sent, shape (D,).
        aggregated: What ``aggregate`` made of both.
        num_params: Coordinates of the full vector from this one on are buffers and do not count.
        eps: Guards the denominator.

    Returns:
        One estimate per update, in their order.
    """
    estimates = [
        _divergence(update, vector_before, aggregated.mean_delta, num_params, eps)
        for update in updates
    ]
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


def _divergence(
    update: Update,
    before: NDArray[np.float32],
    mean_delta: NDArray[np.float64],
    num_params: int,
    eps: float,
) -> float:
    if update.index is None:
        mean, old, values = mean_delta[:num_params], before[:num_params], update.values[:num_params]
    else:
        is_param = update.index < num_params
        index, values = update.index[is_param], update.values[is_param]
        mean, old = mean_delta[index], before[index]
    delta = values.astype(np.float64) - old
    return _squared_norm(delta - mean) / (_squared_norm(mean) + eps)


def _squared_norm(x: NDArray[np.float64]) -> float:
    # A BLAS dot product would depend on the number of threads.
    return float(np.square(x).sum())

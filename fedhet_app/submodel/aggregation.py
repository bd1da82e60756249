"""The average of clients that trained different parts of one vector.

Paper A, Section 3: w <- w + Dbar, where Dbar[j] is the mean of the updates of those clients that
trained coordinate j, weighted by their numbers of examples. With every client at full width this is
FedAvg.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one client returned.

    Attributes:
        index: Distinct positions of its slice in the full vector; None for the whole vector.
        values: The trained coordinates, in the order of ``index``.
        weight: Its number of examples, positive.
    """

    index: NDArray[np.int64] | None
    values: NDArray[np.float32]
    weight: float


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """The server's step.

    Attributes:
        vector: The new model, shape (D,).
        mean_delta: Dbar, shape (D,); 0 where nobody trained.
        weight: Sum of the weights of those who trained the coordinate, shape (D,).
    """

    vector: NDArray[np.float32]
    mean_delta: NDArray[np.float64]
    weight: NDArray[np.float64]

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Whether anybody trained the coordinate, shape (D,)."""
        return self.weight > 0


def aggregate(vector: NDArray[np.float32], updates: Sequence[Update]) -> Aggregate:
    """Average every coordinate over the clients that trained it.

    Sums run in float64 and are cast back once. A coordinate that nobody trained, or whose mean
    equals its old value, keeps every bit.

    Args:
        vector: The model that was sent, shape (D,).
        updates: The replies, in an order that does not depend on arrival.

    Raises:
        ValueError: An update's shape does not fit, or its weight is not positive.
    """
    for update in updates:
        _check(update, vector)
    old = vector.astype(np.float64)
    total, weight = _sums(vector.size, updates)
    covered = weight > 0
    mean = np.divide(total, weight, out=old.copy(), where=covered)
    new = mean.astype(np.float32)
    # Minus zero equals zero: comparing keeps the old bits where the mean has lost the sign.
    np.copyto(new, vector, where=new == vector)
    return Aggregate(vector=new, mean_delta=mean - old, weight=weight)


def _check(update: Update, vector: NDArray[np.float32]) -> None:
    expected = vector.shape if update.index is None else update.index.shape
    if update.values.shape != expected:
        raise ValueError(f"update of shape {update.values.shape}, expected {expected}")
    if not update.weight > 0:
        raise ValueError(f"update of weight {update.weight}, expected a positive one")


def _sums(size: int, updates: Sequence[Update]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weighted sum of values and the sum of weights per coordinate, (D,) each."""
    total = np.zeros(size)
    whole = sum((update.weight for update in updates if update.index is None), start=0.0)
    weight = np.full(size, whole)
    scratch = np.empty(size)
    for update in updates:
        if update.index is None:
            np.multiply(update.values, update.weight, out=scratch, dtype=np.float64)
            total += scratch
        else:
            total[update.index] += np.multiply(update.values, update.weight, dtype=np.float64)
            weight[update.index] += update.weight
    return total, weight

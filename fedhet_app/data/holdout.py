"""Which examples of a data set in one piece, or of one client, are for testing."""

import numpy as np
from numpy.typing import NDArray

_EVERY = 5


def every_fifth(groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the fifth, tenth, ... example of each group, in stored order, for testing.

    The rule needs no random numbers, so the split is the same for every seed. A group of fewer
    than five examples is for training alone.

    Args:
        groups: (n,) what to divide alike: the class, or the natural client, of each example.

    Returns:
        Whether it is for testing, (n,).
    """
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    position = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    test = np.empty(len(groups), dtype=bool)
    test[order] = position % _EVERY == _EVERY - 1
    return test


def divide(
    rows: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide one client's examples at random into those to train on and those held out.

    Args:
        rows: (n,) its examples.
        fraction: Of them, below 1, to hold out, rounded down: at least one is left to train on.
        rng: Draws them.

    Returns:
        Both parts, each in the order of ``rows``.
    """
    held = np.zeros(len(rows), dtype=bool)
    held[rng.choice(len(rows), size=int(fraction * len(rows)), replace=False)] = True
    return rows[~held], rows[held]

"""Watching coverage: parameters that no client trains stay at their random initial values.

Paper A, Proposition 3: they still enter every forward pass, and the trained ones drift away.
"""

import logging

import numpy as np
from numpy.typing import NDArray

from fedhet_app.submodel.slicing import Slicer

LOG = logging.getLogger("fedhet")


class Coverage:
    """Which coordinates of the global vector can be trained, and which ever were.

    Args:
        slicer: Slices by width.
        initial: The model before the first round, shape ``(D,)``.
        trained: Coordinates trained before (a resumed run), shape ``(D,)``.
        advance: By how many channels all slices roll from one round to the next.
    """

    def __init__(
        self,
        slicer: Slicer,
        initial: NDArray[np.float32],
        trained: NDArray[np.bool_] | None = None,
        advance: int = 0,
    ) -> None:
        self._initial = initial.view(np.int32)
        self._slicer, self._advance = slicer, advance
        self._num_params = slicer.num_params(1.0)
        self.trained = np.zeros(slicer.size, dtype=bool) if trained is None else trained
        self._warned = False
        self._last: tuple[tuple[float, ...], float] = ((), 0.0)

    def update(self, reach: NDArray[np.float64], covered: NDArray[np.bool_]) -> dict[str, float]:
        """Take in one round and return the fractions for ``rounds.jsonl``.

        Args:
            reach: Widest slice each client can get as things stand, shape ``(N,)``.
            covered: Coordinates trained in this round, shape ``(D,)``.
        """
        self.trained = self.trained | covered
        never = float(np.count_nonzero(~self.trained[: self._num_params]) / self._num_params)
        uncovered = self._uncovered(tuple(np.unique(reach).tolist()))
        if uncovered and not self._warned:
            self._warned = True
            LOG.warning(
                "%.1f %% of the parameters are trained by no client (the largest width is %.3g): "
                "they keep their values and still enter every forward pass",
                100 * uncovered,
                reach.max(),
            )
        return {"uncovered": uncovered, "never-trained": never}

    def unmoved(self, vector: NDArray[np.float32]) -> float:
        """Return the fraction of the parameters whose bits are still those of the initial model."""
        same = vector.view(np.int32) == self._initial
        return float(np.count_nonzero(same[: self._num_params]) / self._num_params)

    def _uncovered(self, widths: tuple[float, ...]) -> float:
        if widths != self._last[0]:
            self._last = (widths, self._slicer.unreached(widths, self._advance))
        return self._last[1]


def untrained_changed(
    before: NDArray[np.float32], after: NDArray[np.float32], covered: NDArray[np.bool_]
) -> int:
    """Return how many coordinates changed a bit in a round in which nobody trained them.

    It is 0, so that by induction what is never trained keeps every bit of its initial value.
    """
    return int(np.count_nonzero((before.view(np.int32) != after.view(np.int32)) & ~covered))

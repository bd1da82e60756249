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
        trained: Coordinates trained before (a resumed run), shape ``(D,)``.
    """

    def __init__(self, slicer: Slicer, trained: NDArray[np.bool_] | None = None) -> None:
        self._slicer = slicer
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

    def _uncovered(self, widths: tuple[float, ...]) -> float:
        if widths != self._last[0]:
            mask = np.zeros(self._slicer.size, dtype=bool)
            for width in widths:
                index = self._slicer.index(width)
                mask[slice(None) if index is None else index] = True
            missing = np.count_nonzero(~mask[: self._num_params]) / self._num_params
            self._last = (widths, float(missing))
        return self._last[1]

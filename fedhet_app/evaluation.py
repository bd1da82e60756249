"""The one evaluation loop, and what is derived from its per-class counts."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedhet_app.submodel.flat import FlatModule
from fedhet_app.training import Examples

BATCH_SIZE = 128


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of one model on one set of examples.

    Attributes:
        loss: Mean cross-entropy in nats.
        correct: Correct predictions per class, shape ``(K,)``.
        count: Examples per class, shape ``(K,)``.
        group_correct: Correct predictions per group of examples, shape ``(m,)``; without groups
            there is one.
        group_count: Examples per group, shape ``(m,)``.
    """

    loss: float
    correct: NDArray[np.int64]
    count: NDArray[np.int64]
    group_correct: NDArray[np.int64]
    group_count: NDArray[np.int64]

    @property
    def accuracy(self) -> float:
        """Fraction of all examples that are predicted correctly."""
        return float(self.correct.sum() / self.count.sum())

    def on_mix(self, histograms: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the accuracy expected on other label mixes.

        Args:
            histograms: Labels per client, shape ``(N, K)``.

        Returns:
            Per-class accuracy weighted by each client's distribution of the labels measured here,
            shape ``(N,)``; the accuracy of all examples for a client that holds none of those.
        """
        per_class = self.correct / np.maximum(self.count, 1)
        measured = histograms * (self.count > 0)
        totals = measured.sum(axis=1)
        on_own = measured @ per_class / np.maximum(totals, 1)
        return np.where(totals > 0, on_own, self.accuracy)


@torch.inference_mode()
def evaluate(
    model: FlatModule,
    examples: Examples,
    num_classes: int,
    rows: Tensor | None = None,
    groups: Tensor | None = None,
) -> Evaluation:
    """Measure ``model`` on ``examples``, or some rows, in evaluation mode, full precision.

    ``groups`` tells for each of all examples which group it is of, counted from 0.
    """
    model.module.eval()
    device = model.params.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    if rows is None:
        rows = torch.arange(len(examples.labels), device=device)
    right = torch.empty(len(rows), dtype=torch.bool, device=device)
    start = 0
    for batch in rows.split(BATCH_SIZE):  # type: ignore[no-untyped-call]
        inputs, labels = examples.batch(batch)
        logits = model.module(inputs)
        total += cross_entropy(logits, labels, reduction="sum")
        right[start : start + len(batch)] = logits.argmax(dim=1) == labels
        start += len(batch)
    labels = examples.labels[rows]
    groups = torch.zeros_like(labels) if groups is None else groups[rows]
    return Evaluation(
        loss=float(total) / len(rows),
        correct=_counts(labels[right], num_classes),
        count=_counts(labels, num_classes),
        group_correct=_counts(groups[right], int(groups.max()) + 1),
        group_count=_counts(groups, int(groups.max()) + 1),
    )


def _counts(values: Tensor, length: int) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = torch.bincount(values, minlength=length).cpu().numpy()
    return counts

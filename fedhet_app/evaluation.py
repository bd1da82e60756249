"""The one evaluation loop, and what is derived from its per-class counts."""

from collections.abc import Iterator
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
        group_correct: Correct predictions per group of examples and class, shape ``(m, K)``;
            without groups there is one.
        group_count: Examples per group and class, shape ``(m, K)``.
    """

    loss: float
    group_correct: NDArray[np.int64]
    group_count: NDArray[np.int64]

    @property
    def correct(self) -> NDArray[np.int64]:
        """Correct predictions per class, shape ``(K,)``."""
        total: NDArray[np.int64] = self.group_correct.sum(axis=0)
        return total

    @property
    def count(self) -> NDArray[np.int64]:
        """Examples per class, shape ``(K,)``."""
        total: NDArray[np.int64] = self.group_count.sum(axis=0)
        return total

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


def balanced(correct: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the balanced accuracy: the mean recall over the classes that occur.

    Args:
        correct: Correct predictions per class, shape ``(..., K)``.
        count: Examples per class, shape ``(..., K)``.

    Returns:
        Shape ``(...)``; 0 where there are no examples.
    """
    recalls = correct / np.maximum(count, 1)
    return np.asarray(recalls.sum(axis=-1) / np.maximum((count > 0).sum(axis=-1), 1))


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
    device = model.params.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    if rows is None:
        rows = torch.arange(len(examples.labels), device=device)
    right = torch.empty(len(rows), dtype=torch.bool, device=device)
    start = 0
    for logits, labels in _batches(model, examples, rows):
        total += cross_entropy(logits, labels, reduction="sum")
        right[start : start + len(labels)] = logits.argmax(dim=1) == labels
        start += len(labels)
    labels = examples.labels[rows]
    groups = torch.zeros_like(labels) if groups is None else groups[rows]
    cells, shape = groups * num_classes + labels, (int(groups.max()) + 1, num_classes)
    return Evaluation(
        loss=float(total) / len(rows),
        group_correct=_counts(cells[right], shape),
        group_count=_counts(cells, shape),
    )


@torch.inference_mode()
def logits_of(model: FlatModule, examples: Examples, rows: Tensor) -> Tensor:
    """Return the logits of some rows in evaluation mode, full precision, shape ``(n, K)``.

    Args:
        model: The network.
        examples: Where ``rows`` index into.
        rows: At least one, shape ``(n,)``.
    """
    return torch.cat([logits for logits, _ in _batches(model, examples, rows)])


def _batches(
    model: FlatModule, examples: Examples, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    model.module.eval()
    for batch in rows.split(BATCH_SIZE):  # type: ignore[no-untyped-call]
        inputs, labels = examples.batch(batch)
        yield model.module(inputs), labels


def _counts(cells: Tensor, shape: tuple[int, int]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = torch.bincount(cells, minlength=shape[0] * shape[1]).cpu().numpy()
    return counts.reshape(shape)

"""Central evaluation: the global model and the slice each capacity tier can run."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.evaluation import Evaluation, balanced, evaluate
from fedhet_app.inference import as_it_predicts
from fedhet_app.task import Task


def measure(
    task: Task, vector: NDArray[np.float32], caps: NDArray[np.float64], *, examples: int = 0
) -> dict[str, Any]:
    """Evaluate the global model on the central test set.

    Args:
        task: Data and network.
        vector: Global model, shape ``(D,)``.
        caps: Largest width of each client, shape ``(N,)``.
        examples: Size of the part of the test set to measure on; 0 for all of it.

    Returns:
        Loss (nats), accuracy and balanced accuracy at full width; by width, the accuracy of the
        slice; by tier of capacity, the mean accuracy of its clients, each on its own label mix with
        the slice it can run; and the lowest of those over all clients. Where each test example is
        some client's, also system and average accuracy: all clients have the one model, so that
        their vote is its prediction, and the averages are those of the clients' accuracies, plain
        and balanced, on their own test examples, weighted by their training examples.
    """
    tiers = sorted({*caps.tolist(), *task.config.tiers, 1.0})
    rows = task.test_rows(examples)
    by_width = {width: _evaluate_slice(task, vector, width, rows) for width in tiers}
    full = by_width[1.0]
    on_own_mix = np.empty(len(caps))
    for width in np.unique(caps):
        chosen = caps == width
        on_own_mix[chosen] = by_width[float(width)].on_mix(task.histograms[chosen])
    row = {
        "loss": full.loss,
        "accuracy": full.accuracy,
        "balanced-accuracy": float(balanced(full.correct, full.count)),
        "slice-accuracy": {f"{width:g}": by_width[width].accuracy for width in tiers},
        "tier-accuracy": {
            f"{width:g}": float(on_own_mix[caps == width].mean()) for width in np.unique(caps)
        },
        "worst-client-accuracy": float(on_own_mix.min()),
    }
    if task.test_owners is not None:
        counts = full.group_count.sum(axis=1)
        by_client = full.group_correct.sum(axis=1) / np.maximum(counts, 1)
        balanced_by_client = balanced(full.group_correct, full.group_count)
        present = np.flatnonzero(counts)
        shares = task.partition.sizes[present]
        row["system-accuracy"] = full.accuracy
        row["average-accuracy"] = float(np.average(by_client[present], weights=shares))
        row["balanced-average-accuracy"] = float(
            np.average(balanced_by_client[present], weights=shares)
        )
        row["client-accuracy"] = {str(i): float(by_client[i]) for i in present}
        row["worst-client-accuracy"] = float(by_client[present].min())
    return row


def _evaluate_slice(
    task: Task, vector: NDArray[np.float32], width: float, rows: Tensor | None
) -> Evaluation:
    model = as_it_predicts(task, vector, width)
    return evaluate(
        model, task.test_examples, task.dataset.num_classes, rows, groups=task.test_groups
    )


def stale(task: Task, vector: NDArray[np.float32], width: float) -> dict[str, float]:
    """Measure what parameters that nobody trains do to the model (Paper A, Proposition 3).

    Paper A holds the frozen columns of the classifier to blame: then zeroing them would mend as
    much as leaving out all frozen channels does.

    Args:
        task: Data and network.
        vector: Global model, shape ``(D,)``.
        width: The widest slice that is still trained.

    Returns:
        The width; accuracies on the whole test set of the model as it is, with the classifier's
        columns outside the slice set to zero, and of the slice.
    """
    slicer = task.slicer
    outside = np.ones(slicer.size, dtype=bool)
    outside[slice(None) if (index := slicer.index(width)) is None else index] = False
    frozen = np.zeros_like(outside)
    for entry in task.classifier:
        frozen[entry.offset : entry.offset + entry.size] = True
    zeroed = np.where(frozen & outside, np.float32(0), vector)
    return {
        "width": width,
        "as-is": _evaluate_slice(task, vector, 1.0, None).accuracy,
        "classifier-zeroed": _evaluate_slice(task, zeroed, 1.0, None).accuracy,
        "slice": _evaluate_slice(task, vector, width, None).accuracy,
    }

"""Central evaluation: the global model and the slice each capacity tier can run."""

import numpy as np
from numpy.typing import NDArray

from fedhet_app.evaluation import Evaluation, evaluate
from fedhet_app.task import Task


def measure(
    task: Task, vector: NDArray[np.float32], caps: NDArray[np.float64]
) -> dict[str, float | dict[str, float]]:
    """Evaluate the global model on the central test set.

    Args:
        task: Data and network.
        vector: Global model, shape ``(D,)``.
        caps: Largest width of each client, shape ``(N,)``.

    Returns:
        Loss (nats) and accuracy at full width; by width, the accuracy of the slice; by tier of
        capacity, the mean accuracy of its clients, each on its own label mix with the slice it can
        run; and the lowest of those over all clients.
    """
    tiers = sorted({*caps.tolist(), *task.config.tiers, 1.0})
    by_width = {width: _evaluate_slice(task, vector, width) for width in tiers}
    full = by_width[1.0]
    on_own_mix = np.empty(len(caps))
    for width in np.unique(caps):
        chosen = caps == width
        on_own_mix[chosen] = by_width[float(width)].on_mix(task.histograms[chosen])
    return {
        "loss": full.loss,
        "accuracy": full.accuracy,
        "slice-accuracy": {f"{width:g}": by_width[width].accuracy for width in tiers},
        "tier-accuracy": {
            f"{width:g}": float(on_own_mix[caps == width].mean()) for width in np.unique(caps)
        },
        "worst-client-accuracy": float(on_own_mix.min()),
    }


def _evaluate_slice(task: Task, vector: NDArray[np.float32], width: float) -> Evaluation:
    index = task.slicer.index(width)
    model = task.module(width)
    model.load(vector if index is None else vector[index])
    return evaluate(model, task.test_images, task.dataset.num_classes)

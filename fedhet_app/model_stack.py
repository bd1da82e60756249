"""Several models of one form as one vector, for methods that train C of them side by side.

A stack has shape ``(C D,)``, model after model; on the wire it is one vector.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.evaluation import logits_of
from fedhet_app.submodel.layout import unflatten
from fedhet_app.task import Task
from fedhet_app.training import Examples

CLUSTER = "cluster"


def initial_stack(task: Task, count: int, draw: int = 0) -> NDArray[np.float32]:
    """Return models of independent initial weights; the first of draw 0 is every other method's.

    Args:
        task: The network, and the run's seed.
        count: The number of models, C.
        draw: Tells draws of one run apart.
    """
    keys = [(model, draw) if model or draw else () for model in range(count)]
    return np.concatenate([task.initial_vector(*key) for key in keys])


def models_of(task: Task, stack: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a view of a stack with a row for each model, shape ``(C, D)``.

    Raises:
        ValueError: It holds no whole number of models.
    """
    return stack.reshape(-1, task.slicer.size)


def stack_logits(
    task: Task, stack: NDArray[np.float32], examples: Examples, rows: Tensor
) -> Tensor:
    """Return what every model gives for some rows in evaluation mode, shape ``(n, C, K)``.

    Args:
        task: The network.
        stack: Shape ``(C D,)``.
        examples: Where ``rows`` index into.
        rows: At least one, shape ``(n,)``.
    """
    model, logits = task.module(1.0), []
    for vector in models_of(task, stack):
        model.load(vector)
        logits.append(logits_of(model, examples, rows))
    return torch.stack(logits, dim=1)


def stack_tensors(task: Task, stack: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return a stack in torch's names and shapes; a model that is alone has no number."""
    models, layout = models_of(task, stack), task.slicer.layout(1.0)
    return {
        name if len(models) == 1 else f"models.{number}.{name}": array
        for number, vector in enumerate(models)
        for name, array in unflatten(layout, vector).items()
    }

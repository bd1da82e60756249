"""The network of one width as it predicts: measured by the server, written for a device.

Under every norm but one it is the slice that clients train. Static batch norm (``norm = "sbn"``,
HeteroFL) trains by the statistics of each batch and keeps none, so that none have to be averaged
over clients of different width. A network that predicts needs some: they are built anew for every
width, by one pass of the whole training set through its slice, and live in the ordinary batch norm
layers of this network alone, never in the global vector.

Deviations from HeteroFL (Diao et al. 2021):
    1. As in the published code the pass is central: it sees the clients' training examples, which
       the paper would have every client send statistics for. No real deployment can do this.
    2. The batches of the pass are of equal size, so that their mean weighs all examples alike.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import unflatten
from fedhet_app.task import Task
from fedhet_app.training import Examples

BATCH_SIZE = 128


def as_it_predicts(task: Task, vector: NDArray[np.float32], width: float) -> FlatModule:
    """Return the network of one width with its slice of a global model.

    Args:
        task: Data and network; of the data only the training examples under static batch norm.
        vector: Global model, shape ``(D,)``.
        width: Fraction of the channels, in (0, 1].

    Returns:
        A module to use in evaluation mode; under static batch norm its layout has the statistics.
    """
    index = task.slicer.index(width)
    part = vector if index is None else vector[index]
    if task.config.norm != "sbn":
        model = task.module(width)
        model.load(part)
        return model
    twin = task.builder(width, replace(task.spec, norm="bn"))
    tensors = unflatten(task.slicer.layout(width), part)
    arrays = {name: torch.from_numpy(array) for name, array in tensors.items()}
    twin.load_state_dict(arrays, strict=False)
    model = FlatModule(twin, task.device)
    build_statistics(model.module, task.train_examples)
    return model


@torch.no_grad()
def build_statistics(module: nn.Module, examples: Examples) -> None:
    """Set the running statistics of all batch norm layers to their mean over the examples' batches.

    Args:
        module: In which all else, dropout for one, stays in evaluation mode.
        examples: At least one.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    if not norms:
        return
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's name for a cumulative mean
        norm.train()
    rows = torch.arange(len(examples.labels), device=examples.labels.device)
    for batch in rows.tensor_split(-(-len(rows) // BATCH_SIZE)):
        inputs, _ = examples.batch(batch)
        module(inputs)
    module.eval()

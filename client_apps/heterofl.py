"""HeteroFL's local training (Diao et al. 2021), with what the published code adds to it.

The client trains its slice as in every sub-model method. With ``heterofl.masked-classifier`` the
logits of labels that it holds no example of are set to 0 in its loss, so that their rows learn
nothing from it; with ``heterofl.scaler`` the outputs of its sliced layers are divided by its width
while it trains, since the full network that is evaluated sums up more channels. Without options, or
with every label and at width 1, it is ``local.train``.

Deviations:
    1. The published code puts a scaler behind every sliced layer by hand; here hooks find them:
       convolutions and linear layers. Recurrent layers have none: their gates bound what they pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from client_apps import local
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.task import Task
from fedhet_app.training import Forward, Objective, cross_entropy_objective
from fedhet_app.wire import TrainReply, TrainRequest


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Train the slice with the options that are on."""
    options = task.config.heterofl
    objective: Objective = cross_entropy_objective
    if options.masked_classifier:
        absent = torch.from_numpy(task.histograms[partition] == 0).to(task.device)
        objective = masked_cross_entropy(absent)
    if not options.scaler:
        return local.train(task, partition, request, objective=objective)
    module = task.module(request.width).module  # the one that local.train asks for next
    with scaled_outputs(module, task.slicer.cut_layers(), request.width):
        return local.train(task, partition, request, objective=objective)


def masked_cross_entropy(absent: Tensor) -> Objective:
    """Return the mean cross-entropy of logits that are 0 where a label is absent.

    Args:
        absent: Whether the client lacks the label, bool, shape (K,).
    """

    def objective(forward: Forward, model: FlatModule, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = forward(model, inputs).masked_fill(absent, 0.0)
        loss = cross_entropy(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return objective


@contextmanager
def scaled_outputs(module: nn.Module, layers: tuple[str, ...], width: float) -> Iterator[None]:
    """Divide the outputs of the named layers by the width, as long as the block runs."""

    def divide(layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return output / width

    named = [] if width == 1.0 else layers
    hooks = [module.get_submodule(name).register_forward_hook(divide) for name in named]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

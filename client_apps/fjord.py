"""FjORD's local training (Horvath et al. 2021, Algorithm 1): ordered dropout.

With ``fjord.draw = "batch"`` a client holds the slice of its largest tier and draws for every
mini-batch one of the tiers up to it, uniformly; the batch trains the leading part of that width.
With ``fjord.distillation`` the widest learns from the labels at every batch and the drawn one from
the widest's softmax. With one tier, or ``draw = "round"`` (Paper A), it is ``local.train``.

Deviations:
    1. Networks with running statistics are refused; the published code keeps a set of them for
       every width.
    2. Momentum and weight decay, if any, act on the whole slice, whatever was drawn, as the
       published optimiser's do; the paper leaves them out.
    3. The loss that is reported is the cross-entropy against the labels alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from client_apps import local
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.task import Task
from fedhet_app.training import Forward, Objective, cross_entropy_objective
from fedhet_app.wire import TrainReply, TrainRequest


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Train the slice, or a part of it that is drawn anew for every mini-batch."""
    config = task.config
    if config.fjord.draw == "round":
        return local.train(task, partition, request)
    rng = rng_for(config.seed, "width", partition, request.server_round)
    narrower = [tier for tier in config.tiers if tier < request.width]
    parts = [nested(task, width, request.width) for width in (*narrower, request.width)]
    objective = OrderedDropout(
        draw=lambda: parts[rng.integers(len(parts))], distillation=config.fjord.distillation
    )
    return local.train(task, partition, request, objective=objective)


def costliest(task: Task, width: float) -> Objective:
    """Return the objective of the mini-batch that costs a slice most.

    With distillation that is one whose widest narrower part is taught, else one of the whole slice.
    """
    config = task.config
    narrower = [tier for tier in config.tiers if tier < width]
    if config.fjord.draw == "round" or not config.fjord.distillation or not narrower:
        return cross_entropy_objective
    part = nested(task, narrower[-1], width)
    return OrderedDropout(draw=lambda: part, distillation=True)


class Nested:
    """A narrower network of its own whose weights are gathered from a wider one.

    Args:
        model: The narrower network.
        index: Where its vector lies in the wider one's, shape (size of its layout,).
    """

    def __init__(self, model: FlatModule, index: Tensor) -> None:
        self.model, self._index = model, index
        model.module.train()

    def load(self, wider: FlatModule) -> None:
        """Take the wider network's present weights."""
        torch.index_select(wider.vector, 0, self._index, out=self.model.vector)
        self.model.grad.zero_()

    def add_gradient(self, wider: FlatModule) -> None:
        """Add the gradient to that of the wider network; it has none elsewhere."""
        wider.grad.index_add_(0, self._index[: len(self.model.grad)], self.model.grad)


def nested(task: Task, width: float, outer: float) -> Nested | None:
    """Return the network of a width inside the one of ``outer``; ``None`` where it is all of it."""
    if task.slicer.layout(width) == task.slicer.layout(outer):
        return None
    index = torch.tensor(task.slicer.within(width, outer), device=task.device)
    return Nested(task.module(width), index)


class OrderedDropout:
    """The objective of a mini-batch: a width is drawn, and its part of the slice learns.

    Args:
        draw: Returns a batch's network; ``None`` for the whole slice.
        distillation: Whether the widest teaches what is drawn.
    """

    def __init__(self, *, draw: Callable[[], Nested | None], distillation: bool) -> None:
        self._draw, self._distillation = draw, distillation

    def __call__(
        self, forward: Forward, model: FlatModule, inputs: Tensor, labels: Tensor
    ) -> Tensor:
        """Add to the slice's gradient, return the mean cross-entropy against the labels."""
        part = self._draw()
        if part is None:
            # As its own teacher, too: the cross-entropy against its own softmax has no gradient.
            return cross_entropy_objective(forward, model, inputs, labels)
        part.load(model)
        if self._distillation:
            logits = forward(model, inputs)
            loss = cross_entropy(logits, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            taught = cross_entropy(forward(part.model, inputs), softmax(logits.detach(), dim=1))
            taught.backward()  # type: ignore[no-untyped-call]
        else:
            loss = cross_entropy_objective(forward, part.model, inputs, labels)
        part.add_gradient(model)
        return loss.detach()

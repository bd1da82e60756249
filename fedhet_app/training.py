"""The one local SGD loop.

Variants pass a gradient hook; loss is a mean over examples. Everything a step needs lies in three
flat tensors (parameters, gradient, momentum), so the optimiser, the clipping and a hook are a few
whole-vector operations whatever the number of layers.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.sgd import sgd

from fedhet_app.config import Config
from fedhet_app.submodel.flat import FlatModule

GradientHook = Callable[[Tensor, Tensor], None]
"""Called with (parameters, gradient), both flat; changes the gradient in place."""

Forward = Callable[[FlatModule, Tensor], Tensor]
"""Returns a model's float32 logits, computed in the run's precision."""

Objective = Callable[[Forward, FlatModule, Tensor, Tensor], Tensor]
"""Called with (forward, model, inputs, labels); adds to ``model.grad``, returns the mean loss."""


def cross_entropy_objective(
    forward: Forward, model: FlatModule, inputs: Tensor, labels: Tensor
) -> Tensor:
    """Take the gradient of the mean cross-entropy, and return it as a scalar."""
    loss = cross_entropy(forward(model, inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: a training step otherwise returns and refaults megabytes."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            trim_threshold, mmap_threshold = -1, -3
            libc.mallopt(trim_threshold, 512 << 20)
            libc.mallopt(mmap_threshold, 1 << 30)


class Examples(Protocol):
    """Labelled examples on the training device."""

    @property
    def labels(self) -> Tensor:
        """Classes, int64, shape ``(N,)``."""

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of some rows, as a network and its loss take them."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Decoded examples on the training device, normalised batch by batch.

    Attributes:
        pixels: uint8, shape ``(N, H, W, C)``.
        labels: int64, shape ``(N,)``.
        scale: 1 / standard deviation per channel, shape ``(C,)``.
        shift: -mean / standard deviation per channel, shape ``(C,)``.
    """

    pixels: Tensor
    labels: Tensor
    scale: Tensor
    shift: Tensor

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised inputs ``(B, C, H, W)`` (channels last), and labels ``(B,)``."""
        return self.normalised(self.pixels[rows]), self.labels[rows]

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return network inputs ``(B, C, H, W)`` of uint8 pixels ``(B, H, W, C)``."""
        inputs = pixels.to(torch.float32).mul_(self.scale).add_(self.shift)
        return inputs.permute(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of text on the training device.

    Attributes:
        symbols: uint8, shape ``(N, L)``.
        labels: The symbol behind each window, int64, shape ``(N,)``.
    """

    symbols: Tensor
    labels: Tensor

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return symbols ``(B, L)`` as int64, and labels ``(B,)``."""
        return self.symbols[rows].to(torch.int64), self.labels[rows]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of numbers on the training device.

    Attributes:
        values: float32, shape ``(N, F)``.
        labels: int64, shape ``(N,)``.
    """

    values: Tensor
    labels: Tensor

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers ``(B, F)`` as they are, and labels ``(B,)``."""
        return self.values[rows], self.labels[rows]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Mean training loss over the examples processed, and the number of steps."""

    loss: float
    steps: int


def batches(
    rows: NDArray[np.int64], batch_size: int, steps: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield ``steps`` batches, reshuffling at each epoch; an epoch's last batch may be short."""
    per_epoch = -(-len(rows) // batch_size)
    for step in range(steps):
        position = step % per_epoch
        if position == 0:
            order = rng.permutation(rows)
        yield order[position * batch_size : (position + 1) * batch_size]


def local_steps(config: Config, examples: int) -> int:
    """Return a client's number of SGD steps in one round (Paper A, Algorithm 1: K)."""
    return config.local_steps or config.local_epochs * -(-examples // config.batch_size)


def local_sgd(
    model: FlatModule,
    images: Examples,
    rows: NDArray[np.int64],
    *,
    config: Config,
    lr: float,
    rng: np.random.Generator,
    hook: GradientHook | None = None,
    clip_before_hook: bool = False,
    objective: Objective = cross_entropy_objective,
) -> TrainResult:
    """Train ``model`` in place with SGD, momentum starting at zero.

    Args:
        model: Holds the start point; holds the result afterwards.
        images: Where ``rows`` index into.
        rows: The client's examples, shape ``(n,)``.
        config: Batch size, epochs or steps, momentum, weight decay, clipping, precision.
        lr: Learning rate of this round.
        rng: Order of the batches.
        hook: Changes the gradient (a proximal term, a control variate).
        clip_before_hook: Clip the loss's gradient alone, not what the hook makes of it.
        objective: The loss and its gradient.
    """
    steps = local_steps(config, len(rows))
    momentum: list[Tensor | None] = [None]
    device = model.params.device
    forward = _autocast_forward if config.precision == "bf16" else _forward
    total, seen = torch.zeros((), dtype=torch.float64, device=device), 0
    if not model.module.training:
        model.module.train()
    norms = [layer for layer in model.module.modules() if isinstance(layer, _BatchNorm)]
    for chosen in batches(rows, config.batch_size, steps, rng):
        inputs, labels = images.batch(torch.from_numpy(chosen).to(device))
        model.grad.zero_()
        # One example may have no variance to normalise with: it takes the running statistics.
        for norm in norms:
            norm.train(len(chosen) > 1)
        loss = objective(forward, model, inputs, labels)
        if config.clip_norm and clip_before_hook:
            clip_gradient(model.grad, config.clip_norm)
        if hook is not None:
            hook(model.params, model.grad)
        if config.clip_norm and not clip_before_hook:
            clip_gradient(model.grad, config.clip_norm)
        sgd(
            [model.params],
            [model.grad],
            momentum,
            fused=True,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        total.add_(loss, alpha=len(chosen))
        seen += len(chosen)
    return TrainResult(loss=float(total) / seen, steps=steps)


def _forward(model: FlatModule, inputs: Tensor) -> Tensor:
    logits: Tensor = model.module(inputs)
    return logits


def _autocast_forward(model: FlatModule, inputs: Tensor) -> Tensor:
    with torch.autocast(model.params.device.type, torch.bfloat16):
        logits: Tensor = model.module(inputs)
    return logits.float()


def clip_gradient(gradient: Tensor, max_norm: float) -> None:
    """Scale a flat gradient in place to a Euclidean norm of at most ``max_norm``."""
    norm = torch.linalg.vector_norm(gradient)
    gradient.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))

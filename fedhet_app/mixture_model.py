"""The networks of a method that routes: what travels, what a client keeps, and what both give.

The predictor holds the encoders g and the heads (alpha_i, beta_i) of one client; the router holds
the encoders h and the table (gamma, xi) of all clients. The encoders, with their float buffers, and
the table travel as one vector; the heads never do.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.mixture.em import log_weights
from fedhet_app.models import INITS, ModelSpec, build_predictor, build_router
from fedhet_app.seeding import torch_seeded
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import unflatten
from fedhet_app.submodel.shared import shared_index
from fedhet_app.task import Task
from fedhet_app.training import Examples

HEADS, PI = "heads", "pi"
DIAGNOSTICS = "diagnostics"
OF_E_STEP = ("agreement", "accuracy-by-w", "accuracy-by-x", "effective-components", "purity")
RESPONSIBILITIES, LOG_MIXTURE = "responsibilities", "log-mixture"
OF_M_STEP = ("router-loss", "seconds-supervised", "seconds-router")
"""What a client says of its E-step and of its M-step, by position."""

BATCH_SIZE = 256

Private = dict[str, NDArray[Any]]
"""What a client keeps: ``heads``, flat, and the mixing weights ``pi``, shape ``(C,)``."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What both networks give for some examples.

    Attributes:
        logits: Of every component's head, shape ``(n, C, K)``.
        scores: Log density ratios, shape ``(n, m, C)``.
    """

    logits: Tensor
    scores: Tensor


class MixtureModel:
    """Predictor and router of a task.

    Args:
        task: Data and network; its configuration's method routes.
    """

    def __init__(self, task: Task) -> None:
        config = task.config
        per_component = config.fedspm.encoders == "per-component"
        identical = config.fedspm.init == "identical"
        with torch_seeded(config.seed, "init"):
            predictor = build_predictor(
                task.builder,
                task.spec,
                components=config.components,
                per_component=per_component,
                identical=identical,
            )
            router = build_router(
                task.spec,
                encoder=config.routing.encoder,
                embedding=config.routing.embedding,
                num_clients=config.num_clients,
                components=config.components,
                per_component=per_component,
                identical=identical,
            )
            for module in (predictor, router):
                INITS[config.init](module)
        self.components = config.components
        self._batch_size = batch_size(task.spec)
        self.predictor = FlatModule(predictor, task.device)
        self.router = FlatModule(router, task.device)
        layout = self.predictor.layout
        self._shared = shared_index(layout)
        self._private = np.setdiff1d(np.arange(layout.size), self._shared)
        self.initial = self.vector()
        self._initial_heads = self.heads()

    @property
    def size(self) -> int:
        """Number of floats that travel."""
        return len(self._shared) + self.router.layout.size

    @property
    def parts(self) -> dict[str, int]:
        """Number of floats of what travels, and of what does not, by name."""
        return {"shared": self.size, "heads": len(self._private)}

    def private(self) -> Private:
        """Return what every client starts with: the same heads, equal mixing weights."""
        pi = np.full(self.components, 1 / self.components, dtype=np.float32)
        return {HEADS: self._initial_heads, PI: pi}

    def load(self, vector: NDArray[np.float32], heads: NDArray[np.float32] | None = None) -> None:
        """Put the shared vector, shape ``(size,)``, and a client's heads in place."""
        predictor = self.predictor.numpy()
        predictor[self._shared] = vector[: len(self._shared)]
        if heads is not None:
            predictor[self._private] = heads
        self.predictor.load(predictor)
        self.router.load(vector[len(self._shared) :])

    def vector(self) -> NDArray[np.float32]:
        """Return a copy of what travels, shape ``(size,)``."""
        return np.concatenate([self.predictor.numpy()[self._shared], self.router.numpy()])

    def heads(self) -> NDArray[np.float32]:
        """Return a copy of the heads, flat."""
        return self.predictor.numpy()[self._private]

    def tensors(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return what travels in torch's names and shapes."""
        predictor = np.empty(self.predictor.layout.size, dtype=np.float32)
        predictor[self._shared] = vector[: len(self._shared)]
        parts = {
            "predictor": unflatten(self.predictor.layout, predictor),
            "router": unflatten(self.router.layout, vector[len(self._shared) :]),
        }
        return {
            f"{part}.{name}": array
            for part, tensors in parts.items()
            for name, array in tensors.items()
            if not name.startswith("heads.")
        }

    @cached_property
    def table_size(self) -> int:
        """Number of parameters of gamma and xi, which lie behind the routing encoders'."""
        entries = self.router.layout.entries
        return sum(e.size for e in entries if e.is_parameter and e.name.startswith("table."))

    @torch.inference_mode()
    def outputs(self, examples: Examples, rows: Tensor, *, predict: bool = True) -> Outputs:
        """Return what the networks give for some rows, in one pass and evaluation mode.

        Args:
            examples: Where ``rows`` index into.
            rows: Shape ``(n,)``.
            predict: Whether to run the predictor; else there are no logits, shape ``(0, C, K)``.
        """
        self.predictor.module.eval()
        self.router.module.eval()
        logits, scores = [], []
        for inputs in _inputs(examples, rows, self._batch_size):
            if predict:
                logits.append(self.predictor.module(inputs))
            scores.append(self.router.module(inputs))
        none = torch.empty(0, self.components, 0)
        return Outputs(logits=torch.cat(logits) if logits else none, scores=torch.cat(scores))


def _inputs(examples: Examples, rows: Tensor, size: int) -> Iterator[Tensor]:
    for batch in rows.split(size):  # type: ignore[no-untyped-call]
        yield examples.batch(batch)[0]


def batch_size(spec: ModelSpec) -> int:
    """Return how many images go through the networks at once: 256, fewer of more than 64x64."""
    pixels = math.prod(spec.input_shape[1:])
    return max(1, min(BATCH_SIZE, BATCH_SIZE * 64 * 64 // pixels))


def of_e_step(task: Task) -> tuple[str, ...]:
    """Return ``OF_E_STEP``, its last left out where the true components are not known."""
    return OF_E_STEP if task.dataset.train_components is not None else OF_E_STEP[:-1]


def log_pi(private: Private, device: torch.device) -> Tensor:
    """Return the logarithms of a client's mixing weights, shape ``(C,)``."""
    return log_weights(torch.from_numpy(private[PI].copy()).to(device))


mixture_of = lru_cache(maxsize=2)(MixtureModel)

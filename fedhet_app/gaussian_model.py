"""FedGMM's shared model: a stack of classifiers, and Gaussians over features of a frozen encoder.

The classifiers, the projection of the features and the Gaussians travel as one vector. An encoder
that stays as it is drawn does not: every node draws it from the run's seed. One that another run
has trained travels behind them, in every message: devices do not see that run's directory, and a
node that starts again, or was away, must not depend on what it kept.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.errors import FedhetError
from fedhet_app.evaluation import logits_of
from fedhet_app.mixture.gaussian import Gaussians, Projection, log_densities
from fedhet_app.mixture_model import MixtureModel, Outputs, mixture_of
from fedhet_app.model_stack import initial_stack, stack_logits, stack_tensors
from fedhet_app.models import INITS
from fedhet_app.models.encoders import build_encoder
from fedhet_app.seeding import rng_for, torch_seeded
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import unflatten
from fedhet_app.task import Task
from fedhet_app.training import Examples

MOMENTS, MASS = "moments", "mass"
"""What a client sends beside its classifiers: moments by Gaussian, and examples by classifier."""


@dataclass(frozen=True, kw_only=True)
class SharedPart:
    """What travels.

    Attributes:
        stack: The classifiers, shape ``(B D,)``.
        projection: From the encoder's features to z; zero before the first exchange of a run.
        gaussians: Over z.
        encoder: One that was trained, flat; empty for one that is as it was drawn.
    """

    stack: NDArray[np.float32]
    projection: Projection
    gaussians: Gaussians
    encoder: NDArray[np.float32]

    def vector(self) -> NDArray[np.float32]:
        """Return all of it as one vector."""
        parts = (
            self.projection.center,
            self.projection.axes,
            self.gaussians.means,
            self.gaussians.covariances,
        )
        flat = (part.ravel().astype(np.float32) for part in parts)
        return np.concatenate([self.stack, *flat, self.encoder])


class GaussianModel:
    """Encoder, classifiers and Gaussians of a task.

    Args:
        task: Data and network; its method is FedGMM.

    Raises:
        FedhetError: The encoder's features have fewer dimensions than they are to be projected to.
    """

    def __init__(self, task: Task) -> None:
        options, embedding = task.config.fedgmm, task.config.routing.embedding
        if options.dimensions > embedding:
            remedy = f"routing.embedding = {embedding} features have no more; use that or less"
            raise FedhetError("fedgmm.dimensions", options.dimensions, remedy)
        self._task, self.embedding = task, embedding
        count, size = options.gaussians, options.dimensions
        self._shapes = ((embedding,), (size, embedding), (count, size), (count, size, size))
        with torch_seeded(task.config.seed, "init", 0):
            encoder = build_encoder(task.config.routing.encoder, embedding, task.spec)
            INITS[task.config.init](encoder)
        self._encoder = FlatModule(encoder, task.device)
        self._trained = bool(options.features)
        stack = initial_stack(task, options.components)
        self.stack_size = stack.size
        means = rng_for(task.config.seed, "clusters").normal(size=(count, size))
        shared = SharedPart(
            stack=stack,
            projection=Projection(center=np.zeros(embedding), axes=np.zeros((size, embedding))),
            gaussians=Gaussians(means=means, covariances=np.stack([np.eye(size)] * count)),
            encoder=self._encoder.numpy() if self._trained else np.empty(0, dtype=np.float32),
        )
        self.initial = shared.vector()
        self.load(self.initial)

    @property
    def parts(self) -> dict[str, int]:
        """The number of floats of what travels, and of what does not, by name."""
        private = self._task.config.fedgmm.gaussians * self._task.config.fedgmm.components
        return {"shared": self.initial.size, "mixing weights": private}

    def load(self, vector: NDArray[np.float32]) -> None:
        """Put what travels in place, of the shape of ``initial``; ``shared`` has its parts."""
        self.shared = self.split(vector)
        self.load_encoder(self.shared.encoder)

    def load_encoder(self, encoder: NDArray[np.float32]) -> None:
        """Put a trained encoder in place; nothing where it stays as it is drawn."""
        if self._trained:
            self._encoder.load(encoder)

    def split(self, vector: NDArray[np.float32]) -> SharedPart:
        """Return the parts of what travels."""
        ends = np.cumsum([self.stack_size, *map(math.prod, self._shapes)])
        stack, *flat, encoder = np.split(vector, ends)
        center, axes, means, covariances = (
            part.astype(np.float64).reshape(shape)
            for part, shape in zip(flat, self._shapes, strict=True)
        )
        return SharedPart(
            stack=stack,
            projection=Projection(center=center, axes=axes),
            gaussians=Gaussians(means=means, covariances=covariances),
            encoder=encoder,
        )

    def features(self, examples: Examples, rows: Tensor) -> Tensor:
        """Return the encoder's features h of some rows, float64 of shape ``(n, D)``."""
        return logits_of(self._encoder, examples, rows).double()

    def projected(self, features: Tensor) -> Tensor:
        """Return z, float64 of shape ``(n, d)``, of features ``(n, D)``."""
        projection = self.shared.projection
        center, axes = (
            torch.from_numpy(each).to(features.device)
            for each in (projection.center, projection.axes)
        )
        return (features - center) @ axes.T

    def log_densities(self, z: Tensor) -> Tensor:
        """Return those of every Gaussian at z ``(n, d)``, float64 of shape ``(n, A)``.

        They are equal while no survey has given z its axes: z is one point, which tells nothing.
        """
        if not self.shared.projection.axes.any():
            return z.new_zeros(len(z), len(self.shared.gaussians.means))
        return log_densities(z, self.shared.gaussians)

    def logits(self, examples: Examples, rows: Tensor) -> Tensor:
        """Return what every classifier gives for some rows, shape ``(n, B, K)``."""
        return stack_logits(self._task, self.shared.stack, examples, rows)

    def outputs(self, examples: Examples, rows: Tensor, *, predict: bool = True) -> Outputs:
        """Return logits ``(n, B, K)`` and, as every client's scores, log densities ``(n, m, A)``.

        Args:
            examples: Where ``rows`` index into.
            rows: At least one, shape ``(n,)``.
            predict: Whether to run the classifiers; else there are no logits, ``(0, B, K)``.
        """
        z = self.projected(self.features(examples, rows))
        densities = self.log_densities(z)
        none = torch.empty(0, self._task.config.fedgmm.components, 0)
        return Outputs(
            logits=self.logits(examples, rows) if predict else none,
            scores=densities[:, None].expand(-1, self._task.config.num_clients, -1),
        )

    def tensors(self, vector: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return what travels by name, the networks in torch's names and shapes."""
        shared = self.split(vector)
        encoder = unflatten(self._encoder.layout, shared.encoder) if self._trained else {}
        return {
            **stack_tensors(self._task, shared.stack),
            **{f"encoder.{name}": array for name, array in encoder.items()},
            "projection.center": shared.projection.center,
            "projection.axes": shared.projection.axes,
            "gaussians.means": shared.gaussians.means,
            "gaussians.covariances": shared.gaussians.covariances,
        }


gaussian_model_of = lru_cache(maxsize=2)(GaussianModel)


def routing_model_of(task: Task) -> MixtureModel | GaussianModel:
    """Return the networks by which a task's method routes."""
    return gaussian_model_of(task) if task.config.strategy == "fedgmm" else mixture_of(task)

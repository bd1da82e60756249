"""What the GPU check trains: slices of the CNN on synthetic images, through the app's own loop."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from fedhet_app.config import Config, parse
from fedhet_app.models import ModelSpec, builder_for, initial_module
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import flatten
from fedhet_app.submodel.slicing import Slicer
from fedhet_app.training import Images, local_sgd

SEED, LR = 42, 0.05
MEAN, STD = 127.5, 64.0
SHAPE, CLASSES = (3, 32, 32), 10

Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is trained.

    Attributes:
        preset: Size of the CNN.
        batch: Examples in a step.
        steps: Steps whose result is compared.
        timed_steps: Steps whose time is taken.
        client_examples: Examples of each of the ten clients of a round.
        epochs: Their local epochs.
    """

    preset: str
    batch: int
    steps: int
    timed_steps: int
    client_examples: int
    epochs: int


FULL = Sizes(preset="paper", batch=64, steps=3, timed_steps=100, client_examples=2500, epochs=5)
SMALL = Sizes(preset="small", batch=8, steps=3, timed_steps=3, client_examples=16, epochs=1)
CLIENTS = 10


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A slice after training, and its mean loss."""

    vector: Vector
    loss: float


class Bench:
    """Trains slices.

    Args:
        sizes: How much.
        norm: Normalisation of the CNN.
    """

    def __init__(self, sizes: Sizes, norm: str) -> None:
        self.sizes, self.norm = sizes, norm
        self.spec = ModelSpec(
            input_shape=SHAPE, num_classes=CLASSES, preset=sizes.preset, norm=norm
        )
        self.build = builder_for("cnn")
        self.slicer = Slicer(self.build, self.spec)
        self.module = initial_module(self.build, self.spec, "default", SEED)
        self.vector = flatten(self.module)
        self.images = cache(self._images)

    def start(self, width: float) -> Vector:
        """Return the initial weights of a slice."""
        index = self.slicer.index(width)
        return self.vector if index is None else self.vector[index]

    def config(self, precision: str = "fp32", **settings: int) -> Config:
        """Return settings of the local loop; ``local_steps`` or ``local_epochs`` by keyword."""
        length = {key.replace("_", "-"): value for key, value in settings.items()}
        return parse({"batch-size": self.sizes.batch, "precision": precision, **length})

    def load(self, width: float, device: str) -> FlatModule:
        """Return the slice of a width on a device, with its initial weights."""
        model = FlatModule(self.build(width, self.spec), device)
        model.load(self.start(width))
        return model

    def train(self, width: float, device: str, precision: str = "fp32") -> Trained:
        """Train a slice for a few steps with the app's loop."""
        model = self.load(width, device)
        result = local_sgd(
            model,
            self.images(device),
            self.rows(),
            config=self.config(precision, local_steps=self.sizes.steps),
            lr=LR,
            rng=rng_for(SEED, "shuffle", 0, 1),
        )
        return Trained(vector=model.numpy(), loss=result.loss)

    def train_plain(self, width: float) -> dict[str, NDArray[np.float64]]:
        """Do the same in double precision on tensors cut out of the full state dict."""
        sizes, full, module = self.sizes, self.module.state_dict(), self.build(width, self.spec)
        leading = {n: tuple(map(slice, v.shape)) for n, v in module.state_dict().items()}
        module.load_state_dict({name: full[name][cut] for name, cut in leading.items()})
        module.double()
        config, images = self.config(), self.images("cpu")
        optimizer = torch.optim.SGD(
            module.parameters(), LR, config.momentum, weight_decay=config.weight_decay
        )
        order = torch.from_numpy(rng_for(SEED, "shuffle", 0, 1).permutation(self.rows()))
        for step in range(sizes.steps):
            rows = order[step * sizes.batch : (step + 1) * sizes.batch]
            inputs = (images.pixels[rows].double() - MEAN) / STD
            loss = cross_entropy(module(inputs.permute(0, 3, 1, 2)), images.labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(module.parameters(), config.clip_norm)
            optimizer.step()
        return {name: value.numpy() for name, value in module.state_dict().items()}

    def rows(self, client: int = 0) -> NDArray[np.int64]:
        """Return the examples of one client; client 0 has those of a comparison."""
        size = max(self.sizes.client_examples, self.sizes.steps * self.sizes.batch)
        return np.arange(client * size, (client + 1) * size)

    def _images(self, device: str) -> Images:
        count, rng = CLIENTS * len(self.rows()), rng_for(SEED, "subsample")
        channels, *sides = SHAPE
        pixels = rng.integers(256, size=(count, *sides, channels), dtype=np.uint8)
        return Images(
            pixels=torch.from_numpy(pixels).to(device),
            labels=torch.from_numpy(rng.integers(CLASSES, size=count)).to(device),
            scale=torch.full((channels,), 1 / STD, device=device),
            shift=torch.full((channels,), -MEAN / STD, device=device),
        )

"""Routing encoders h: light convolutional networks from an image to a bounded embedding.

Both end in Linear -> LayerNorm -> ReLU, which bounds ||h|| by about sqrt(d) and so keeps
exp(gamma + xi . h) in range. ``lenet`` is the trunk of LeNetGN in FedDRM's reference code, whose
8 and 16 groups are groups of 4 channels; ``small`` needs a fifteenth of its multiply-accumulates.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.models.layers import norm_layer
from fedhet_app.models.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class _Trunk:
    """The convolutions of an encoder.

    Attributes:
        channels: Channels of its feature map.
        smallest_side: Fewest rows and columns of an image.
        layers: Its layers, for the channels of an image.
        side: Rows or columns of its feature map, for those of an image.
    """

    channels: int
    smallest_side: int
    layers: Callable[[int], list[nn.Module]]
    side: Callable[[int], int]


def _small(inputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, 16, kernel_size=3, stride=2, padding=1),
        norm_layer("gn", 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        norm_layer("gn", 32),
        nn.ReLU(),
    ]


def _lenet(inputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, 32, kernel_size=5),
        norm_layer("gn", 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5),
        norm_layer("gn", 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


ENCODERS: dict[str, _Trunk] = {
    "small": _Trunk(channels=32, smallest_side=8, layers=_small, side=lambda side: -(-side // 4)),
    "lenet": _Trunk(
        channels=64, smallest_side=16, layers=_lenet, side=lambda side: ((side - 4) // 2 - 4) // 2
    ),
}


def build_encoder(name: str, embedding: int, spec: ModelSpec) -> nn.Module:
    """Return a routing encoder, a module from (B, C, H, W) images to embeddings (B, d) >= 0.

    Args:
        name: A key of ``ENCODERS``.
        embedding: d.
        spec: The input shape.

    Raises:
        FedhetError: The name is unknown, the image is too small, or it is text.
    """
    if name not in ENCODERS:
        remedy = f"unknown; use one of {', '.join(ENCODERS)}"
        raise FedhetError("routing.encoder", name, remedy)
    trunk = ENCODERS[name]
    spec.check_images("routing.encoder", name, trunk.smallest_side)
    inputs, height, breadth = spec.input_shape
    features = trunk.channels * trunk.side(height) * trunk.side(breadth)
    return nn.Sequential(
        *trunk.layers(inputs),
        nn.Flatten(),
        nn.Linear(features, embedding),
        nn.LayerNorm(embedding),
        nn.ReLU(),
    )

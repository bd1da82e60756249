"""What a network is built from: the contract between the data, the configuration and a builder."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything but the width that decides a network's shapes.

    Attributes:
        input_shape: Channels, height and width of one example.
        num_classes: Number of logits.
        preset: Named size of a built-in network.
        norm: Normalisation layer, a key of ``layers.NORMS``.
    """

    input_shape: tuple[int, int, int]
    num_classes: int
    preset: str = "small"
    norm: str = "gn"


Builder = Callable[[float, ModelSpec], nn.Module]
"""``build(width, spec)``: the network of a width in (0, 1]; 1.0 is the full one."""

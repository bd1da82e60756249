"""What a network is built from: the contract between the data, the configuration and a builder."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything but the width that decides a network's shapes.

    Attributes:
        input_shape: Channels, height and width of an image; length of a window of text.
        num_classes: Number of logits.
        preset: Named size of a built-in network.
        norm: Normalisation layer, a key of ``layers.NORMS``.
        vocabulary: Number of symbols of a text, 0 for images.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    preset: str = "small"
    norm: str = "gn"
    vocabulary: int = 0

    def example_inputs(self, count: int) -> Tensor:
        """Return inputs as a network takes them, all zero, on torch's default device.

        Args:
            count: Number B of examples.

        Returns:
            Images (B, C, H, W) in float32, or symbols (B, L) in int64.
        """
        dtype = torch.int64 if self.vocabulary else torch.float32
        return torch.zeros(count, *self.input_shape, dtype=dtype)


Builder = Callable[[float, ModelSpec], nn.Module]
"""``build(width, spec)``: the network of a width in (0, 1]; 1.0 is the full one."""

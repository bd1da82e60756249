"""What a network is built from: the contract between the data, the configuration and a builder."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedhet_app.errors import FedhetError


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything but the width that decides a network's shapes.

    Attributes:
        input_shape: Channels, height and width of an image; length of a window of text, or of a
            row of numbers.
        num_classes: Number of logits.
        preset: Named size of a built-in network.
        norm: Normalisation layer, a key of ``layers.NORMS``.
        vocabulary: Number of symbols of a text, else 0.
        embedding: Size d of the layer before the classifier, 0 for none.
        embed_norm: What follows that layer, a key of ``embedding.EMBED_NORMS``.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    preset: str = "small"
    norm: str = "gn"
    vocabulary: int = 0
    embedding: int = 0
    embed_norm: str = "none"

    def example_inputs(self, count: int) -> Tensor:
        """Return inputs as a network takes them, all zero, on torch's default device.

        Args:
            count: Number B of examples.

        Returns:
            Images (B, C, H, W) or rows (B, F) in float32, or symbols (B, L) in int64.
        """
        dtype = torch.int64 if self.vocabulary else torch.float32
        return torch.zeros(count, *self.input_shape, dtype=dtype)

    def check_images(self, key: str, name: str, smallest_side: int) -> None:
        """Refuse a data set that a network of images cannot take.

        Args:
            key: The option that names the network.
            name: The network.
            smallest_side: Its fewest rows and columns.

        Raises:
            FedhetError: The data set is text or rows of numbers, or its images are smaller.
        """
        if self.vocabulary:
            remedy = "takes images, and the data set is text: only lstm reads it"
            raise FedhetError(key, name, remedy)
        _, *sides = self.input_shape
        if not sides:
            remedy = "takes images, and the data set is rows of numbers: only mlp reads them"
            raise FedhetError(key, name, remedy)
        if min(sides) < smallest_side:
            remedy = f"needs images of {smallest_side}x{smallest_side} or more, got {sides}"
            raise FedhetError(key, name, remedy)


Builder = Callable[[float, ModelSpec], nn.Module]
"""``build(width, spec)``: the network of a width in (0, 1]; 1.0 is the full one."""

"""Random changes of training images, drawn for whole batches."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedhet_app.config import Config
from fedhet_app.seeding import rng_for
from fedhet_app.training import Examples, Images

PADDING = 4


@dataclass(frozen=True, kw_only=True)
class CropFlip:
    """Images that come shifted and mirrored: a random crop after zero padding, a horizontal flip.

    What torchvision's ``RandomCrop(size, padding=4)`` and ``RandomHorizontalFlip()`` do to one
    image at a time, drawn here for a batch: torchvision would draw one crop for all of it.

    Attributes:
        images: The examples as they are.
        rng: Advanced with every batch.
    """

    images: Images
    rng: np.random.Generator

    @property
    def labels(self) -> Tensor:
        """Labels of all examples, shape ``(N,)``."""
        return self.images.labels

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs ``(B, C, H, W)``, normalised after the change, and labels ``(B,)``."""
        pixels = self.images.pixels[rows]
        top, left = self.rng.integers(2 * PADDING + 1, size=(2, len(rows)))
        flips = self.rng.random(len(rows)) < 0.5
        changed = crop_flip(pixels, *(torch.from_numpy(drawn) for drawn in (top, left, flips)))
        return self.images.normalised(changed), self.images.labels[rows]


def augmented(examples: Examples, config: Config, partition: int, server_round: int) -> Examples:
    """Return a client's examples as the run's ``augment`` changes them in one round."""
    if config.augment == "none" or not isinstance(examples, Images):
        return examples
    rng = rng_for(config.seed, "augment", partition, server_round)
    return CropFlip(images=examples, rng=rng)


def crop_flip(pixels: Tensor, top: Tensor, left: Tensor, flips: Tensor) -> Tensor:
    """Return each image cut out of its zero-padded self, mirrored where asked.

    Args:
        pixels: Images, shape ``(B, H, W, C)``.
        top: First row of each cut in the padded image, 0 to 8, shape ``(B,)``.
        left: First column likewise.
        flips: Whether to mirror left and right, shape ``(B,)``.
    """
    count, height, width, _ = pixels.shape
    device = pixels.device
    padded = pad(pixels, (0, 0, PADDING, PADDING, PADDING, PADDING))
    rows = top[:, None].to(device) + torch.arange(height, device=device)
    columns = left[:, None].to(device) + torch.arange(width, device=device)
    columns = torch.where(flips[:, None].to(device), columns.flip(1), columns)
    which = torch.arange(count, device=device)
    return padded[which[:, None, None], rows[:, :, None], columns[:, None, :]]

"""What dual heterogeneity does to images and labels (FedSPM, Section 4.1 and Appendix D.1).

Component 0 of a client keeps its images and component 1 inverts them; then the client adds its tint
and its shading; and each component of each client has names of its own for the classes.

The paper publishes no numbers for tint and shading. Here (spec 2.1) both are added to the values,
not multiplied, so that black shows them too; they are of one amplitude; and the inversion comes
first, so that it does not undo them. Values stay the whole levels 0..255 that images are stored in:
an offset is rounded once.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from fedhet_app.seeding import rng_for

CLIENTS = 8
"""Clients with a shift of their own: each of three properties goes one of two ways."""
COMPONENTS = 2

_SMALL, _LARGE = (28, 28), (32, 32)


def to_colour(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Give images three channels, and those of 28x28 the 32x32 of CIFAR.

    Args:
        images: (N, H, W, 1) grey or (N, H, W, 3).

    Returns:
        (N, H', W', 3), resized bilinearly.
    """
    if images.shape[1:3] == _SMALL:
        # The weights are whole 256ths, so float32 is exact and every machine rounds alike.
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        resized = interpolate(pixels, size=_LARGE, mode="bilinear", align_corners=False)
        images = resized.permute(0, 2, 3, 1).round().to(torch.uint8).numpy()
    return np.broadcast_to(images, (*images.shape[:3], 3))


def client_offset(client: int, height: int, width: int, amplitude: float) -> NDArray[np.int16]:
    """Return what a client adds to its images: bit b of its number turns property b round.

    Bit 0 is red-dominant (0) or blue-dominant (1): +, 0, - over red, green, blue or the reverse.
    Bit 1 is bright at the top or at the bottom, bit 2 at the left or at the right: linear from +
    at the bright edge to - at the other.

    Args:
        client: 0..7.
        height: H.
        width: W.
        amplitude: Strength of each property, in units of the whole range of brightness.

    Returns:
        Levels (H, W, 3), the sum of all three.
    """
    tint, vertical, horizontal = (1 - 2 * (client >> bit & 1) for bit in range(3))
    colour = tint * np.array([1.0, 0.0, -1.0])
    rows = vertical * np.linspace(1.0, -1.0, height)[:, None, None]
    columns = horizontal * np.linspace(1.0, -1.0, width)[None, :, None]
    return np.rint(255 * amplitude * (colour + rows + columns)).astype(np.int16)


def shift_images(
    images: NDArray[np.uint8],
    components: NDArray[np.int64],
    *,
    offset: NDArray[np.int16],
    grey: bool,
) -> NDArray[np.uint8]:
    """Apply each image's component, then its client.

    Args:
        images: (N, H, W, 3).
        components: (N,), 0 or 1.
        offset: Levels (H, W, 3) that the client adds.
        grey: Whether the images were grey: those are inverted as a whole, others in green alone.

    Returns:
        New images (N, H, W, 3), cut to 0..255.
    """
    levels = images.astype(np.int16)
    inverted, channels = components == 1, slice(None) if grey else slice(1, 2)
    levels[inverted, ..., channels] = 255 - levels[inverted, ..., channels]
    levels += offset
    return np.clip(levels, 0, 255).astype(np.uint8)


def draw_permutations(num_clients: int, num_classes: int, seed: int) -> NDArray[np.int64]:
    """Draw one permutation of the K classes for each component of each of the m clients.

    Returns:
        (m, 2, K): class k of the data set is class ``[i, c, k]`` in component c of client i.
    """
    return np.array(
        [
            [rng_for(seed, "shift", i, c).permutation(num_classes) for c in range(COMPONENTS)]
            for i in range(num_clients)
        ]
    )

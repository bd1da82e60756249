"""CNN-A: four 3x3 convolutions and one linear classifier, the HeteroFL network.

The papers do not give their networks; this one has the quarter-width and half-width cost they
report (6-7 % and 25-26 % of parameters and multiply-accumulates at the ``paper`` size).
"""

from collections import OrderedDict

from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.models.embedding import classifier_layers
from fedhet_app.models.layers import channel_multiple, norm_layer, scaled
from fedhet_app.models.spec import ModelSpec

PRESETS: dict[str, tuple[int, int, int, int]] = {
    "small": (16, 32, 64, 128),
    "paper": (64, 128, 256, 512),
}

# Three poolings halve the image three times.
_SMALLEST_SIDE = 8


def build(width: float, spec: ModelSpec) -> nn.Module:
    """Return the network of one width; inputs, embedding and classifier rows stay whole.

    Args:
        width: Fraction of the channels of every convolution, in (0, 1].
        spec: Input shape (C, H, W) with H, W >= 8, classes, preset, norm and embedding.

    Returns:
        A module from (B, C, H, W) images to (B, num_classes) logits.

    Raises:
        FedhetError: The preset or a norm is unknown, the image is too small, or it is text.
    """
    if spec.preset not in PRESETS:
        raise FedhetError("preset", spec.preset, f"unknown; use one of {', '.join(PRESETS)}")
    spec.check_images("model", "cnn", _SMALLEST_SIDE)
    multiple = channel_multiple(spec.norm)
    a, b, c, d = (scaled(channels, width, multiple) for channels in PRESETS[spec.preset])
    return nn.Sequential(
        OrderedDict(
            block1=_block(spec.input_shape[0], a, spec.norm, nn.MaxPool2d(2)),
            block2=_block(a, b, spec.norm, nn.MaxPool2d(2)),
            block3=_block(b, c, spec.norm, nn.MaxPool2d(2)),
            block4=_block(c, d, spec.norm, nn.AdaptiveAvgPool2d(1)),
            flatten=nn.Flatten(),
            **classifier_layers(d, spec),
        )
    )


def _block(inputs: int, outputs: int, norm: str, pool: nn.Module) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(inputs, outputs, kernel_size=3, padding=1),
            norm=norm_layer(norm, outputs),
            relu=nn.ReLU(),
            pool=pool,
        )
    )

"""Residual networks for small images: basic blocks (He et al. 2016, arXiv:1512.03385).

``resnet18`` is the network of FedDRM's reference code: a 3x3 stem without pooling, stages of 64,
128, 256 and 512 channels. ``resnet8`` has one block in each of three stages of 16, 32 and 64. The
initial weights are the reference's: convolutions from N(0, 2 / fan_out), and a zero weight of each
block's second norm, with which a block starts as its shortcut (Goyal et al. 2017,
arXiv:1706.02677).

Deviations:

1. Group norm has groups of 4 channels, not 16 groups: groups then nest in every width.
2. Without norm, convolutions have a bias, 0 at first, and no block starts as its shortcut.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedhet_app.models.embedding import classifier_layers
from fedhet_app.models.layers import channel_multiple, norm_layer, scaled
from fedhet_app.models.spec import ModelSpec

_SMALLEST_SIDE = 8


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the stride is not 1.

    Args:
        inputs: Channels in.
        outputs: Channels out; ``inputs`` where the stride is 1.
        stride: Of the first convolution.
        norm: A key of ``layers.NORMS``.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride=stride, norm=norm)
        self.norm1 = norm_layer(norm, outputs)
        self.conv2 = _convolution(outputs, outputs, 3, stride=1, norm=norm)
        self.norm2 = norm_layer(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            convolution = _convolution(inputs, outputs, 1, stride=stride, norm=norm)
            layers = OrderedDict(conv=convolution, norm=norm_layer(norm, outputs))
            self.shortcut = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, ceil(H / stride), ceil(W / stride))."""
        # In place: on a CPU fresh feature maps cost a quarter of a step.
        residual = torch.relu_(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return torch.relu_(residual.add_(self.shortcut(x)))


def build_resnet8(width: float, spec: ModelSpec) -> nn.Module:
    """Return ResNet-8 of one width (see ``_build``)."""
    return _build("resnet8", (16, 32, 64), 1, width, spec)


def build_resnet18(width: float, spec: ModelSpec) -> nn.Module:
    """Return ResNet-18 of one width (see ``_build``)."""
    return _build("resnet18", (64, 128, 256, 512), 2, width, spec)


def _build(
    name: str, channels: Sequence[int], blocks: int, width: float, spec: ModelSpec
) -> nn.Module:
    """Return the network of one width; inputs, embedding and classifier rows stay whole.

    Args:
        name: The network's name, for errors.
        channels: Channels of each stage at width 1; all its blocks share k = ceil(width C).
        blocks: Blocks of each stage.
        width: Fraction of the channels, in (0, 1].
        spec: Input shape (C, H, W) with H, W >= 8, classes, norm and embedding; no preset.

    Returns:
        A module from (B, C, H, W) images to (B, num_classes) logits.

    Raises:
        FedhetError: A norm is unknown, the image is too small, or it is text.
    """
    spec.check_images("model", name, _SMALLEST_SIDE)
    multiple = channel_multiple(spec.norm)
    stem, *_ = kept = [scaled(stage, width, multiple) for stage in channels]
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=_convolution(spec.input_shape[0], stem, 3, stride=1, norm=spec.norm),
        norm=norm_layer(spec.norm, stem),
        relu=nn.ReLU(inplace=True),
    )
    inputs = stem
    for number, outputs in enumerate(kept, start=1):
        strides = (1 if number == 1 else 2, *(1,) * (blocks - 1))
        stage = nn.Sequential()
        for stride in strides:
            stage.append(BasicBlock(inputs, outputs, stride=stride, norm=spec.norm))
            inputs = outputs
        layers[f"stage{number}"] = stage
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers |= classifier_layers(inputs, spec)
    return _initialised(nn.Sequential(layers))


def _convolution(inputs: int, outputs: int, size: int, *, stride: int, norm: str) -> nn.Conv2d:
    bias = norm == "none"
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=bias)


def _initialised(network: nn.Module) -> nn.Module:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, BasicBlock):
            for name, values in layer.norm2.named_parameters():
                if name == "weight":
                    nn.init.zeros_(values)
    return network

"""Layers whose behaviour on the leading channels does not depend on the channels behind them.

Group normalisation has a fixed group *size*, not a fixed number of groups: any width then has whole
groups, and an inner group is normalised alike in the sub-network and in the full network.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedhet_app.errors import FedhetError

GROUP_SIZE = 4

# Products such as 0.55 * 100 lie a few units in the last place above the integer they mean.
_FLOAT_NOISE = 1e-9


def scaled(channels: int, width: float, multiple: int = 1) -> int:
    """Return how many leading channels a layer keeps: k = ceil(p C), as in HeteroFL.

    Args:
        channels: Channels of the full layer, C.
        width: Fraction p in (0, 1].
        multiple: The result is rounded up to a multiple of this, but never above ``channels``.

    Returns:
        A number between 1 and ``channels``.
    """
    kept = max(1, math.ceil(width * channels - _FLOAT_NOISE))
    return min(channels, math.ceil(kept / multiple) * multiple)


def _group_norm(channels: int) -> nn.Module:
    if channels % GROUP_SIZE:
        raise FedhetError("norm", "gn", f"needs channels in multiples of {GROUP_SIZE}: {channels}")
    return nn.GroupNorm(channels // GROUP_SIZE, channels)


class StaticBatchNorm2d(nn.BatchNorm2d):
    """Batch norm by the statistics of the batch alone: it keeps none (HeteroFL, Diao et al. 2021).

    A batch with one value per channel, which has no variance, becomes the bias.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``(B, C, H, W)`` by its own mean and variance per channel."""
        # The functional form would refuse one value per channel.
        cudnn = torch.backends.cudnn.enabled
        return torch.batch_norm(x, self.weight, self.bias, None, None, True, 0.0, self.eps, cudnn)


def _no_norm(channels: int) -> nn.Module:
    return nn.Identity()


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "gn": _group_norm,
    "bn": nn.BatchNorm2d,
    "sbn": StaticBatchNorm2d,
    "none": _no_norm,
}


def norm_layer(norm: str, channels: int) -> nn.Module:
    """Return the normalisation of a convolution's output.

    Args:
        norm: A key of ``NORMS``.
        channels: Channels of the layer, whole groups for ``gn``.

    Raises:
        FedhetError: The name is unknown, or the channels do not form whole groups.
    """
    if norm not in NORMS:
        raise FedhetError("norm", norm, f"unknown; use one of {', '.join(NORMS)}")
    return NORMS[norm](channels)


def channel_multiple(norm: str) -> int:
    """Return the multiple that channel numbers are rounded up to under this normalisation."""
    return GROUP_SIZE if norm == "gn" else 1

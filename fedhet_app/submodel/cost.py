"""What a width costs: parameters, multiply-accumulates and bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedhet_app.models.spec import Builder, ModelSpec
from fedhet_app.submodel.layout import layout_of

_FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one width.

    Attributes:
        width: Fraction of the channels.
        params: Number of parameters.
        macs: Multiply-accumulates of one forward pass of one example.
        bytes: Size of the slice on the wire, one way: parameters and float buffers.
    """

    width: float
    params: int
    macs: int
    bytes: int


def cost_table(builder: Builder, spec: ModelSpec, widths: Iterable[float]) -> list[Cost]:
    """Return the cost of each width, counted on the meta device without any arithmetic.

    Args:
        builder: Builds the network of a width.
        spec: What the network is built from.
        widths: Fractions in (0, 1].
    """
    return [_cost(builder, spec, width) for width in widths]


def _cost(builder: Builder, spec: ModelSpec, width: float) -> Cost:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        module = builder(width, spec).eval()
        module(spec.example_inputs(1))
    layout = layout_of(module)
    return Cost(
        width=width,
        params=layout.num_params,
        # torch counts a multiply-accumulate as two operations.
        macs=counter.get_total_flops() // 2,
        bytes=_FLOAT32_BYTES * layout.size,
    )

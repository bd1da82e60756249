"""A network as one flat float32 vector.

First come all parameters in ``named_parameters`` order, then all floating-point buffers in
``named_buffers`` order; integer buffers such as ``num_batches_tracked`` are left out. The block of
a four-dimensional parameter (O, I, H, W) is stored as (O, H, W, I), so that the parameter can be a
channels-last view of the vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedhet_app.errors import FedhetError

_CHANNELS_LAST_DIMS = 4


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in the vector.

    Attributes:
        name: The tensor's name in its module.
        shape: The tensor's own shape.
        offset: Position of its first coordinate.
        size: Number of its coordinates.
        is_parameter: Whether it is a parameter, not a buffer.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    is_parameter: bool

    @property
    def channels_last(self) -> bool:
        """Whether the block is stored as (O, H, W, I)."""
        return self.is_parameter and len(self.shape) == _CHANNELS_LAST_DIMS

    def to_memory_order(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Reorder one value per dimension of ``shape`` into the order of the stored block."""
        return (dims[0], *dims[2:], dims[1]) if self.channels_last else dims

    def view(self, vector: Tensor) -> Tensor:
        """Return the tensor as a view of a flat vector, in its own shape."""
        block = vector[self.offset : self.offset + self.size]
        block = block.view(self.to_memory_order(self.shape))
        return block.permute(0, 3, 1, 2) if self.channels_last else block


@dataclass(frozen=True)
class Layout:
    """The order of a network's tensors in its flat vector.

    Attributes:
        entries: All tensors, parameters first, offsets ascending without gaps.
        num_params: Number of parameter coordinates; those behind it are buffers.
        size: Number of coordinates.
    """

    entries: tuple[Entry, ...]
    num_params: int
    size: int

    def __hash__(self) -> int:
        return hash((len(self.entries), self.num_params, self.size))


def tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of all that is in the flat vector, in its order.

    Raises:
        FedhetError: A parameter or a floating-point buffer is not float32.
    """
    buffers = ((name, b) for name, b in module.named_buffers() if b.is_floating_point())
    for name, tensor in chain(module.named_parameters(), buffers):
        if tensor.dtype != torch.float32:
            remedy = f"{name} is {tensor.dtype}; parameters and float buffers must be float32"
            raise FedhetError("model", type(module).__name__, remedy)
        yield name, tensor


def layout_of(module: nn.Module) -> Layout:
    """Return the layout of a module, which may live on the meta device.

    Raises:
        FedhetError: A parameter or a floating-point buffer is not float32.
    """
    parameters = {name for name, _ in module.named_parameters()}
    entries: list[Entry] = []
    offset = 0
    for name, tensor in tensors_of(module):
        shape = tuple(tensor.shape)
        entries.append(Entry(name, shape, offset, tensor.numel(), name in parameters))
        offset += tensor.numel()
    num_params = sum(entry.size for entry in entries if entry.is_parameter)
    return Layout(tuple(entries), num_params, offset)


def flatten(module: nn.Module) -> NDArray[np.float32]:
    """Copy a module's tensors into one vector of shape (layout size,)."""
    layout = layout_of(module)
    vector = torch.empty(layout.size)
    for entry, (_, tensor) in zip(layout.entries, tensors_of(module), strict=True):
        entry.view(vector).copy_(tensor.detach())
    flat: NDArray[np.float32] = vector.numpy()
    return flat


def unflatten(layout: Layout, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Copy a vector into contiguous arrays by name, in torch's own shapes and order.

    Args:
        layout: Layout of the network the vector belongs to.
        vector: Shape (layout size,).

    Raises:
        ValueError: The vector has another shape.
    """
    if vector.shape != (layout.size,):
        raise ValueError(f"vector of shape {vector.shape} for a layout of size {layout.size}")
    flat = torch.tensor(vector)
    return {entry.name: entry.view(flat).contiguous().numpy() for entry in layout.entries}

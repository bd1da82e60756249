"""Which coordinates of the full vector a narrower network of the same kind holds.

Paper A ("Capacity Confounds and Coverage Guarantees in Adaptive Sub-model Federated Learning"),
Algorithm 2. Nothing is declared: the two networks' shapes say it all. Equal dimensions are taken
whole, differing ones keep their leading part, rows of recurrent layers keep the leading part of
every gate. Columns of a linear layer behind a flattened feature map are channel-major, so their
leading part belongs to the leading channels. A shift turns the leading part into a window that
rolls over the channels (see ``rolling``).

Deviations from Algorithm 2:

1. Which layers stay whole (inputs, embedding, classifier rows) is up to the builder, not to a list.
"""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.submodel.layout import Entry, Layout, layout_of
from fedhet_app.submodel.rolling import Units, units_of, window

_GATES: dict[type[nn.Module], int] = {
    nn.LSTM: 4,
    nn.LSTMCell: 4,
    nn.GRU: 3,
    nn.GRUCell: 3,
    nn.RNN: 1,
    nn.RNNCell: 1,
}
_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def slice_index(full: nn.Module, sub: nn.Module) -> NDArray[np.int64]:
    """Return where each coordinate of the sub-network's vector lies in the full one (Algorithm 2).

    Args:
        full: The network of width 1; the meta device will do.
        sub: The network of a smaller width, built by the same function.

    Returns:
        Ascending positions, shape (size of the sub-network's layout,).

    Raises:
        FedhetError: The sub-network is no leading part of the full one, or a layer cannot be cut.
    """
    return index_between(full, layout_of(full), layout_of(sub))


def index_between(
    full: nn.Module,
    whole: Layout,
    part: Layout,
    *,
    narrowest: Layout | None = None,
    shift: int = 0,
) -> NDArray[np.int64]:
    """Do the work of ``slice_index`` for layouts that are already known.

    Args:
        full: The network of width 1, asked for the kinds of its layers.
        whole: Its layout.
        part: The sub-network's layout.
        narrowest: The layout of the narrowest network, which says what rolls as one; without it
            nothing rolls.
        shift: By how many units the kept channels lie behind the leading ones, modulo their number.

    Returns:
        Ascending positions, shape (``part.size``,).

    Raises:
        FedhetError: As for ``slice_index``.
    """
    if [entry.name for entry in whole.entries] != [entry.name for entry in part.entries]:
        raise _refusal(full, "its parameters have other names at another width")
    gates = _gates_by_parameter(full)
    uncut = _uncut_parameters(full)
    blocks = []
    for position, (entry, kept) in enumerate(zip(whole.entries, part.entries, strict=True)):
        if entry.shape != kept.shape and entry.name in uncut:
            raise _refusal(full, f"{entry.name} cannot be cut: {uncut[entry.name]}")
        if not _fits(entry.shape, kept.shape):
            problem = f"{entry.name} has shape {entry.shape} at full width, {kept.shape} below"
            raise _refusal(full, f"{problem}; no dimension may grow")
        units = units_of(entry, kept, narrowest.entries[position]) if narrowest else None
        blocks.append(_block_index(entry, kept, gates.get(entry.name, 1), units, shift))
    return np.concatenate(blocks) if blocks else np.empty(0, np.int64)


def _block_index(
    entry: Entry, kept: Entry, gates: int, units: Units | None, shift: int
) -> NDArray[np.int64]:
    """Return the positions of the kept part of one block, ascending, in stored order."""
    index = np.full(1, entry.offset)
    stride = entry.size
    for dim in entry.to_memory_order(tuple(range(len(entry.shape)))):
        size, count = entry.shape[dim], kept.shape[dim]
        blocks = gates if dim == 0 else 1
        unit = units[dim] // blocks if units else 1
        stride //= max(size, 1)
        places = _places(size // blocks, count // blocks, unit, shift)
        starts = np.arange(blocks) * (size // blocks)
        places = (starts[:, np.newaxis] + places).ravel()
        index = (index[:, np.newaxis] + places * stride).ravel()
    return index


def _places(size: int, kept: int, unit: int, shift: int) -> NDArray[np.int64]:
    """Return which coordinates of one dimension, or of a gate's part of it, are kept."""
    first = window(size // unit, kept // unit, shift) * unit
    places: NDArray[np.int64] = (first[:, np.newaxis] + np.arange(unit)).ravel()
    return places


def _fits(full: tuple[int, ...], sub: tuple[int, ...]) -> bool:
    return len(full) == len(sub) and all(k <= c for k, c in zip(sub, full, strict=True))


def _gates_by_parameter(full: nn.Module) -> dict[str, int]:
    return {
        name: gates
        for prefix, layer in full.named_modules()
        for kind, gates in _GATES.items()
        if isinstance(layer, kind)
        for name, _ in layer.named_parameters(prefix, recurse=False)
    }


def _uncut_parameters(full: nn.Module) -> dict[str, str]:
    """Return, by parameter, why it must keep its shape."""
    return {
        name: reason
        for prefix, layer in full.named_modules()
        if (reason := _obstacle(layer))
        for name, _ in layer.named_parameters(prefix)
    }


def _obstacle(layer: nn.Module) -> str:
    if isinstance(layer, nn.RNNBase) and layer.bidirectional:
        return "the layer is bidirectional; use a one-directional one"
    if isinstance(layer, nn.RNNBase) and layer.proj_size:
        return "the layer has a projection; use proj_size=0 and a linear layer"
    if isinstance(layer, nn.MultiheadAttention):
        return "its rows stack query, key and value; use three linear layers"
    if isinstance(layer, _CONVOLUTIONS) and layer.groups not in (1, layer.in_channels):
        return f"the convolution has {layer.groups} groups; use 1 or as many as channels"
    return ""


def _refusal(full: nn.Module, remedy: str) -> FedhetError:
    return FedhetError("model", type(full).__name__, remedy)

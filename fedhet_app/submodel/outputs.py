"""Which layers of a network have fewer outputs at less width."""

from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedhet_app.submodel.layout import Layout


def cut_layers(full: nn.Module, whole: Layout, narrowest: Layout) -> tuple[str, ...]:
    """Return the names of the convolutions and linear layers whose outputs a width cuts.

    Args:
        full: The network of width 1, asked for the kinds of its layers.
        whole: Its layout.
        narrowest: Layout of its narrowest slice.
    """
    names = []
    for entry, kept in zip(whole.entries, narrowest.entries, strict=True):
        name, _, tensor = entry.name.rpartition(".")
        layer = full.get_submodule(name)
        if tensor != "weight" or not isinstance(layer, nn.Linear | _ConvNd):
            continue
        outputs = 1 if isinstance(layer, _ConvNd) and layer.transposed else 0
        if kept.shape[outputs] < entry.shape[outputs]:
            names.append(name)
    return tuple(names)

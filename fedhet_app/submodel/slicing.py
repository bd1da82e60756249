"""The slices of one network at every width, each derived once."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.models.spec import Builder, ModelSpec
from fedhet_app.submodel.index import index_between, slice_index
from fedhet_app.submodel.layout import Layout, layout_of

__all__ = ["Slicer", "slice_index"]

# An adaptive allocation asks for ever new widths; their layouts are small, their indices are not.
_CACHED_LAYOUTS = 1024
_CACHED_INDICES = 32


class Slicer:
    """Answers what a width means for one network.

    The builder is called on torch's meta device, so no weight is ever drawn or stored.

    Args:
        builder: Builds the network of a width.
        spec: What the network is built from.

    Raises:
        FedhetError: The network cannot be built without data, or has no float32 layout.
    """

    def __init__(self, builder: Builder, spec: ModelSpec) -> None:
        self._builder = builder
        self._spec = spec
        self._full = self._module(1.0)
        self._full_layout = layout_of(self._full)
        self._layout_at = lru_cache(_CACHED_LAYOUTS)(self._derive_layout)
        self._index_of = lru_cache(_CACHED_INDICES)(self._derive_index)
        self._index_at = lru_cache(_CACHED_INDICES)(self._find_index)

    @property
    def size(self) -> int:
        """Number of coordinates of the full vector, D."""
        return self._full_layout.size

    def layout(self, width: float) -> Layout:
        """Return the layout of the network of a width."""
        return self._layout_at(width)

    def num_params(self, width: float) -> int:
        """Return the number of parameters at a width."""
        return self.layout(width).num_params

    def index(self, width: float) -> NDArray[np.int64] | None:
        """Return the positions of a slice in the full vector.

        Args:
            width: Fraction of the channels, in (0, 1].

        Returns:
            Ascending positions, read-only and shared by all widths of equal shapes; None when the
            slice is the whole vector.

        Raises:
            FedhetError: The network of this width is no leading part of the full one.
        """
        return self._index_at(width)

    def realised(self, width: float) -> float:
        """Return the fraction of the full network's parameters that a width has."""
        return self.num_params(width) / self._full_layout.num_params

    def largest_ratio(self, width: float) -> float:
        """Return the largest k/C over the dimensions a width cuts; 1 when it cuts none.

        It exceeds the width where k was rounded up to whole groups.
        """
        pairs = zip(self._full_layout.entries, self.layout(width).entries, strict=True)
        ratios = [
            kept / channels
            for full, sub in pairs
            for channels, kept in zip(full.shape, sub.shape, strict=True)
            if kept != channels
        ]
        return max(ratios, default=1.0)

    def _module(self, width: float) -> nn.Module:
        try:
            with torch.device("meta"):
                return self._builder(width, self._spec)
        except RuntimeError as error:
            name = getattr(self._builder, "__qualname__", repr(self._builder))
            remedy = f"cannot be built on the meta device; read no tensor's values: {error}"
            raise FedhetError("model", name, remedy) from error

    def _derive_layout(self, width: float) -> Layout:
        return layout_of(self._module(width))

    def _find_index(self, width: float) -> NDArray[np.int64] | None:
        layout = self.layout(width)
        return None if layout == self._full_layout else self._index_of(layout)

    def _derive_index(self, layout: Layout) -> NDArray[np.int64]:
        index = index_between(self._full, self._full_layout, layout)
        index.setflags(write=False)
        return index

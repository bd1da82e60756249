"""The slices of one network at every width, each derived once."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedhet_app.models.contract import build_on_meta
from fedhet_app.models.spec import Builder, ModelSpec
from fedhet_app.submodel.index import index_between, slice_index
from fedhet_app.submodel.layout import Layout, layout_of
from fedhet_app.submodel.outputs import cut_layers
from fedhet_app.submodel.rolling import never_held

__all__ = ["Slicer", "slice_index"]

# An adaptive allocation asks for ever new widths; their layouts are small, their indices are not.
_CACHED_LAYOUTS = 1024
_CACHED_INDICES = 32
# A rolled slice is not asked for again once its round is over.
_CACHED_ROLLED = 8
# Narrow enough to leave one channel, or one group, of whatever a width cuts.
_NARROWEST = 1e-6


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
        self._full = build_on_meta(builder, 1.0, spec)
        self._full_layout = layout_of(self._full)
        self._layout_at = lru_cache(_CACHED_LAYOUTS)(self._derive_layout)
        self._index_of = lru_cache(_CACHED_INDICES)(self._derive_index)
        self._rolled_index_of = lru_cache(_CACHED_ROLLED)(self._derive_index)
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

    @property
    def narrowest(self) -> Layout:
        """The layout of the narrowest network: what never shrinks has its full size there.

        Raises:
            FedhetError: The network cannot be built at every width in (0, 1].
        """
        return self.layout(_NARROWEST)

    def index(self, width: float, shift: int = 0) -> NDArray[np.int64] | None:
        """Return the positions of a slice in the full vector.

        Args:
            width: Fraction of the channels, in (0, 1].
            shift: By how many channels (groups, under group norm) the window of those that are kept
                lies behind the leading ones, modulo their number in each layer (FedRolex).

        Returns:
            Ascending positions, read-only and shared by all widths of equal shapes; None when the
            slice is the whole vector.

        Raises:
            FedhetError: The network of this width is no leading part of the full one, or its slices
                cannot roll.
        """
        if shift and self._index_at(width) is not None:
            return self._rolled_index_of(self.layout(width), shift)
        return self._index_at(width)

    def within(self, width: float, outer: float) -> NDArray[np.int64]:
        """Return the positions of a leading slice in a wider one, shape (size of its layout,)."""
        inner, around = self.index(width), self.index(outer)
        if inner is None:
            return np.arange(self.size)
        return inner if around is None else np.searchsorted(around, inner)

    def realised(self, width: float) -> float:
        """Return the fraction of the full network's parameters that a width has."""
        return self.num_params(width) / self._full_layout.num_params

    def unreached(self, widths: Iterable[float], advance: int = 0) -> float:
        """Return the fraction of the parameters that no slice holds in any round.

        Args:
            widths: The widths in use.
            advance: By how much all shifts grow from one round to the next; at 0 slices nest.

        Raises:
            FedhetError: The slices cannot roll.
        """
        layouts = {self.layout(width) for width in widths}
        total = self._full_layout.num_params
        missing = total - max(layout.num_params for layout in layouts)
        if advance and missing:
            missing = never_held(self._full_layout, list(layouts), self.narrowest, advance)
        return missing / total

    def largest_ratio(self, width: float) -> float:
        """Return the largest k/C over the dimensions that depend on the width; 1 if none does.

        It exceeds the width where k was rounded up to whole channels or groups, at worst to C.

        Raises:
            FedhetError: The network cannot be built at every width in (0, 1].
        """
        layouts = (self._full_layout, self.layout(width), self.narrowest)
        ratios = [
            kept / channels
            for entries in zip(*(layout.entries for layout in layouts), strict=True)
            for channels, kept, fewest in zip(*(entry.shape for entry in entries), strict=True)
            if fewest != channels
        ]
        return max(ratios, default=1.0)

    def cut_layers(self) -> tuple[str, ...]:
        """Return the names of the layers with fewer outputs at less width (see ``outputs``)."""
        return cut_layers(self._full, self._full_layout, self.narrowest)

    def _derive_layout(self, width: float) -> Layout:
        return layout_of(build_on_meta(self._builder, width, self._spec))

    def _find_index(self, width: float) -> NDArray[np.int64] | None:
        layout = self.layout(width)
        return None if layout == self._full_layout else self._index_of(layout)

    def _derive_index(self, layout: Layout, shift: int = 0) -> NDArray[np.int64]:
        narrowest = self.narrowest if shift else None
        index = index_between(
            self._full, self._full_layout, layout, narrowest=narrowest, shift=shift
        )
        index.setflags(write=False)
        return index

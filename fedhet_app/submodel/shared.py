"""Which coordinates of a vector clients share, and which are a client's own."""

import numpy as np
from numpy.typing import NDArray

from fedhet_app.submodel.layout import Layout


def shared_index(layout: Layout, private: str = "heads.") -> NDArray[np.int64]:
    """Return the coordinates of all tensors whose names do not start with a prefix.

    Args:
        layout: Layout of the network.
        private: What the names of a client's own tensors start with.

    Returns:
        Ascending positions.
    """
    mask = np.ones(layout.size, dtype=np.bool_)
    for entry in layout.entries:
        if entry.name.startswith(private):
            mask[entry.offset : entry.offset + entry.size] = False
    return np.flatnonzero(mask)

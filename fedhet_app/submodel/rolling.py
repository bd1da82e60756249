"""Windows of channels that roll from round to round, and what they reach over time.

FedRolex (Alam et al. 2022): a width keeps {shift, ..., shift + k - 1} modulo C of a dimension's C
channels. Nothing is declared here either: what the narrowest network leaves of a dimension is one
channel of it, which may be several coordinates (a group under group normalisation, the columns of
one channel behind a flattened feature map, a row of every gate). Dimensions that belong to the same
channels therefore have equally many units and roll alike in every layer.
"""

import math
from functools import cache, partial
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError
from fedhet_app.submodel.layout import Entry, Layout

# Shifts that are looked at in one go; the least common period of two layers may be thousands.
_SHIFTS_AT_ONCE = 512

Units = tuple[int, ...]
"""By dimension of a tensor, how many coordinates roll as one."""

Counts = tuple[tuple[int, ...], ...]


def window(units: int, kept: int, shift: int) -> NDArray[np.int64]:
    """Return the units that a slice keeps of a dimension, ascending, shape (kept,)."""
    return np.sort((shift + np.arange(kept)) % units)


def units_of(entry: Entry, kept: Entry, narrowest: Entry) -> Units:
    """Return the size of a unit along every dimension; a dimension that is never cut is one unit.

    Args:
        entry: A tensor at full width.
        kept: The same tensor at the width in question.
        narrowest: The same tensor in the narrowest network.

    Raises:
        FedhetError: The width keeps no whole number of units.
    """
    units = tuple(map(math.gcd, entry.shape, narrowest.shape))
    for size, full, unit in zip(kept.shape, entry.shape, units, strict=True):
        if size % unit:
            remedy = (
                f"keeps {size} of {full}, no whole number of the {unit} that its narrowest part "
                "has, so its slices cannot roll; build whole multiples, or use another strategy"
            )
            raise FedhetError("model", entry.name, remedy)
    return units


def never_held(whole: Layout, parts: list[Layout], narrowest: Layout, advance: int) -> int:
    """Return the number of parameters that rolling slices hold in no round at all.

    Two layers roll by the same shift: with 8 and 16 channels, of which 2 and 4 are kept, the weight
    from channel 0 to channel 4 is never held, since no shift keeps both.

    Args:
        whole: Layout at full width.
        parts: Layouts of the widths in use.
        narrowest: Layout of the narrowest network.
        advance: By how many units the windows roll from one round to the next, positive.

    Raises:
        FedhetError: As for ``units_of``.
    """
    missed = cache(partial(_missed_cells, advance))
    total = 0
    for position, entry in enumerate(whole.entries):
        if entry.is_parameter:
            kept = [part.entries[position] for part in parts]
            counts = _counts(entry, kept, narrowest.entries[position])
            total += missed(counts) * (entry.size // math.prod(counts[0]))
    return total


def _counts(entry: Entry, kept: list[Entry], narrowest: Entry) -> Counts:
    """Return how many units the cut dimensions have, at full width and in each of the parts."""
    counts = []
    for tensor in (entry, *kept):
        units = units_of(entry, tensor, narrowest)
        dims = zip(entry.shape, tensor.shape, units, strict=True)
        counts.append(tuple(size // unit for full, size, unit in dims if full > unit))
    return tuple(counts)


def _missed_cells(advance: int, counts: Counts) -> int:
    """Return how many of a tensor's cells, one unit along each dimension, no slice ever holds."""
    units, *kept = counts
    if not units:
        return 0
    period = math.lcm(*units)
    cells = np.zeros(units, dtype=bool)
    for start in range(0, period, _SHIFTS_AT_ONCE):
        shifts = advance * np.arange(start, min(start + _SHIFTS_AT_ONCE, period))
        for part in kept:
            cells |= _cells(units, part, shifts)
        if cells.all():
            break
    return int(np.count_nonzero(~cells))


def _cells(
    units: tuple[int, ...], kept: tuple[int, ...], shifts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return the cells that one width holds at any of the shifts, shape ``units``."""
    held = [
        ((np.arange(total) - shifts[:, np.newaxis]) % total < count).astype(np.float32)
        for total, count in zip(units, kept, strict=True)
    ]
    dims = ascii_uppercase[: len(units)]
    times = np.einsum(f"{','.join('s' + dim for dim in dims)}->{dims}", *held, optimize=True)
    return np.asarray(times > 0)

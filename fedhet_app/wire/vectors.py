"""Vectors on the wire: a model, or a slice of one, is one float32 vector.

`submodel.layout` gives its order, so that a message costs one header whatever the number of layers.
"""

import math
from collections.abc import Collection
from functools import lru_cache
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

ARRAYS = "arrays"
VECTOR = "vector"
CONFIG = "config"
METRICS = "metrics"
DIVERGED = "training diverged"
NUMPY = "numpy.ndarray"

Vector = NDArray[np.float32]

MOST_LOSS = float(np.finfo(np.float32).max)
"""What is beyond is no loss of a float32 model."""
_LONGEST_REASON = 300
_NAMES_SHOWN = 12


class Rejection(Exception):  # noqa: N818 - an expected outcome, no fault of the program
    """A reply that is not used, with the reason: one short line, though a stranger wrote it."""

    def __init__(self, reason: str) -> None:
        super().__init__(harmless(reason))


def harmless(said: object) -> str:
    """Return what a stranger said as one short line that is safe to show."""
    line = " ".join(str(said)[: 2 * _LONGEST_REASON].split())[:_LONGEST_REASON]
    # It goes to terminals, where control characters are commands.
    return "".join(c if c.isprintable() else "?" for c in line)


def as_float(value: object) -> float:
    """Return a number of a record; a whole number beyond floats is infinite."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def pack(vector: Vector) -> ArrayRecord:
    """Serialise one float32 vector, in NumPy's format and with one copy."""
    data = b"".join((_header(len(vector)), np.ascontiguousarray(vector).data))
    return ArrayRecord({VECTOR: Array("float32", vector.shape, NUMPY, data)})


@lru_cache(maxsize=64)
def _header(size: int) -> bytes:
    """Return what NumPy's format puts before the values of a float32 vector."""
    buffer = BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (size,)}
    npy.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def unpack(record: ArrayRecord) -> NDArray[np.generic]:
    """Return the vector of a record; a read-only view where it is of the usual form.

    Raises:
        Rejection: The record has other keys or is not readable.
    """
    if list(record) != [VECTOR]:
        raise Rejection(f"arrays named {sorted(record)} instead of ['{VECTOR}']")
    array = record[VECTOR]
    try:
        header = _header(math.prod(array.shape))
        if array.stype == NUMPY and array.data.startswith(header):
            return np.frombuffer(array.data, np.dtype("<f4"), offset=len(header))
        return np.asarray(array.numpy())
    except Exception as error:  # what bytes of a stranger raise in NumPy's readers has no list
        raise Rejection(f"array cannot be read: {error}") from error


def record_bytes(content: RecordDict) -> int:
    """Return the serialised size of a message's records in bytes, headers and keys included."""
    return sum(len(key) + _count_bytes(record) for key, record in content.items())


def _count_bytes(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    try:
        return record.count_bytes()
    except ValueError:  # Flower's count takes no settings that are empty, which a stranger may send
        return sum(map(len, record))


def listed(names: Collection[str]) -> str:
    """Return names in the form of a list, or only how many there are."""
    return str(sorted(names)) if len(names) <= _NAMES_SHOWN else f"[{len(names)} names]"


def checked_vector(
    name: str, record: ArrayRecord, size: int, *, loss: float = 0.0, trained: bool = True
) -> Vector:
    """Return a finite float32 vector of a given size, which is a view of what arrived.

    Anything of another size or form is refused before a byte of it is unpacked.

    Args:
        name: What to call it.
        record: Where it is.
        size: Number of floats that it must have.
        loss: What the sender said its loss was; not finite is taken as divergence.
        trained: Whether it is what training yields, so that divergence explains what is not finite.

    Raises:
        Rejection: It is anything else.
    """
    if list(record) != [VECTOR]:
        raise Rejection(f"arrays named {listed(record)} instead of ['{VECTOR}']")
    array, header = record[VECTOR], _header(size)
    if array.dtype != "float32":
        raise Rejection(f"{name} of dtype {array.dtype[:_LONGEST_REASON]} instead of float32")
    if array.shape != (size,):
        raise Rejection(f"{name} of shape {_shown(array.shape)} instead of ({size},)")
    expected = len(header) + 4 * size
    if len(array.data) != expected:
        said = f"array cannot be read: {name} of {len(array.data)} bytes instead of {expected}"
        raise Rejection(said)
    if array.stype != NUMPY or not array.data.startswith(header):
        raise Rejection(f"array cannot be read: {name} is not in NumPy's format")
    vector = np.frombuffer(array.data, np.dtype("<f4"), offset=len(header))
    # One BLAS pass decides the usual case; only a huge or non-finite vector needs the second.
    with np.errstate(over="ignore", invalid="ignore"):
        finite = math.isfinite(float(np.dot(vector, vector))) or bool(np.isfinite(vector).all())
    if not math.isfinite(loss) or (trained and not finite):
        raise Rejection(
            f"non-finite values in {name} (loss {loss}): {DIVERGED}; lower lr, "
            "set clip-norm, or use a norm layer"
        )
    if not finite:
        raise Rejection(f"non-finite values in {name}")
    return vector


def _shown(shape: tuple[int, ...]) -> str:
    """Return a shape as text; Python refuses to print the longest of whole numbers."""
    printable = len(shape) < _NAMES_SHOWN and max(map(abs, shape), default=0) < 2**63
    return str(shape) if printable else "of no array"


def last_line(reason: str | None) -> str:
    """Return the last line of a reason, safe to show: under Ray it is a whole traceback."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return harmless(lines[-1]) if lines else "no reason given"

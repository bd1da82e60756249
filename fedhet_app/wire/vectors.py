"""Vectors on the wire: a model, or a slice of one, is one float32 vector.

`submodel.layout` gives its order, so that a message costs one header whatever the number of layers.
"""

import math
from functools import lru_cache
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

ARRAYS = "arrays"
VECTOR = "vector"
CONFIG = "config"
METRICS = "metrics"
DIVERGED = "training diverged"
NUMPY = "numpy.ndarray"

Vector = NDArray[np.float32]


class Rejection(Exception):  # noqa: N818 - an expected outcome, no fault of the program
    """A reply that is not used, with the reason."""


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
    return sum(len(key) + record.count_bytes() for key, record in content.items())


def checked_vector(name: str, record: ArrayRecord, size: int, loss: float = 0.0) -> Vector:
    """Return a finite float32 vector of a given size.

    Args:
        name: What to call it.
        record: Where it is.
        size: Number of floats that it must have.
        loss: What the sender said its loss was; not finite is taken as divergence.

    Raises:
        Rejection: It is anything else.
    """
    received = unpack(record)
    if received.dtype != np.float32:
        raise Rejection(f"{name} of dtype {received.dtype} instead of float32")
    vector = received.astype(np.float32, copy=False)
    if vector.shape != (size,):
        raise Rejection(f"{name} of shape {vector.shape} instead of ({size},)")
    # One BLAS pass decides the usual case; only a huge or non-finite vector needs the second.
    with np.errstate(over="ignore", invalid="ignore"):
        finite = math.isfinite(float(np.dot(vector, vector))) or bool(np.isfinite(vector).all())
    if not finite or not math.isfinite(loss):
        raise Rejection(
            f"non-finite values in {name} (loss {loss}): {DIVERGED}; lower lr, "
            "set clip-norm, or use a norm layer"
        )
    return vector


def last_line(reason: str | None) -> str:
    """Return the last line of a reason: under Ray it is a whole traceback."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"

"""Queries on the wire: images for one client to predict, and the class probabilities it returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedhet_app.client_state import ClientState, StateNote
from fedhet_app.errors import FedhetError
from fedhet_app.wire.training import state_settings
from fedhet_app.wire.vectors import (
    ARRAYS,
    CONFIG,
    Rejection,
    Vector,
    checked_vector,
    last_line,
    pack,
    unpack,
)

PREDICT = "query.predict"
ROWS = "rows"
IMAGES = "images"

_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Query:
    """What the server asks a client to predict: examples of the run's test set, or images.

    Attributes:
        vector: The shared model, shape ``(D,)``.
        rows: Rows of the test set, shape ``(n,)``; ``None`` where images are sent.
        images: uint8, shape ``(n, H, W, C)``; ``None`` where rows are.
        state: What the client keeps between rounds; ``None`` for methods without.
    """

    vector: Vector
    rows: NDArray[np.int64] | None = None
    images: NDArray[np.uint8] | None = None
    state: ClientState | None = None


def query_content(
    model: ArrayRecord,
    *,
    rows: NDArray[np.int64] | None = None,
    images: NDArray[np.uint8] | None = None,
    note: StateNote | None = None,
) -> RecordDict:
    """Return the content of a query.

    Args:
        model: The shared model.
        rows: Rows of the run's test set, shape ``(n,)``.
        images: In place of rows: uint8, shape ``(n, H, W, C)``.
        note: Where the client's state stands, for methods with one.
    """
    sent = {ROWS: rows} if rows is not None else {IMAGES: images}
    inputs = {name: ArrayRecord({name: Array(np.asarray(array))}) for name, array in sent.items()}
    settings = state_settings(note) if note is not None else ConfigRecord()
    return RecordDict({ARRAYS: model, CONFIG: settings, **inputs})


def read_query(message: Message) -> Query:
    """Return what a query asks.

    Raises:
        FedhetError: It holds neither rows nor images of the right type.
    """
    records = message.content.array_records
    vector = unpack(records[ARRAYS]).astype(np.float32, copy=False)
    if ROWS in records:
        return Query(vector=vector, rows=_checked(records, ROWS, np.int64, 1))
    if IMAGES in records:
        return Query(vector=vector, images=_checked(records, IMAGES, np.uint8, 4))
    raise FedhetError("query", sorted(records), f"send {ROWS} or {IMAGES}")


def _checked(
    records: Mapping[str, ArrayRecord], name: str, dtype: type[np.generic], dims: int
) -> NDArray[Any]:
    array: NDArray[Any] = records[name][name].numpy()
    if array.dtype != dtype or array.ndim != dims:
        remedy = f"must be {np.dtype(dtype)} of {dims} dimension(s)"
        raise FedhetError(name, f"{array.dtype} of shape {array.shape}", remedy)
    return array


def answer_to(message: Message, probabilities: Vector) -> Message:
    """Return the reply to a query: probabilities, shape ``(n, K)``."""
    return Message(RecordDict({ARRAYS: pack(probabilities.ravel())}), reply_to=message)


def read_answer(message: Message, count: int, num_classes: int) -> Vector:
    """Return the class probabilities in the reply to a query, shape ``(count, num_classes)``.

    Raises:
        Rejection: The client failed, or its answer is no table of probabilities.
    """
    if message.has_error():
        raise Rejection(f"error {message.error.code}: {last_line(message.error.reason)}")
    records = message.content.array_records
    if list(records) != [ARRAYS] or len(message.content) != 1:
        raise Rejection(f"records named {sorted(message.content)} instead of ['{ARRAYS}']")
    flat = checked_vector("probabilities", records[ARRAYS], count * num_classes)
    table: Vector = flat.reshape(count, num_classes)
    sums = table.sum(axis=1)
    if table.min(initial=0.0) < 0 or not np.allclose(sums, 1.0, atol=_TOLERANCE):
        raise Rejection("probabilities that are negative or do not sum to 1")
    return table

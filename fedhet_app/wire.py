"""The only module that knows the wire: record keys, vectors, requests, replies and their checks.

A model, or a slice of one, travels as one float32 vector (`submodel.layout` gives its order), so
that a message costs one header whatever the number of layers.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError

ARRAYS = "arrays"
VECTOR = "vector"
CONFIG = "config"
METRICS = "metrics"
PROFILE = "profile"
REFUSAL = "refusal"
TRAIN = "train"
QUERY_PROFILE = "query.profile"
NUMPY = "numpy.ndarray"

Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What the server asks of one client in one round.

    Attributes:
        server_round: Counted from 1.
        width: The fraction of channels of the slice that travels.
        vector: The slice, shape ``(size of the width's layout,)``.
    """

    server_round: int
    width: float
    vector: Vector


@dataclass(frozen=True, kw_only=True)
class TrainReply:
    """What a client returns: its trained slice, its number of examples and its mean loss."""

    server_round: int
    partition: int
    vector: Vector
    examples: int
    loss: float
    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a node says about itself before the first round.

    Attributes:
        capacity: The widest slice it can train; 0.0 where its node config names none.
        device: Where it trains, by torch's name.
    """

    partition: int
    num_partitions: int
    examples: int
    capacity: float
    code: str
    device: str = "cpu"
    node_id: int = 0


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


def train_content(arrays: ArrayRecord, server_round: int, width: float) -> RecordDict:
    """Return the content of a train message; clients with one width share it."""
    settings = ConfigRecord({"round": server_round, "width": width})
    return RecordDict({ARRAYS: arrays, CONFIG: settings})


def read_request(message: Message) -> TrainRequest:
    """Return what a train message asks for."""
    settings = message.content.config_records[CONFIG]
    vector = unpack(message.content.array_records[ARRAYS])
    return TrainRequest(
        server_round=int(str(settings["round"])),
        width=float(str(settings["width"])),
        vector=vector.astype(np.float32, copy=False),
    )


def reply_to(message: Message, reply: TrainReply) -> Message:
    """Return the message that carries a client's reply."""
    metrics = MetricRecord(
        {
            "round": reply.server_round,
            "partition": reply.partition,
            "examples": reply.examples,
            "loss": reply.loss,
            "steps": reply.steps,
            "seconds": reply.seconds,
        }
    )
    return Message(RecordDict({ARRAYS: pack(reply.vector), METRICS: metrics}), reply_to=message)


def read_reply(message: Message, *, server_round: int, size: int, profile: Profile) -> TrainReply:
    """Return a client's reply after checking it against what was sent and what it declared.

    Args:
        message: The reply, or Flower's error in place of one.
        server_round: The round the request was for.
        size: Number of floats in the slice that was sent.
        profile: What the node said of itself before the first round.

    Raises:
        Rejection: The reply cannot be used; the text says why.
    """
    if message.has_error():
        raise Rejection(f"error {message.error.code}: {_last_line(message.error.reason)}")
    content = message.content
    arrays, values = content.array_records.get(ARRAYS), content.metric_records.get(METRICS)
    if len(content) != 2 or arrays is None or values is None:
        raise Rejection(f"records named {sorted(content)} instead of ['{ARRAYS}', '{METRICS}']")
    metrics = _numbers(values)
    if metrics["round"] != server_round:
        raise Rejection(f"for round {metrics['round']:.0f}, not {server_round}")
    if metrics["partition"] != profile.partition:
        raise Rejection(f"from partition {metrics['partition']:.0f}, not {profile.partition}")
    if metrics["examples"] != profile.examples:
        raise Rejection(f"{metrics['examples']:.0f} examples, but it declared {profile.examples}")
    return TrainReply(
        server_round=server_round,
        partition=profile.partition,
        vector=_checked_vector(arrays, size, metrics["loss"]),
        examples=profile.examples,
        loss=metrics["loss"],
        steps=int(metrics["steps"]),
        seconds=metrics["seconds"],
    )


def _numbers(record: MetricRecord) -> dict[str, float]:
    expected = {"round", "partition", "examples", "loss", "steps", "seconds"}
    if set(record) != expected or not all(isinstance(v, int | float) for v in record.values()):
        raise Rejection(f"metrics named {sorted(record)} instead of {sorted(expected)}")
    numbers = {key: float(str(value)) for key, value in record.items()}
    if not all(math.isfinite(numbers[key]) for key in expected - {"loss"}):
        raise Rejection(f"non-finite metrics {numbers}")
    return numbers


def _checked_vector(record: ArrayRecord, size: int, loss: float) -> Vector:
    received = unpack(record)
    if received.dtype != np.float32:
        raise Rejection(f"dtype {received.dtype} instead of float32")
    vector = received.astype(np.float32, copy=False)
    if vector.shape != (size,):
        raise Rejection(f"shape {vector.shape} instead of ({size},)")
    # One BLAS pass decides the usual case; only a huge or non-finite vector needs the second.
    with np.errstate(over="ignore", invalid="ignore"):
        finite = math.isfinite(float(np.dot(vector, vector))) or bool(np.isfinite(vector).all())
    if not finite or not math.isfinite(loss):
        raise Rejection(
            f"non-finite values (loss {loss}): training diverged; lower lr, "
            "set clip-norm, or use a norm layer"
        )
    return vector


def profile_content(profile: Profile) -> RecordDict:
    """Return the content of the answer to ``query.profile``."""
    return RecordDict(
        {
            PROFILE: ConfigRecord(
                {
                    "partition": profile.partition,
                    "num-partitions": profile.num_partitions,
                    "examples": profile.examples,
                    "capacity": profile.capacity,
                    "code": profile.code,
                    "device": profile.device,
                }
            )
        }
    )


def refusal_content(error: FedhetError) -> RecordDict:
    """Return the content of a node's answer that says why it cannot take part."""
    value = error.value if isinstance(error.value, bool | int | float | str) else str(error.value)
    said = ConfigRecord({"key": error.key, "value": value, "remedy": error.remedy})
    return RecordDict({REFUSAL: said})


def read_profile(message: Message) -> Profile:
    """Return the profile in an answer to ``query.profile``.

    Raises:
        FedhetError: The node says what is wrong with its configuration.
        Rejection: The node answered with an error or with something else.
    """
    if message.has_error():
        raise Rejection(_last_line(message.error.reason))
    refusal = message.content.config_records.get(REFUSAL)
    if refusal is not None:
        said = [refusal.get(name, "") for name in ("key", "value", "remedy")]
        raise FedhetError(str(said[0]), said[1], str(said[2]))
    try:
        record = message.content.config_records[PROFILE]
        return Profile(
            partition=int(str(record["partition"])),
            num_partitions=int(str(record["num-partitions"])),
            examples=int(str(record["examples"])),
            capacity=float(str(record["capacity"])),
            code=str(record["code"]),
            device=str(record["device"]),
            node_id=message.metadata.src_node_id,
        )
    except (KeyError, ValueError) as error:
        raise Rejection(f"not a profile: {error}") from error


def _last_line(reason: str | None) -> str:
    """Return the last line of a reason: under Ray it is a whole traceback."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"

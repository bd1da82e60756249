"""The only module that knows the wire: record keys, vectors, requests, replies and their checks.

A model, or a slice of one, travels as one float32 vector (`submodel.layout` gives its order), so
that a message costs one header whatever the number of layers.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedhet_app.client_state import ClientState, StateNote
from fedhet_app.errors import FedhetError

ARRAYS = "arrays"
VECTOR = "vector"
CONTROL = "control"
CONFIG = "config"
METRICS = "metrics"
PROFILE = "profile"
REFUSAL = "refusal"
TRAIN = "train"
QUERY_PROFILE = "query.profile"
DIVERGED = "training diverged"
NUMPY = "numpy.ndarray"
PATH_BYTES = 256

Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What the server asks of one client in one round.

    Attributes:
        server_round: Counted from 1.
        width: The fraction of channels of the slice that travels.
        vector: The slice, shape ``(size of the width's layout,)``.
        extras: Whatever else a method sends, by name.
        state: What the client keeps between rounds; ``None`` for methods without.
    """

    server_round: int
    width: float
    vector: Vector
    extras: Mapping[str, Vector] = field(default_factory=dict)
    state: ClientState | None = None


@dataclass(frozen=True, kw_only=True)
class TrainReply:
    """What a client returns: its trained slice, its number of examples and its mean loss.

    ``extras`` is whatever else a method returns, by name.
    """

    server_round: int
    partition: int
    vector: Vector
    examples: int
    loss: float
    steps: int
    seconds: float
    extras: Mapping[str, Vector] = field(default_factory=dict)


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


def train_content(
    arrays: ArrayRecord,
    server_round: int,
    width: float,
    *,
    extras: Mapping[str, ArrayRecord] | None = None,
    note: StateNote | None = None,
) -> RecordDict:
    """Return the content of a train message.

    Args:
        arrays: The slice.
        server_round: Counted from 1.
        width: The slice's.
        extras: Whatever else the method sends, a vector each.
        note: Where the client's state stands, for methods with one.
    """
    settings = ConfigRecord({"round": server_round, "width": width})
    if note is not None:
        # One length for nearly all folders: what travels must not depend on where results lie.
        folder = os.fsencode(note.directory).ljust(PATH_BYTES, b"\0")
        settings["run"], settings["state-dir"] = note.run, folder
        settings["accepted-round"], settings["kept-round"] = note.accepted, note.kept
    return RecordDict({ARRAYS: arrays, CONFIG: settings, **(extras or {})})


def read_request(message: Message) -> TrainRequest:
    """Return what a train message asks for."""
    settings = message.content.config_records[CONFIG]
    vectors = {
        name: unpack(record).astype(np.float32, copy=False)
        for name, record in message.content.array_records.items()
    }
    return TrainRequest(
        server_round=int(str(settings["round"])),
        width=float(str(settings["width"])),
        vector=vectors.pop(ARRAYS),
        extras=vectors,
    )


def read_note(message: Message) -> StateNote | None:
    """Return what a train message says of the client's state; ``None`` for methods without one."""
    settings = message.content.config_records[CONFIG]
    folder = settings.get("state-dir")
    if not isinstance(folder, bytes):
        return None
    return StateNote(
        run=str(settings["run"]),
        directory=os.fsdecode(folder.rstrip(b"\0")),
        accepted=int(str(settings["accepted-round"])),
        kept=int(str(settings["kept-round"])),
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
    extras = {name: pack(vector) for name, vector in reply.extras.items()}
    content = RecordDict({ARRAYS: pack(reply.vector), METRICS: metrics, **extras})
    return Message(content, reply_to=message)


def read_reply(
    message: Message,
    *,
    server_round: int,
    size: int,
    profile: Profile,
    extras: Mapping[str, int] | None = None,
) -> TrainReply:
    """Return a client's reply after checking it against what was sent and what it declared.

    Args:
        message: The reply, or Flower's error in place of one.
        server_round: The round the request was for.
        size: Number of floats in the slice that was sent.
        profile: What the node said of itself before the first round.
        extras: Number of floats of what else the method returns, by name.

    Raises:
        Rejection: The reply cannot be used; the text says why.
    """
    if message.has_error():
        raise Rejection(f"error {message.error.code}: {_last_line(message.error.reason)}")
    content, sizes = message.content, {ARRAYS: size, **(extras or {})}
    arrays, values = content.array_records, content.metric_records.get(METRICS)
    if set(arrays) != set(sizes) or values is None or len(content) != len(sizes) + 1:
        raise Rejection(f"records named {sorted(content)} instead of {sorted({*sizes, METRICS})}")
    metrics = _checked_metrics(values, server_round, profile)
    vectors = {
        name: _checked_vector(name, arrays[name], length, metrics["loss"])
        for name, length in sizes.items()
    }
    return TrainReply(
        server_round=server_round,
        partition=profile.partition,
        vector=vectors.pop(ARRAYS),
        examples=profile.examples,
        loss=metrics["loss"],
        steps=int(metrics["steps"]),
        seconds=metrics["seconds"],
        extras=vectors,
    )


def _checked_metrics(values: MetricRecord, server_round: int, profile: Profile) -> dict[str, float]:
    metrics = _numbers(values)
    if metrics["round"] != server_round:
        raise Rejection(f"for round {metrics['round']:.0f}, not {server_round}")
    if metrics["partition"] != profile.partition:
        raise Rejection(f"from partition {metrics['partition']:.0f}, not {profile.partition}")
    if metrics["examples"] != profile.examples:
        raise Rejection(f"{metrics['examples']:.0f} examples, but it declared {profile.examples}")
    return metrics


def _numbers(record: MetricRecord) -> dict[str, float]:
    expected = {"round", "partition", "examples", "loss", "steps", "seconds"}
    if set(record) != expected or not all(isinstance(v, int | float) for v in record.values()):
        raise Rejection(f"metrics named {sorted(record)} instead of {sorted(expected)}")
    numbers = {key: float(str(value)) for key, value in record.items()}
    if not all(math.isfinite(numbers[key]) for key in expected - {"loss"}):
        raise Rejection(f"non-finite metrics {numbers}")
    return numbers


def _checked_vector(name: str, record: ArrayRecord, size: int, loss: float) -> Vector:
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

"""Train messages: what the server asks, what a client returns, and how the reply is checked."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedhet_app.client_state import ClientState, StateNote
from fedhet_app.wire.profiles import Profile
from fedhet_app.wire.vectors import (
    ARRAYS,
    CONFIG,
    METRICS,
    Rejection,
    Vector,
    checked_vector,
    last_line,
    pack,
    unpack,
)

CONTROL = "control"
TRAIN = "train"
E_STEP = "train.e_step"
M_STEP = "train.m_step"
PATH_BYTES = 256


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
        settings.update(state_settings(note))
    return RecordDict({ARRAYS: arrays, CONFIG: settings, **(extras or {})})


def state_settings(note: StateNote) -> ConfigRecord:
    """Return what a message says of the client's state."""
    # One length for nearly all folders: what travels must not depend on where results lie.
    folder = os.fsencode(note.directory).ljust(PATH_BYTES, b"\0")
    return ConfigRecord(
        {
            "run": note.run,
            "state-dir": folder,
            "accepted-round": note.accepted,
            "kept-round": note.kept,
        }
    )


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
    """Return what a message says of the client's state; ``None`` for methods without one."""
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
        raise Rejection(f"error {message.error.code}: {last_line(message.error.reason)}")
    content, sizes = message.content, {ARRAYS: size, **(extras or {})}
    arrays, values = content.array_records, content.metric_records.get(METRICS)
    if set(arrays) != set(sizes) or values is None or len(content) != len(sizes) + 1:
        raise Rejection(f"records named {sorted(content)} instead of {sorted({*sizes, METRICS})}")
    metrics = _checked_metrics(values, server_round, profile)
    vectors = {
        name: checked_vector(name, arrays[name], length, metrics["loss"])
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

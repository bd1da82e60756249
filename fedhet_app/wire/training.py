"""Train messages: what the server asks, and what a client returns."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedhet_app.client_state import ClientState, StateNote
from fedhet_app.wire.vectors import ARRAYS, CONFIG, METRICS, Vector, pack, unpack

CONTROL = "control"
BEGUN_ANEW = "begun-anew"
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

    ``extras`` is whatever else a method returns, by name; ``begun_anew`` tells of a client whose
    state was gone.
    """

    server_round: int
    partition: int
    vector: Vector
    examples: int
    loss: float
    steps: int
    seconds: float
    extras: Mapping[str, Vector] = field(default_factory=dict)
    begun_anew: bool = False


def train_content(
    arrays: ArrayRecord,
    server_round: int,
    width: float,
    *,
    extras: Mapping[str, ArrayRecord] | None = None,
    note: StateNote | None = None,
    settings: ConfigRecord | None = None,
) -> RecordDict:
    """Return the content of a train message.

    Args:
        arrays: The slice.
        server_round: Counted from 1.
        width: The slice's.
        extras: Whatever else the method sends, a vector each.
        note: Where the client's state stands, for methods with one.
        settings: What Flower's strategies add for Flower's client modifiers.
    """
    settings = ConfigRecord({"round": server_round, "width": width, **(settings or {})})
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
            **({BEGUN_ANEW: 1} if reply.begun_anew else {}),
        }
    )
    extras = {name: pack(vector) for name, vector in reply.extras.items()}
    content = RecordDict({ARRAYS: pack(reply.vector), METRICS: metrics, **extras})
    return Message(content, reply_to=message)

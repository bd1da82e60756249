"""Small runs of the whole system, and a grid that can spoil what travels."""

import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedhet_app import engine, wire
from fedhet_app.config import parse
from fedhet_app.config_checks import belongs
from fedhet_app.results import MODEL, RunReader, round_observer
from fedhet_app.server_app import app as server_app

TINY = {
    "strategy": "fedavg",
    "dataset": "digits",
    "max-train-examples": 300,
    "num-clients": 6,
    "num-server-rounds": 3,
    "local-steps": 2,
    "batch-size": 16,
    "lr": 0.05,
    "evaluate-every": 0,
    "device": "cpu",
}
MIXTURE = {
    "strategy": "fedspm",
    "partition": "dual",
    "num_clients": 4,
    "num_server_rounds": 3,
    "fraction_train": 1.0,
    "max_train_examples": 0,
    "dual__examples": 500,
    "embedding": 6,
    "batch_size": 16,
    "local_steps": 2,
    "lr_schedule": "cosine",
    "clip_norm": 0.0,
    "routing__embedding": 8,
    "routing__steps": 3,
    "fedspm__components": 2,
}
FULL_CAPACITY = {"capacity-tiers": "1.0", "capacity-probs": "1.0"}


def tiny(directory, **options):
    """The checked config of a small run; keywords are keys with underscores for hyphens.

    Options of other methods than the strategy are left out: one set serves several methods.
    """
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    values = {**TINY, **keys, "results-dir": str(directory)}
    strategy = values["strategy"]
    return parse({key: value for key, value in values.items() if belongs(key, strategy)})


def run(directory, nodes=None, **options):
    """Run a small config in this process and return its reader."""
    engine.run(tiny(directory, **options), engine="inline", nodes=nodes)
    return RunReader(directory)


def interrupted(directory, at, **options):
    """Run until Ctrl-C in round ``at``, as a key press during the display of its row."""

    def press(row):
        if row["round"] == at:
            raise KeyboardInterrupt

    token = round_observer.set(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(directory, **options)
    finally:
        round_observer.reset(token)
    return RunReader(directory)


class SpoiltGrid(engine.InlineGrid):
    """Hands every message but the first query to ``spoil``, which returns what arrives.

    ``spoil(partition, message, answer)`` may return a reply, or ``None`` for none; ``answer()``
    is what the real client replies. ``backwards``: the last message is the first to be answered.
    """

    def __init__(self, config, spoil, *, backwards=False):
        nodes = engine.virtual_nodes(config.num_clients)
        super().__init__(config.flat(), nodes)
        ids = list(self.get_node_ids())
        self.partitions = {i: node["partition-id"] for i, node in zip(ids, nodes, strict=True)}
        self.spoil, self.step = spoil, -1 if backwards else 1

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in list(messages)[:: self.step]:
            if message.metadata.message_type == "query.profile":
                replies += super().send_and_receive([message], timeout=timeout)
                continue

            def answer(message=message):
                (reply,) = super(SpoiltGrid, self).send_and_receive([message])
                return reply

            reply = self.spoil(self.partitions[message.metadata.dst_node_id], message, answer)
            replies += [] if reply is None else [reply]
        return replies


class MoodyGrid(SpoiltGrid):
    """Node 1 gives ``answers``, one after another, when it is asked who it is; then the truth."""

    def __init__(self, config, answers):
        super().__init__(config, lambda partition, message, answer: answer())
        self.answers = list(answers)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            asked = message.metadata.message_type == "query.profile"
            if asked and self.answers and self.partitions[message.metadata.dst_node_id] == 1:
                replies.append(Message(self.answers.pop(0), reply_to=message))
            else:
                replies += super().send_and_receive([message], timeout=timeout)
        return replies


def run_spoilt(directory, spoil, *, backwards=False, **options):
    """Run a small config on a ``SpoiltGrid`` and return its reader."""
    config = tiny(directory, **options)
    grid = SpoiltGrid(config, spoil, backwards=backwards)
    server_app(grid, Context(1, 1, {}, RecordDict(), config.flat()))
    return RunReader(directory)


def spoiling(client, kind, name, change):
    """One client, or with ``None`` each, returns something else in one record of a kind of reply.

    ``change`` takes the vector, which it may write to, and returns the other.
    """

    def spoil(partition, message, answer):
        reply = answer()
        if message.metadata.message_type != kind or client not in (partition, None):
            return reply
        vector = np.asarray(change(wire.unpack(reply.content[name]).copy()), dtype=np.float32)
        records = {**reply.content, name: ArrayRecord({wire.VECTOR: Array(vector)})}
        return Message(RecordDict(records), reply_to=message)

    return spoil


def model_bytes(reader):
    return (reader.directory / MODEL).read_bytes()


def timeless(row):
    return {key: value for key, value in row.items() if not re.search(r"\bseconds\b", key)}


def outcome(reader):
    """All that a run computed, times aside."""
    return (
        timeless(reader.summary),
        [timeless(row) for row in reader.rounds],
        [timeless(row) for row in reader.clients],
        model_bytes(reader),
    )

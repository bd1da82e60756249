"""Evaluate messages: clients measure, each on examples that it holds out.

What is asked travels as a train message's content does: models, round, width, client state.
"""

from dataclasses import dataclass

from flwr.app import Message, MetricRecord, RecordDict

from fedhet_app.wire.profiles import Profile
from fedhet_app.wire.vectors import METRICS, MOST_LOSS, Rejection, as_float, last_line

EVALUATE = "evaluate"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a client found.

    Attributes:
        server_round: Counted from 1.
        partition: The client.
        examples: Those it measured on.
        correct: How many of them were predicted correctly.
        loss: Mean cross-entropy in nats.
    """

    server_round: int
    partition: int
    examples: int
    correct: int
    loss: float

    @property
    def accuracy(self) -> float:
        """Fraction of the examples that were predicted correctly."""
        return self.correct / self.examples


def measured_to(message: Message, measured: Measured) -> Message:
    """Return the message that carries what a client found."""
    metrics = MetricRecord(
        {
            "round": measured.server_round,
            "partition": measured.partition,
            "examples": measured.examples,
            "correct": measured.correct,
            "loss": measured.loss,
        }
    )
    return Message(RecordDict({METRICS: metrics}), reply_to=message)


def read_measured(message: Message, *, server_round: int, profile: Profile) -> Measured:
    """Return what a client found, after checking it against what it declared.

    Args:
        message: The reply, or Flower's error in place of one.
        server_round: The round the request was for.
        profile: What the node said of itself before the first round.

    Raises:
        Rejection: The reply cannot be used; the text says why.
    """
    if message.has_error():
        raise Rejection(f"error {message.error.code}: {last_line(message.error.reason)}")
    record = message.content.metric_records.get(METRICS)
    if record is None or len(message.content) != 1:
        raise Rejection(f"not the one record {METRICS!r}, but {len(message.content)} records")
    counts = {"round", "partition", "examples", "correct"}
    if set(record) != counts | {"loss"} or any(type(record[key]) is not int for key in counts):
        raise Rejection(f"metrics that are not the whole numbers {sorted(counts)} and a loss")
    if not isinstance(record["loss"], int | float):
        raise Rejection("a loss of another type")
    loss = as_float(record["loss"])
    if not 0 <= loss <= MOST_LOSS:
        raise Rejection(f"a loss of {loss:g}")
    said = {key: as_float(record[key]) for key in counts}
    expected = {
        "round": server_round,
        "partition": profile.partition,
        "examples": profile.test_examples,
    }
    for key, value in expected.items():
        if said[key] != value:
            raise Rejection(f"{key} {said[key]:g}, not {value}")
    if not 0 <= said["correct"] <= said["examples"]:
        raise Rejection(f"{said['correct']:g} of {said['examples']:g} examples correct")
    return Measured(
        server_round=server_round,
        partition=profile.partition,
        examples=profile.test_examples,
        correct=int(said["correct"]),
        loss=loss,
    )

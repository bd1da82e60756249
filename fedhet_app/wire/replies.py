"""Replies to train messages, which anybody may have written: which is whose, and is it sound."""

import math
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Message, MetricRecord

from fedhet_app.wire.profiles import Profile
from fedhet_app.wire.training import BEGUN_ANEW, E_STEP, TrainReply
from fedhet_app.wire.vectors import (
    ARRAYS,
    METRICS,
    MOST_LOSS,
    Rejection,
    as_float,
    checked_vector,
    last_line,
    listed,
)

_MOST = 2**53
"""Of steps and seconds: beyond it a float is no count."""


def by_request(replies: Iterable[Message]) -> dict[str, list[Message]]:
    """Return replies by the id of the message that they answer.

    An error that Flower puts in a reply's place names no node, but it does name the message.
    """
    answers: dict[str, list[Message]] = {}
    for reply in replies:
        answers.setdefault(reply.metadata.reply_to_message_id, []).append(reply)
    return answers


def only_answer(message: Message, answers: Sequence[Message]) -> Message | None:
    """Return what answers a message, or ``None`` where nothing does.

    Raises:
        Rejection: Two replies claim to, or one that another node wrote.
    """
    if len(answers) > 1:
        raise Rejection(f"{len(answers)} replies to one message")
    for reply in answers:
        asked, said = message.metadata.dst_node_id, reply.metadata.src_node_id
        if reply.has_content() and said != asked:
            raise Rejection(f"from node {said}, but node {asked} was asked")
        return reply
    return None


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
        raise Rejection(f"records named {listed(content)} instead of {sorted({*sizes, METRICS})}")
    metrics = _checked_metrics(_numbers(values), server_round, profile)
    loss, trained = metrics["loss"], message.metadata.message_type != E_STEP
    vectors = {
        name: checked_vector(name, arrays[name], length, loss=loss, trained=trained)
        for name, length in sizes.items()
    }
    return TrainReply(
        server_round=server_round,
        partition=profile.partition,
        vector=vectors.pop(ARRAYS),
        examples=profile.examples,
        loss=loss,
        steps=int(metrics["steps"]),
        seconds=metrics["seconds"],
        extras=vectors,
        begun_anew=BEGUN_ANEW in metrics,
    )


def _checked_metrics(
    metrics: dict[str, float], server_round: int, profile: Profile
) -> dict[str, float]:
    if metrics["round"] != server_round:
        raise Rejection(f"for round {metrics['round']:.0f}, not {server_round}")
    if metrics["partition"] != profile.partition:
        raise Rejection(f"from partition {metrics['partition']:.0f}, not {profile.partition}")
    if metrics["examples"] != profile.examples:
        declared = f"but it declared {profile.examples} when the run began"
        raise Rejection(f"{metrics['examples']:.0f} examples, {declared}")
    steps, seconds = metrics["steps"], metrics["seconds"]
    if not 0 <= steps <= _MOST or steps != int(steps) or not 0 <= seconds <= _MOST:
        raise Rejection(f"{steps:g} steps in {seconds:g} seconds")
    return metrics


def _numbers(record: MetricRecord) -> dict[str, float]:
    expected = {"round", "partition", "examples", "loss", "steps", "seconds"}
    named = set(record) - {BEGUN_ANEW}
    if named != expected or not all(isinstance(v, int | float) for v in record.values()):
        raise Rejection(f"metrics named {listed(record)} instead of {sorted(expected)}")
    numbers = {key: as_float(value) for key, value in record.items()}
    if not all(math.isfinite(numbers[key]) for key in expected - {"loss"}):
        raise Rejection(f"non-finite metrics {numbers}")
    if math.isfinite(numbers["loss"]) and abs(numbers["loss"]) > MOST_LOSS:
        raise Rejection(f"loss {numbers['loss']:g}, which is beyond float32")
    return numbers

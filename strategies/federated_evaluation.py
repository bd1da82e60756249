"""Evaluation by the clients, each on examples that it holds out; the server sees numbers alone.

The run's loss and accuracy are then means over all those examples. A client measures what it could
run: of a sub-model method the slice of its capacity, of a method whose clients predict with models
of their own that model.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict

from fedhet_app import wire
from fedhet_app.wire import Measured, Rejection
from strategies.federation import Federation

LOG = logging.getLogger("fedhet")

PREFIX = "evaluation: "


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A client that is to measure, with the width of what it was sent."""

    message: Message
    partition: int
    width: float


def ask(
    federation: Federation, content: Callable[[int], tuple[RecordDict, float]], timeout: float
) -> list[Asked]:
    """Return a message for every client that holds examples out.

    Args:
        federation: The clients.
        content: Returns what a client is sent, and its width.
        timeout: Seconds after which the messages are void.
    """
    asked = []
    for profile in federation.profiles:
        if not profile.test_examples:
            continue
        records, width = content(profile.partition)
        message = Message(
            records,
            dst_node_id=federation.nodes[profile.partition],
            message_type=wire.EVALUATE,
            ttl=timeout,
        )
        asked.append(Asked(message=message, partition=profile.partition, width=width))
    return asked


def hear(
    federation: Federation,
    asked: Iterable[Asked],
    replies: Iterable[Message],
    server_round: int,
) -> tuple[list[tuple[Asked, Measured]], list[dict[str, Any]]]:
    """Return what clients found, in the order of partition ids, and the replies that are not used.

    Args:
        federation: The clients.
        asked: Who was to measure.
        replies: What came.
        server_round: Counted from 1.
    """
    answers = wire.by_request(replies)
    found, rejected = [], []
    for each in asked:
        said = answers.get(each.message.metadata.message_id, [])
        try:
            reply = wire.only_answer(each.message, said)
            if reply is None:
                raise Rejection("no reply in time")
            profile = federation.profiles[each.partition]
            measured = wire.read_measured(reply, server_round=server_round, profile=profile)
            found.append((each, measured))
        except Rejection as rejection:
            reason = f"{PREFIX}{rejection}"
            rejected.append({"partition": each.partition, "reason": reason})
            LOG.warning("round %d: client %d dropped: %s", server_round, each.partition, reason)
    return found, rejected


def columns(found: Iterable[tuple[Asked, Measured]]) -> dict[str, Any]:
    """Return the evaluation columns of a round's row; none where nobody measured.

    Loss (nats) and accuracy are means over all held-out examples.
    """
    measured = [each for _, each in found]
    if not measured:
        return {}
    examples = sum(each.examples for each in measured)
    by_client = {str(each.partition): each.accuracy for each in measured}
    return {
        "loss": sum(each.loss * each.examples for each in measured) / examples,
        "accuracy": sum(each.correct for each in measured) / examples,
        "client-accuracy": by_client,
        "worst-client-accuracy": min(by_client.values()),
        "evaluated-examples": examples,
    }


def with_columns(
    rows: list[dict[str, Any]],
    found: Iterable[tuple[Asked, Measured]],
    federation: Federation,
    server_round: int,
) -> list[dict[str, Any]]:
    """Return a round's rows of clients, with what each measured; a row for each that did not train.

    Args:
        rows: Those of the clients that trained.
        found: What clients measured.
        federation: The clients.
        server_round: Counted from 1.
    """
    by_partition = {row["partition"]: row for row in rows}
    for asked, measured in found:
        profile = federation.profiles[asked.partition]
        row = by_partition.setdefault(
            asked.partition,
            {
                "round": server_round,
                "partition": asked.partition,
                "examples": profile.examples,
                "capacity": float(federation.caps[asked.partition]),
                "trained": False,
            },
        )
        row |= {
            "test-examples": measured.examples,
            "test-accuracy": measured.accuracy,
            "test-loss": measured.loss,
            "test-width": asked.width,
        }
    return [by_partition[partition] for partition in sorted(by_partition)]

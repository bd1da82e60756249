"""Rounds whose clients are sent whole models: messages and rows, in one exchange or in two."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.results import RunWriter
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply
from strategies.base import Round, RoundStrategy, Sent
from strategies.federation import Federation

LOG = logging.getLogger("fedhet")


class WholeStrategy(RoundStrategy):
    """The part of these methods that they share.

    Args:
        task: Data and networks for the nodes that are there.
        federation: Profiles and capacities.
        writer: The run directory.
        resumed: Where to continue, or ``None``.
    """

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(config=task.config, federation=federation, writer=writer, resumed=resumed)
        self.task, self.nodes = task, federation.nodes

    def summary(self) -> None:
        """Log what is about to run; capacities play no part in it."""
        clients = len(self.federation.profiles)
        LOG.info("%s: %d clients train whole models", self.config.strategy, clients)
        self.warn_of_capacities(np.ones(clients))

    def begin(self, server_round: int) -> Round:
        """Start a round, Flower's ``server_round``, and return what it will gather."""
        number = server_round + self.first_round
        current = self.round = Round(number=number, began=self.round.mark)
        current.row |= {"round": number, "lr": self.config.lr_at(number), "download-bytes": 0}
        current.row |= {"mean-width": 1.0, "uncovered": 0.0, "never-trained": 0.0}
        return current

    def send(self, kind: str, partitions: Iterable[int], size: int, record: ArrayRecord) -> None:
        """Make the messages of one exchange; the round's ``sent`` are those.

        Args:
            kind: The message type.
            partitions: To whom.
            size: Number of floats that each is to return.
            record: What to send.
        """
        current = self.round
        current.sent = []
        for partition in partitions:
            content = wire.train_content(
                record,
                current.number,
                1.0,
                extras=self.request_extras(partition),
                note=self.note(partition),
            )
            message = Message(
                content,
                dst_node_id=self.nodes[partition],
                message_type=kind,
                ttl=self.config.round_timeout,
            )
            current.row["download-bytes"] += wire.record_bytes(content)
            current.sent.append(
                Sent(message=message, partition=partition, width=1.0, index=None, size=size)
            )

    def client_row(self, sent: Sent, reply: TrainReply) -> dict[str, Any]:
        """Return what every one of these methods tells of a client that trained."""
        return {
            "round": self.round.number,
            "partition": sent.partition,
            "examples": reply.examples,
            "capacity": float(self.federation.caps[sent.partition]),
            "trained": True,
            "width": 1.0,
            "floats": sent.size,
            "loss": reply.loss,
            "steps": reply.steps,
            "seconds": reply.seconds,
        }


def means(clients: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Return the means of columns over clients, weighted by their examples; none without clients.

    Args:
        clients: Rows of ``clients.jsonl``.
        names: Their columns.
    """
    weights = [row["examples"] for row in clients]
    return {
        name: float(np.average([row[name] for row in clients], weights=weights))
        for name in (names if clients else ())
    }

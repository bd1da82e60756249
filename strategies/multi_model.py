"""Rounds of training C full models side by side, shared by all clients; one exchange a round.

All models go out as one stack. What comes back, and which models it moves, is the method's:
`strategies.ifca`, `strategies.fedem`. Clients predict with what they make of the models, and vote.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.config import Config
from fedhet_app.model_stack import initial_stack, stack_tensors
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply
from strategies.base import Accepted, Round, RoundStrategy, Sent
from strategies.federation import Federation
from strategies.panel import Panel, evaluate_voted


class MultiModel(RoundStrategy):
    """The part of these methods that they share.

    Args:
        task: Data and network for the nodes that are there.
        federation: Profiles and capacities.
        count: The number of models, C.
        writer: The run directory.
        resumed: Where to continue, or ``None``.
    """

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        count: int,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(config=task.config, federation=federation, writer=writer, resumed=resumed)
        self.task, self.count = task, count
        self.nodes = federation.nodes
        self.panel = Panel(task, self.nodes, None)
        self.reply_size = task.slicer.size
        self.renew(resumed.arrays["vector"] if resumed else initial_stack(task, count))

    def renew(self, vector: NDArray[Any]) -> None:
        """Put other models in place, shape ``(C D,)``."""
        self.vector, self.record = vector, wire.pack(vector)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the models."""
        return {"vector": self.vector}

    def measure(self) -> dict[str, Any]:
        """Let every client predict the test set, or a part of it, and vote."""
        rows = self.task.test_rows(self.examples_to_measure)
        return evaluate_voted(self.panel, self.grid, self.record, rows, self.saved)

    def write_model(self) -> None:
        """Write all models."""
        self.writer.write_model(stack_tensors(self.task, self.vector), {"width": "1.0"})

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Sample clients and send each all models."""
        number = server_round + self.first_round
        current = self.round = Round(number=number, began=self.round.mark)
        current.row |= {"round": number, "lr": self.config.lr_at(number), "download-bytes": 0}
        current.row |= {"mean-width": 1.0, "uncovered": 0.0, "never-trained": 0.0}
        self.prepare_models(grid)
        self.send(wire.TRAIN, self.cohort(number), self.reply_size)
        return self.most_work_first(current.sent)

    def prepare_models(self, grid: Grid) -> None:
        """Change the models before they are sent, where a method does."""

    def send(
        self,
        kind: str,
        partitions: Iterable[int],
        size: int,
        record: ArrayRecord | None = None,
    ) -> None:
        """Make the messages of one exchange; the round's ``sent`` are those.

        Args:
            kind: The message type.
            partitions: To whom.
            size: Number of floats that each is to return.
            record: What to send in place of the models.
        """
        current = self.round
        current.sent = []
        for partition in partitions:
            content = wire.train_content(
                self.record if record is None else record,
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

    def request_extras(self, partition: int) -> Mapping[str, ArrayRecord]:
        """Return what a client is sent beside the models."""
        return {}

    def aggregate_train(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average each model over the clients that trained it, weighted by their examples."""
        current = self.round
        current.end_phase("training")
        accepted = self.accept(replies)
        current.clients = [self._client_row(sent, reply) for sent, reply in accepted]
        if accepted:
            updates = [update for _, reply in accepted for update in self.updates(reply)]
            self.renew(aggregate(self.vector, updates).vector)
        current.row |= self.finish(accepted)
        current.end_phase("aggregation")
        return (self.record, None) if accepted else (None, None)

    @abstractmethod
    def updates(self, reply: TrainReply) -> Sequence[Update]:
        """Return how one client's reply enters the average."""

    @abstractmethod
    def columns(self, reply: TrainReply) -> dict[str, Any]:
        """Return the method's own columns on one client."""

    @abstractmethod
    def finish(self, accepted: Accepted) -> dict[str, Any]:
        """Take note of whose replies counted; return the method's own columns on the round."""

    def _client_row(self, sent: Sent, reply: TrainReply) -> dict[str, Any]:
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
            **self.columns(reply),
        }


@dataclass(frozen=True)
class Models:
    """The row of a method that trains several models.

    Attributes:
        strategy: What happens in a round.
        count: Returns the number of models that the method's options ask for.
    """

    strategy: type[MultiModel]
    count: Callable[[Config], int]

    def prepare(self, task: Task, federation: Federation) -> "partial[MultiModel]":
        """Take the number of models from the options."""
        count = self.count(task.config)
        return partial(self.strategy, task=task, federation=federation, count=count)

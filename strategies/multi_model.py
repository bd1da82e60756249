"""Rounds of training C full models side by side, shared by all clients; one exchange a round.

All models go out as one stack. What comes back, and which models it moves, is the method's:
`strategies.ifca`, `strategies.fedem`. Clients predict with what they make of the models, and vote.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
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
from strategies.base import Accepted
from strategies.federation import Federation
from strategies.panel import Panel, evaluate_voted
from strategies.whole import WholeStrategy


class MultiModel(WholeStrategy):
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
        super().__init__(task=task, federation=federation, writer=writer, resumed=resumed)
        self.count = count
        self.panel = Panel(task, self.nodes, self.note)
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
        return evaluate_voted(self.panel, self.grid, self.record, rows)

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
        current = self.begin(server_round)
        self.prepare_models(grid)
        self.send(wire.TRAIN, self.cohort(current.number), self.reply_size, self.record)
        return self.most_work_first(current.sent)

    def prepare_models(self, grid: Grid) -> None:
        """Change the models before they are sent, where a method does."""

    def aggregate_train(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average each model over the clients that trained it, weighted by their examples."""
        current = self.round
        current.end_phase("training")
        accepted = self.accept(replies)
        current.clients = [
            self.client_row(sent, reply) | self.columns(reply) for sent, reply in accepted
        ]
        if accepted:
            updates = [update for _, reply in accepted for update in self.updates(reply)]
            self.renew(aggregate(self.vector, updates).vector)
            self.count_states(accepted)
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

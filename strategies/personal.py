"""Rounds of full-width training whose clients predict with models of their own.

The rounds are FedAvg's (`strategies.submodel` with all widths at 1) unless the client half does
something else; what is measured are the clients' own models, asked for by `query.predict`.
"""

from typing import Any

from flwr.app import ArrayRecord, RecordDict

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.client_state import StateNote
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Aggregate
from fedhet_app.task import Task
from strategies.allocation import Allocation
from strategies.base import Accepted
from strategies.client_states import ClientStates
from strategies.federation import Federation
from strategies.panel import Panel, evaluate_voted
from strategies.submodel import SubmodelStrategy


class Personal(SubmodelStrategy):
    """Personal models without a state: made of the global model whenever they are asked."""

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        allocation: Allocation,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(
            task=task, federation=federation, allocation=allocation, writer=writer, resumed=resumed
        )
        self.panel = Panel(task, federation.nodes, None)

    def measure(self) -> dict[str, Any]:
        """Let every client predict the test set, or a part of it, and vote."""
        rows = self.task.test_rows(self.examples_to_measure)
        return evaluate_voted(self.panel, self.grid, self.record, rows, self.saved)


class PersonalState(Personal):
    """Personal models that clients keep from round to round."""

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        allocation: Allocation,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(
            task=task, federation=federation, allocation=allocation, writer=writer, resumed=resumed
        )
        self.states = ClientStates(writer.directory, len(federation.profiles), resumed)
        self.panel = Panel(task, self.panel.nodes, self.states.note)

    def arrays(self) -> dict[str, Any]:
        """Return the rounds of the clients' states beside what every method has."""
        return {**super().arrays(), **self.states.arrays()}

    def note(self, partition: int) -> StateNote:
        """Return where the client's model stands."""
        return self.states.note(partition, self.saved)

    def request(
        self, record: ArrayRecord, server_round: int, width: float, partition: int
    ) -> RecordDict:
        """Say with the model where the client's state stands."""
        note = self.note(partition)
        return wire.train_content(record, server_round, width, note=note)

    def step(self, after: Aggregate, accepted: Accepted) -> Aggregate:
        """Let the states count of the clients whose replies did."""
        self.states.accept((sent.partition for sent, _ in accepted), self.round.number)
        return after

"""Rounds of full-width training whose clients predict with models of their own.

The rounds are FedAvg's (`strategies.submodel` with all widths at 1) unless the client half does
something else; what is measured are the clients' own models, asked for by `query.predict`.
"""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.results import RunWriter
from fedhet_app.task import Task
from strategies.allocation import Allocation
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
        self.panel = Panel(task, federation.nodes, self.note)

    @property
    def needed(self) -> ArrayRecord:
        """What a client must be sent of the model to predict."""
        return self.record

    def measure(self) -> dict[str, Any]:
        """Let every client predict the test set, or a part of it, and vote."""
        rows = self.task.test_rows(self.examples_to_measure)
        return evaluate_voted(self.panel, self.grid, self.needed, rows)

    def to_measure(self, partition: int) -> tuple[ArrayRecord, float]:
        """Return what a client measures its own model with."""
        return self.needed, 1.0


class PersonalState(Personal):
    """Personal models that clients keep from round to round."""

    keeps_state = True

    @property
    def needed(self) -> ArrayRecord:
        """Nothing: the client has its model."""
        return wire.pack(np.empty(0, np.float32))

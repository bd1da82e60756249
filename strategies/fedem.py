"""FedEM (Marfoq et al. 2021, Algorithm 1): server half.

All C models go to every client of the cohort, all come back trained, and each is averaged over the
clients with weights n_i. The mixing weights never leave the clients. With one component it is
FedAvg.

Deviations:
    1. Initial models are drawn by streams of their own for each component, not by seed + c.
    2. The average is over the sampled clients; the published code lets the others enter it with the
       models of the round before.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.checkpoint import Checkpoint
from fedhet_app.client_state import StateNote
from fedhet_app.mixture_model import DIAGNOSTICS
from fedhet_app.model_stack import OF_FEDEM
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Update
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply
from strategies.base import Accepted
from strategies.client_states import ClientStates
from strategies.federation import Federation
from strategies.multi_model import MultiModel
from strategies.panel import Panel


class FedEM(MultiModel):
    """Rounds of federated expectation maximisation over shared models."""

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        count: int,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(
            task=task, federation=federation, count=count, writer=writer, resumed=resumed
        )
        self.states = ClientStates(writer.directory, len(federation.profiles), resumed)
        self.panel = Panel(task, self.nodes, self.states.note)
        self.reply_extras = {DIAGNOSTICS: len(OF_FEDEM)}
        self.reply_size = count * task.slicer.size

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the rounds of the clients' states beside the models."""
        return {**super().arrays(), **self.states.arrays()}

    def note(self, partition: int) -> StateNote:
        """Return where the client's mixing weights stand."""
        return self.states.note(partition, self.saved)

    def updates(self, reply: TrainReply) -> Sequence[Update]:
        """Let all models of the client count by its examples."""
        return [Update(index=None, values=reply.vector, weight=float(reply.examples))]

    def columns(self, reply: TrainReply) -> dict[str, Any]:
        """Return how far the client's mixture is from a single model."""
        return dict(zip(OF_FEDEM, reply.extras[DIAGNOSTICS].tolist(), strict=True))

    def finish(self, accepted: Accepted) -> dict[str, Any]:
        """Let the states count; return the means over clients, weighted by their examples."""
        self.states.accept((sent.partition for sent, _ in accepted), self.round.number)
        if not accepted:
            return {}
        weights = [reply.examples for _, reply in accepted]
        table = [reply.extras[DIAGNOSTICS] for _, reply in accepted]
        means = np.average(np.array(table, dtype=np.float64), axis=0, weights=weights)
        return dict(zip(OF_FEDEM, means.tolist(), strict=True))

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

from fedhet_app.checkpoint import Checkpoint
from fedhet_app.mixture_model import DIAGNOSTICS, of_e_step
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Update
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply
from strategies.base import Accepted
from strategies.federation import Federation
from strategies.multi_model import MultiModel
from strategies.whole import means


class FedEM(MultiModel):
    """Rounds of federated expectation maximisation over shared models."""

    keeps_state = True

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
        self._names = of_e_step(task)
        self.reply_extras = {DIAGNOSTICS: len(self._names)}
        self.reply_size = count * task.slicer.size

    def updates(self, reply: TrainReply) -> Sequence[Update]:
        """Let all models of the client count by its examples."""
        return [Update(index=None, values=reply.vector, weight=float(reply.examples))]

    def columns(self, reply: TrainReply) -> dict[str, Any]:
        """Return what the client says of its E-step."""
        return dict(zip(self._names, reply.extras[DIAGNOSTICS].tolist(), strict=True))

    def finish(self, accepted: Accepted) -> dict[str, Any]:
        """Return the means over clients, weighted by their examples."""
        return means(self.round.clients, self._names)

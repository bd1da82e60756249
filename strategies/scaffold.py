"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, lines 3-5 and 15-18): server half.

Each client of the cohort S is sent the model x and the server's control variate c. From the trained
models y_i and the changes dc_i of the clients' control variates (`client_apps.scaffold`) follow
x <- x + server_lr * mean_S (y_i - x) and c <- c + (|S| / N) * mean_S dc_i. All control variates
start at zero, so c is the mean of the c_i whoever was sampled. In the first round, with clients of
equal size, it is FedAvg, and in every round if all clients take one step.

Deviations:
    1. Replies that cannot be used leave S; their clients throw the new c_i away.
    2. Float buffers have no control variate: they become their mean, with the clients' weights.
    3. With ``scaffold.weighting`` = examples the mean over models is weighted by n_i, that over dc
       is not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Aggregate, Update
from fedhet_app.submodel.update_norm import update_norm
from fedhet_app.task import Task
from fedhet_app.training import local_steps
from fedhet_app.wire import CONTROL, Rejection, TrainReply
from strategies.allocation import Allocation
from strategies.base import Accepted, Sent
from strategies.federation import Federation
from strategies.submodel import SubmodelStrategy

_ROUNDING = 1e-3


class Scaffold(SubmodelStrategy):
    """Rounds with control variates; c has shape ``(P,)``, one value per parameter."""

    keeps_state = True

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
        num_params = task.slicer.num_params(1.0)
        self.control: NDArray[np.float64] = (
            resumed.arrays[CONTROL] if resumed else np.zeros(num_params)
        )
        self.reply_extras = {CONTROL: num_params}
        self._pack_control()

    def _pack_control(self) -> None:
        with np.errstate(over="ignore"):  # where training diverges, clients' replies tell of it
            self.control_record = wire.pack(self.control.astype(np.float32))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return c beside what every method has."""
        return {**super().arrays(), CONTROL: self.control}

    def request_extras(self, partition: int) -> Mapping[str, ArrayRecord]:
        """Send c with the model (line 5)."""
        return {CONTROL: self.control_record}

    def read(self, sent: Sent, reply: Message | None) -> TrainReply:
        """Return a reply that passes every check; under ``max-update-norm`` dc_i too is bounded.

        dc_i + c = (x - y_i) / (K * lr), or less with momentum: its bound follows from the update's.
        """
        read = super().read(sent, reply)
        if self.limit.most:
            steps = local_steps(self.config, read.examples)
            most = self.limit.most / (steps * self.config.lr_at(self.round.number))
            norm = update_norm(-self.control, read.extras[CONTROL])
            if norm > (1 + _ROUNDING) * most:
                reason = f"a control variate of norm {norm:.4g}, above the {most:.4g} that"
                raise Rejection(f"{reason} {self.limit.name} = {self.limit.most:g} leaves it")
        return read

    def update(self, sent: Sent, reply: TrainReply) -> Update:
        """Let every client count alike, or by its examples."""
        by_examples = self.config.scaffold.weighting == "examples"
        weight = float(reply.examples) if by_examples else 1.0
        return Update(index=sent.index, values=reply.vector, weight=weight)

    def step(self, after: Aggregate, accepted: Accepted) -> Aggregate:
        """Move x by server_lr and c by the changes of the clients that count (lines 16-17)."""
        if not accepted:
            return after
        total = np.zeros_like(self.control)
        for _, reply in accepted:
            total += reply.extras[CONTROL]
        self.control = self.control + total / len(self.federation.profiles)
        self._pack_control()
        vector = scaled_step(self.vector, after, len(self.control), self.config.scaffold.server_lr)
        return replace(after, vector=vector)


def scaled_step(
    vector: NDArray[np.float32], after: Aggregate, num_params: int, server_lr: float
) -> NDArray[np.float32]:
    """Return the model after a step of ``server_lr`` times the mean update.

    Args:
        vector: The model that was sent, shape ``(D,)``.
        after: What the average makes of it.
        num_params: Leading coordinates that are parameters; the buffers behind take their mean.
        server_lr: 1 leads to the average.
    """
    if server_lr == 1.0:
        return after.vector
    new = after.vector.copy()
    with np.errstate(over="ignore"):  # a step too long shows in the clients' replies
        new[:num_params] = vector[:num_params] + server_lr * after.mean_delta[:num_params]
    return new

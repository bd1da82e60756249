"""IFCA (Ghosh et al. 2020, Algorithm 1, lines 2-3 and 10-13), Paper B's ClusterFL: server half.

All C models go to every client of the cohort; each returns the one that it chose and trained, and
each model is averaged over the clients that chose it. A model that nobody chose keeps every bit.
With one cluster it is FedAvg.

With random initial models nearly all clients may choose the same, whose lead then grows. So before
the first round the clients tell which of the models they would choose, and all models are drawn
again until each has a client, at most ``DRAWS`` times. After that the first draw is taken, and the
server deals the models out to all clients in turn; each trains the one that it was dealt in the
first of its rounds that counts.

Deviations:
    1. The published code demands that each cluster get at least a given share of the clients, for
       as many draws as it takes, and asks simulated clients; here it is an exchange of messages.
    2. A model's average is weighted by n_i; the published code weighs all clients alike.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.model_stack import CLUSTER, initial_stack
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Update
from fedhet_app.task import Task
from fedhet_app.wire import Rejection, TrainReply
from strategies.base import Accepted, Sent
from strategies.federation import Federation
from strategies.multi_model import MultiModel

LOG = logging.getLogger("fedhet")

DRAWS = 50
DEALT = "dealt"
"""The array of a checkpoint: the model that each client was dealt and has not trained."""
_NONE = -1


class Ifca(MultiModel):
    """Rounds in which each client trains the model that suits it best."""

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
        self.dealt: NDArray[np.int64] = (
            resumed.arrays[DEALT] if resumed else np.full(len(self.nodes), _NONE)
        )
        self._empty: set[int] = set()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the models, and which of them are dealt."""
        return {**super().arrays(), DEALT: self.dealt}

    def prepare_models(self, grid: Grid) -> None:
        """Draw models until each has a client, or deal them out."""
        if self.count == 1 or self.round.number > 1:
            return
        clients = sorted(self.nodes)
        for draw in range(DRAWS):
            if draw:
                self.renew(initial_stack(self.task, self.count, draw))
            chosen = self._choices(grid, clients)
            if len(set(chosen.values())) == self.count:
                self.round.row["draws"] = draw + 1
                return
            clients = sorted(chosen)  # who did not answer would cost every draw its time-out
            if len(clients) < self.count:
                break
        self.round.row["draws"] = draw + 1
        self.renew(initial_stack(self.task, self.count))
        self.dealt = np.arange(len(self.nodes)) % self.count
        LOG.warning(
            "ifca: in no draw of %d did every cluster get a client; they are dealt out", draw + 1
        )

    def _choices(self, grid: Grid, clients: list[int]) -> dict[int, int]:
        """Return which model each client that answers would train."""
        self.send(wire.E_STEP, clients, 1, self.record)
        messages = self.most_work_first(self.round.sent)
        replies = grid.send_and_receive(messages, timeout=self.config.round_timeout)
        accepted = self.accept(replies, least=0)
        self.round.end_phase("draws")
        return {sent.partition: int(reply.vector[0]) for sent, reply in accepted}

    def request_extras(self, partition: int) -> Mapping[str, ArrayRecord]:
        """Name the model to train where the client was dealt one and has not trained it yet."""
        if self.dealt[partition] == _NONE:
            return {}
        return {CLUSTER: wire.pack(self.dealt[[partition]].astype(np.float32))}

    def extras_of(self, sent: Sent) -> dict[str, int]:
        """Return the size of the model's number, which comes with the model."""
        return {CLUSTER: 1} if sent.message.metadata.message_type == wire.TRAIN else {}

    def read(self, sent: Sent, reply: Message | None) -> TrainReply:
        """Return a reply that passes every check; the model chosen is one of those sent."""
        read = super().read(sent, reply)
        check_cluster(float(read.extras.get(CLUSTER, read.vector)[0]), self.count)
        return read

    def trained_from(self, sent: Sent, reply: TrainReply) -> NDArray[Any] | None:
        """Return the model that the client chose, as it was sent."""
        if sent.message.metadata.message_type == wire.E_STEP:
            return None
        begin = _cluster_of(reply) * sent.size
        return self.vector[begin : begin + sent.size]

    def updates(self, reply: TrainReply) -> Sequence[Update]:
        """Let the model that was chosen count by the client's examples."""
        size = self.task.slicer.size
        index = np.arange(size) + _cluster_of(reply) * size
        return [Update(index=index, values=reply.vector, weight=float(reply.examples))]

    def columns(self, reply: TrainReply) -> dict[str, Any]:
        """Return the client's cluster."""
        return {"cluster": _cluster_of(reply)}

    def finish(self, accepted: Accepted) -> dict[str, Any]:
        """Return the number of clients by cluster, and log which have lost all of theirs."""
        chosen = [_cluster_of(reply) for _, reply in accepted]
        self.dealt = self.dealt.copy()  # checkpoints hold that of their round
        self.dealt[[sent.partition for sent, _ in accepted]] = _NONE
        sizes = np.bincount(np.array(chosen, dtype=np.int64), minlength=self.count)
        empty = set(np.flatnonzero(sizes == 0).tolist()) if accepted else self._empty
        for cluster in sorted(empty - self._empty):
            LOG.warning(
                "round %d: no client chose cluster %d: its model stays as it is",
                self.round.number,
                cluster,
            )
        self._empty = empty
        return {"cluster-sizes": sizes.tolist()}


def check_cluster(cluster: float, count: int) -> None:
    """Refuse a number that is none of the models'.

    Raises:
        Rejection: It is not one of 0 to ``count`` - 1.
    """
    if cluster not in range(count):
        raise Rejection(f"cluster {cluster:g} instead of one of 0 to {count - 1}")


def _cluster_of(reply: TrainReply) -> int:
    return int(reply.extras[CLUSTER][0])

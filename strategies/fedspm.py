"""FedSPM (Paper B, Algorithm 1): server half, two exchanges a round.

First the shared vector (encoders, gamma, xi) goes out and every client's tau_i comes back; then the
table of all tau goes out and the trained vectors come back, to be averaged with weights rho_i.
Heads and mixing weights never leave the clients. With one component it is FedDRM.

Deviations:
    1. A client that is not sampled, or whose tau cannot be used, keeps its last tau in the table;
       one that never sent any has n_i / C (the paper has every client in every round).
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.client_state import StateNote
from fedhet_app.errors import FedhetError
from fedhet_app.mixture_model import (
    DIAGNOSTICS,
    LOG_MIXTURE,
    OF_E_STEP,
    OF_M_STEP,
    RESPONSIBILITIES,
    mixture_of,
)
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.task import Task
from fedhet_app.wire import Rejection, TrainReply
from strategies.base import Accepted, Round, RoundStrategy, Sent
from strategies.bridge import ExpectationStep, measure_bridge
from strategies.client_states import ClientStates
from strategies.federation import Federation
from strategies.routed import QueryRouter, evaluate_routed

LOG = logging.getLogger("fedhet")

TAU = "tau"
_TOLERANCE = 1e-4


class FedSPM(RoundStrategy):
    """Rounds of federated expectation maximisation.

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
        self.task, self.model = task, mixture_of(task)
        self.states = ClientStates(writer.directory, len(federation.profiles), resumed)
        examples = np.array([profile.examples for profile in federation.profiles], dtype=float)
        components = task.config.components
        evenly = np.repeat(examples[:, None] / components, components, axis=1)
        self.tau: NDArray[np.float64] = resumed.arrays[TAU] if resumed else evenly
        self.vector: NDArray[np.float32] = (
            resumed.arrays["vector"] if resumed else self.model.initial
        )
        self.record = wire.pack(self.vector)
        self.router = QueryRouter(task, federation.nodes, self.states)
        truth = task.dataset.train_components is not None
        self._of_e_step = OF_E_STEP if truth else OF_E_STEP[:-1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the shared vector, the tau table and the rounds of the clients' states."""
        return {"vector": self.vector, TAU: self.tau, **self.states.arrays()}

    def note(self, partition: int) -> StateNote:
        """Return where the client's heads and mixing weights stand."""
        return self.states.note(partition, self.saved)

    def write_model(self) -> None:
        """Write the shared networks with the tau table, which is all that routing needs."""
        tensors: dict[str, NDArray[Any]] = {**self.model.tensors(self.vector), TAU: self.tau}
        self.writer.write_model(tensors, {"components": str(self.config.components)})

    def measure(self) -> dict[str, Any]:
        """Route the test set and let the clients predict it."""
        rows = self.task.test_rows(self.examples_to_measure)
        return evaluate_routed(
            self.router,
            self.grid,
            vector=self.vector,
            record=self.record,
            tau=self.tau,
            rows=rows,
            saved=self.saved,
            vote=self.in_last_round,
        )

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Gather every tau_i (local E-step), then send the table (lines of the M-step)."""
        number = server_round + self.first_round
        self.round = Round(number=number, began=self.round.mark)
        current = self.round
        current.row |= {"round": number, "lr": self.config.lr_at(number), "download-bytes": 0}
        current.row |= {"mean-width": 1.0, "uncovered": 0.0, "never-trained": 0.0}
        self._send(wire.E_STEP, self.cohort(number), self.record)
        replies = grid.send_and_receive(
            self.most_work_first(current.sent), timeout=self.config.round_timeout
        )
        accepted = self.accept(replies)
        self._tau_before, tau = self.tau, self.tau.copy()  # checkpoints hold their round's table
        for sent, reply in accepted:
            tau[sent.partition] = reply.vector
        self.tau = tau
        self._e_step = {sent.partition: reply for sent, reply in accepted}
        current.end_phase("e-step")
        table = wire.pack(self.tau.astype(np.float32).ravel())
        self._send(wire.M_STEP, sorted(self._e_step), table)
        return self.most_work_first(current.sent)

    def _send(self, kind: str, partitions: list[int], record: ArrayRecord) -> None:
        """Make the messages of one exchange; the round's ``sent`` are those."""
        number = self.round.number
        size = self.model.components if kind == wire.E_STEP else self.model.size
        self.round.sent = []
        for partition in partitions:
            note = self.note(partition)
            message = Message(
                wire.train_content(record, number, 1.0, note=note),
                dst_node_id=self.federation.nodes[partition],
                message_type=kind,
                ttl=self.config.round_timeout,
            )
            self.round.row["download-bytes"] += wire.record_bytes(message.content)
            self.round.sent.append(
                Sent(message=message, partition=partition, width=1.0, index=None, size=size)
            )

    def extras_of(self, sent: Sent) -> dict[str, int]:
        """Return what a client's reply holds beside tau or its trained vector."""
        if sent.message.metadata.message_type == wire.M_STEP:
            return {DIAGNOSTICS: len(OF_M_STEP)}
        extras = {DIAGNOSTICS: len(self._of_e_step)}
        if self.config.measures_bridge(self.round.number):
            examples = self.federation.profiles[sent.partition].examples
            extras |= {RESPONSIBILITIES: examples * sent.size, LOG_MIXTURE: examples}
        return extras

    def read(self, sent: Sent, reply: Message | None) -> TrainReply:
        """Return a reply that passes every check; a tau is no less than 0 and sums to n_i."""
        read = super().read(sent, reply)
        if sent.message.metadata.message_type == wire.E_STEP:
            check_tau(read.vector, read.examples)
        return read

    def trained_from(self, sent: Sent, reply: TrainReply) -> NDArray[Any] | None:
        """Return the shared vector, which went out in the first exchange."""
        return self.vector if sent.message.metadata.message_type == wire.M_STEP else None

    def aggregate_train(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what the clients trained, with weights rho_i."""
        current = self.round
        current.end_phase("training")
        accepted = self.accept(replies)
        current.clients = self._client_rows(accepted)
        current.row |= self._round_columns(current.clients)
        if accepted:
            updates = [
                Update(index=None, values=reply.vector, weight=float(reply.examples))
                for _, reply in accepted
            ]
            before, self.vector = self.vector, aggregate(self.vector, updates).vector
            self.record = wire.pack(self.vector)
            self.states.accept((sent.partition for sent, _ in accepted), current.number)
        else:  # a round that does not count leaves nothing behind
            self.tau = self._tau_before
        current.end_phase("aggregation")
        if accepted and self.config.measures_bridge(current.number):
            self._measure_bridge(before)
        return (self.record, None) if accepted else (None, None)

    def _measure_bridge(self, before: NDArray[np.float32]) -> None:
        """Add to the round's row how far f and its surrogate are apart."""
        current, clients = self.round, len(self.federation.profiles)
        if len(self._e_step) < clients:
            LOG.warning(
                "round %d: no bridge errors, which take every client's responsibilities",
                current.number,
            )
            return
        replies = [self._e_step[client].extras for client in range(clients)]
        w = np.concatenate([extras[RESPONSIBILITIES] for extras in replies])
        step = ExpectationStep(
            w=w.astype(np.float64).reshape(-1, self.model.components),
            log_mixture=np.concatenate([extras[LOG_MIXTURE] for extras in replies]).astype("f8"),
            tau=self.tau,
        )
        current.row["bridge"] = measure_bridge(self.task, self.model, before, self.vector, step)
        current.end_phase("bridge")

    def _client_rows(self, accepted: Accepted) -> list[dict[str, Any]]:
        rows = []
        for sent, reply in accepted:
            partition, first = sent.partition, self._e_step[sent.partition]
            rows.append(
                {
                    "round": self.round.number,
                    "partition": partition,
                    "examples": reply.examples,
                    "capacity": float(self.federation.caps[partition]),
                    "trained": True,
                    "width": 1.0,
                    "floats": sent.size,
                    "loss": reply.loss,
                    "mixture-loss": first.loss,
                    "steps": reply.steps,
                    "seconds": reply.seconds,
                    "seconds-e-step": first.seconds,
                    "tau": self.tau[partition].tolist(),
                    **_named(self._of_e_step, first),
                    **_named(OF_M_STEP, reply),
                }
            )
        return rows

    def _round_columns(self, clients: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the means over clients, weighted by their examples."""
        if not clients:
            return {}
        weights = [row["examples"] for row in clients]
        names = (*self._of_e_step, "router-loss", "mixture-loss")
        return {
            name: float(np.average([row[name] for row in clients], weights=weights))
            for name in names
        }


class Mixture:
    """The row of a method whose rounds are ``FedSPM``'s."""

    def prepare(self, task: Task, federation: Federation) -> "partial[FedSPM]":
        """Build the networks, so that what is wrong with them is said first.

        Raises:
            FedhetError: A client has fewer examples than components, or the networks do not fit.
        """
        components, sizes = task.config.components, task.partition.sizes
        if sizes.min() < components:
            client = int(sizes.argmin())
            remedy = f"client {client} has {sizes[client]} examples; use that many at most"
            raise FedhetError("fedspm.components", components, remedy)
        mixture_of(task)
        return partial(FedSPM, task=task, federation=federation)


def check_tau(tau: NDArray[np.float32], examples: int) -> None:
    """Refuse sums of responsibilities that cannot be such.

    Args:
        tau: Shape ``(C,)``.
        examples: The client's number of examples, n_i.

    Raises:
        Rejection: One is negative, or they do not sum to n_i.
    """
    total = float(tau.sum(dtype=np.float64))
    if tau.min() < 0 or abs(total - examples) > _TOLERANCE * examples:
        raise Rejection(f"tau {tau.tolist()} is negative or does not sum to {examples} examples")


def _named(names: Iterable[str], reply: TrainReply) -> dict[str, float]:
    return dict(zip(names, reply.extras[DIAGNOSTICS].tolist(), strict=True))

"""FedSPM (Paper B, Algorithm 1): server half, two exchanges a round.

First the shared vector (encoders, gamma, xi) goes out and every client's tau_i comes back; then the
table of all tau goes out and the trained vectors come back, to be averaged with weights rho_i.
Heads and mixing weights never leave the clients. With one component it is FedDRM.

Deviations:
    1. A client that is not sampled, or of whom a reply cannot be used, keeps its last tau in the
       table, as it does its pi; one that never sent any has n_i / C (the paper has every client in
       every round).
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
from fedhet_app.errors import FedhetError
from fedhet_app.mixture_model import (
    DIAGNOSTICS,
    LOG_MIXTURE,
    OF_M_STEP,
    RESPONSIBILITIES,
    mixture_of,
    of_e_step,
)
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply
from strategies.base import Accepted, Sent
from strategies.bridge import ExpectationStep, measure_bridge
from strategies.federation import Federation
from strategies.routed import QueryRouter, evaluate_routed
from strategies.tau import TAU, check_sums, even, table_of
from strategies.whole import WholeStrategy, means

LOG = logging.getLogger("fedhet")


class FedSPM(WholeStrategy):
    """Rounds of federated expectation maximisation."""

    keeps_state = True

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(task=task, federation=federation, writer=writer, resumed=resumed)
        self.model = mixture_of(task)
        self.tau: NDArray[np.float64] = (
            table_of(resumed, task.config)
            if resumed
            else even(federation.profiles, task.config.components)
        )
        self.vector: NDArray[np.float32] = (
            resumed.arrays["vector"] if resumed else self.model.initial
        )
        self.record = wire.pack(self.vector)
        self.router = QueryRouter(task, self.nodes, self.note)
        self._of_e_step = of_e_step(task)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the shared vector and the tau table."""
        return {"vector": self.vector, TAU: self.tau}

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
        current = self.begin(server_round)
        self.send(wire.E_STEP, self.cohort(current.number), self.model.components, self.record)
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
        self.send(wire.M_STEP, sorted(self._e_step), self.model.size, table)
        return self.most_work_first(current.sent)

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
            check_sums(TAU, read.vector, read.examples)
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
        current.row |= means(current.clients, (*self._of_e_step, "router-loss", "mixture-loss"))
        table, self.tau = self.tau, self._tau_before.copy()
        for sent, _ in accepted:  # of the others, pi stays too
            self.tau[sent.partition] = table[sent.partition]
        if accepted:
            updates = [
                Update(index=None, values=reply.vector, weight=float(reply.examples))
                for _, reply in accepted
            ]
            before, self.vector = self.vector, aggregate(self.vector, updates).vector
            self.record = wire.pack(self.vector)
            self.count_states(accepted)
        current.end_phase("aggregation")
        if accepted and self.config.measures_bridge(current.number):
            self._measure_bridge(before, table)
        return (self.record, None) if accepted else (None, None)

    def _measure_bridge(self, before: NDArray[np.float32], table: NDArray[np.float64]) -> None:
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
            tau=table,
        )
        current.row["bridge"] = measure_bridge(self.task, self.model, before, self.vector, step)
        current.end_phase("bridge")

    def _client_rows(self, accepted: Accepted) -> list[dict[str, Any]]:
        rows = []
        for sent, reply in accepted:
            first = self._e_step[sent.partition]
            rows.append(
                {
                    **self.client_row(sent, reply),
                    "mixture-loss": first.loss,
                    "seconds-e-step": first.seconds,
                    TAU: self.tau[sent.partition].tolist(),
                    **_named(self._of_e_step, first),
                    **_named(OF_M_STEP, reply),
                }
            )
        return rows


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


def _named(names: Iterable[str], reply: TrainReply) -> dict[str, float]:
    return dict(zip(names, reply.extras[DIAGNOSTICS].tolist(), strict=True))

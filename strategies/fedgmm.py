"""FedGMM (Wu et al. 2023): server half.

Before the first round every client tells the moments of its frozen encoder's features, from which
the server makes standardised principal components. In each round the classifiers and Gaussians go
to the cohort; the classifiers come back trained, each averaged with weights N_ib, the examples that
classifier b is responsible for at client i, beside the moments of the features under each Gaussian,
from which the Gaussians follow as from pooled data. A query goes to the client with the largest
log rho_i + log sum_a pi_i(a) N_a(z), where rho_i pi_i(a) = N_ia / n. With one Gaussian and one
classifier the models are FedAvg's.

Deviations, beside those of `client_apps.fedgmm` and `mixture.gaussian`:
    1. Features are those of ``routing.encoder`` as it is drawn, or as the run that
       ``fedgmm.features`` names has trained it, under a federated PCA. The published code takes a
       ResNet-18 trained on ImageNet, and a PCA of all clients' features in one place; FedGMM has no
       loss that would train an encoder.
    2. Classifiers, Gaussians and moments are of the clients whose replies count in a round; a
       client that is not sampled keeps its last N_ia for routing, at first n_i / A.
    3. In a round whose survey has too few replies, or finds constant features, classifiers are
       trained and Gaussians are not; the next round asks again.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.gaussian_model import MASS, MOMENTS, gaussian_model_of
from fedhet_app.mixture.gaussian import Values, could_be_moments, m_step, principal_axes
from fedhet_app.mixture_model import DIAGNOSTICS, of_e_step
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Update
from fedhet_app.task import Task
from fedhet_app.wire import Rejection, TrainReply
from strategies.base import Accepted, Sent
from strategies.federation import Federation
from strategies.multi_model import Models, MultiModel
from strategies.routed import QueryRouter, evaluate_routed
from strategies.tau import TAU, check_sums, even, table_of
from strategies.trained_features import trained_encoder
from strategies.whole import means

LOG = logging.getLogger("fedhet")


class FedGMM(MultiModel):
    """Rounds of expectation maximisation over shared classifiers and shared Gaussians."""

    keeps_state = True

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        count: int,
        encoder: NDArray[np.float32] | None = None,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(
            task=task, federation=federation, count=count, writer=writer, resumed=resumed
        )
        self.model = gaussian_model_of(task)
        self.router = QueryRouter(task, self.nodes, self.note)
        self.tau: NDArray[np.float64] = (
            table_of(resumed, task.config)
            if resumed
            else even(federation.profiles, task.config.fedgmm.gaussians)
        )
        if resumed is None:
            shared = self.model.split(self.model.initial)
            self.renew((shared if encoder is None else replace(shared, encoder=encoder)).vector())
        self.reply_size = self.model.stack_size
        self._names = of_e_step(task)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the N_ia beside the shared vector."""
        return {**super().arrays(), TAU: self.tau}

    def write_model(self) -> None:
        """Write the classifiers with the projection, the Gaussians and the N_ia."""
        tensors = {**self.model.tensors(self.vector), TAU: self.tau}
        self.writer.write_model(tensors, {"width": "1.0"})

    def measure(self) -> dict[str, Any]:
        """Route the test set and let the clients predict it."""
        return evaluate_routed(
            self.router,
            self.grid,
            vector=self.vector,
            record=self.record,
            tau=self.tau,
            rows=self.task.test_rows(self.examples_to_measure),
            vote=self.in_last_round,
        )

    def prepare_models(self, grid: Grid) -> None:
        """Find the principal axes of all clients' features, unless an earlier round has."""
        shared = self.model.split(self.vector)
        if shared.projection.axes.any():
            return
        encoder = wire.pack(shared.encoder)
        self.send(wire.E_STEP, sorted(self.nodes), (self.model.embedding + 1) ** 2, encoder)
        messages = self.most_work_first(self.round.sent)
        replies = grid.send_and_receive(messages, timeout=self.config.round_timeout)
        accepted = self.accept(replies)
        if accepted:
            sums = np.sum([_tables(reply.vector, 1)[0] for _, reply in accepted], axis=0)
            projection = principal_axes(sums, self.config.fedgmm.dimensions)
            self.renew(replace(shared, projection=projection).vector())
        self.round.end_phase("survey")

    def extras_of(self, sent: Sent) -> dict[str, int]:
        """Return what comes with the classifiers."""
        if sent.message.metadata.message_type == wire.E_STEP:
            return {}
        options = self.config.fedgmm
        sizes = {MOMENTS: options.gaussians * (options.dimensions + 1) ** 2, MASS: self.count}
        return {**sizes, DIAGNOSTICS: len(self._names)}

    def read(self, sent: Sent, reply: Message | None) -> TrainReply:
        """Return a reply that passes every check, its statistics among them."""
        read = super().read(sent, reply)
        if MASS in read.extras:
            check_moments(self._moments(read), read.examples)
            check_sums(MASS, read.extras[MASS], read.examples)
        else:
            check_moments(_tables(read.vector, 1), read.examples)
        return read

    def _moments(self, reply: TrainReply) -> Values:
        return _tables(reply.extras[MOMENTS], self.config.fedgmm.gaussians)

    def updates(self, reply: TrainReply) -> Sequence[Update]:
        """Let each classifier of the client count by the examples it is responsible for."""
        size = self.task.slicer.size
        rows = zip(reply.vector.reshape(-1, size), reply.extras[MASS].tolist(), strict=True)
        return [
            Update(index=np.arange(size) + b * size, values=values, weight=mass)
            for b, (values, mass) in enumerate(rows)
            if mass > 0
        ]

    def columns(self, reply: TrainReply) -> dict[str, Any]:
        """Return the client's N_ia and N_ib, and what it says of its E-step."""
        return {
            TAU: self._moments(reply)[:, 0, 0].tolist(),
            MASS: reply.extras[MASS].tolist(),
            **dict(zip(self._names, reply.extras[DIAGNOSTICS].tolist(), strict=True)),
        }

    def finish(self, accepted: Accepted) -> dict[str, Any]:
        """Make the Gaussians; return means over clients, weighted by their examples."""
        if not accepted:
            return {}
        shared, options = self.model.split(self.vector), self.config.fedgmm
        if not shared.projection.axes.any():  # one point would make all Gaussians one, for good
            LOG.warning(
                "round %d: the survey of features had too few replies, or found them constant; "
                "Gaussians stay as they are until one does better",
                self.round.number,
            )
            return means(self.round.clients, self._names)
        self.tau = self.tau.copy()  # checkpoints hold the table of their round
        for sent, reply in accepted:
            self.tau[sent.partition] = self._moments(reply)[:, 0, 0]
        sums = np.sum([self._moments(reply) for _, reply in accepted], axis=0)
        diagonal = options.covariance == "diagonal"
        after, unusable = m_step(sums, shared.gaussians, epsilon=options.epsilon, diagonal=diagonal)
        for a in unusable:
            LOG.warning(
                "round %d: the covariance of Gaussian %d is not positive definite with "
                "fedgmm.epsilon = %s: it stays as it was; raise epsilon",
                self.round.number,
                a,
                options.epsilon,
            )
        self.renew(replace(shared, gaussians=after).vector())
        return means(self.round.clients, self._names)


class GaussianMixture(Models):
    """The row of FedGMM."""

    def prepare(self, task: Task, federation: Federation) -> "partial[MultiModel]":
        """Build the networks, so that what is wrong with them is said first.

        Raises:
            FedhetError: The encoder does not fit the images, or has too few features; or the run
                that is to have trained it has none that fits.
        """
        gaussian_model_of(task)
        start = super().prepare(task, federation)
        if not task.config.fedgmm.features or task.config.resume:  # the checkpoint has it
            return start
        return partial(start, encoder=trained_encoder(task))


def check_moments(sums: Values, examples: int) -> None:
    """Refuse moments that no examples have, of which no Gaussians could be made.

    Args:
        sums: Shape ``(A, d + 1, d + 1)``.
        examples: The client's number of examples, n_i.

    Raises:
        Rejection: They are not those of n_i examples.
    """
    check_sums(MOMENTS, sums[:, 0, 0], examples)
    if not could_be_moments(sums):
        raise Rejection("moments that are not symmetric or not positive semi-definite")


def _tables(flat: NDArray[np.float32], count: int) -> Values:
    """Return moments as they were before they were sent, shape ``(A, d + 1, d + 1)``."""
    side = math.isqrt(flat.size // count)
    return flat.astype(np.float64).reshape(count, side, side)

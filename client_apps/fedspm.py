"""FedSPM (Paper B, Algorithm 1): the local E-step, the local M-step, and answers to queries.

E-step: responsibilities w of all training examples (Eq. 7); their sums tau travel. M-step, once the
table of all tau is here: pi_i = tau_i / n_i (Eq. 9), SGD on the supervised block (heads and encoder
g, weighted cross-entropy), SGD on the density ratio block (table and encoder h), which is soft
cross-entropy over all (client, component) pairs with logits adjusted by log tau. With one component
it is FedDRM (Wang et al. 2026) with separate encoders.

Deviations:
    1. Losses are means over the batch: the server's average with weights n_i then follows the
       gradient of the whole surrogate, while the paper's sums would weigh a client by n_i squared.
    2. Weight decay leaves gamma and xi alone.
    3. With ``fedspm.init-w`` = kmeans the responsibilities of the first rounds are each client's
       k-means clusters of its images.
"""

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.augmentation import augmented
from fedhet_app.errors import FedhetError
from fedhet_app.mixture.density_ratio import drm_loss, log_tau
from fedhet_app.mixture.em import (
    component_posterior,
    effective_components,
    log_mixture,
    mixture_probabilities,
    purity,
    responsibilities,
    supervised_loss,
)
from fedhet_app.mixture.start import kmeans_responsibilities
from fedhet_app.mixture_model import (
    DIAGNOSTICS,
    HEADS,
    LOG_MIXTURE,
    PI,
    RESPONSIBILITIES,
    MixtureModel,
    log_pi,
    mixture_of,
)
from fedhet_app.seeding import rng_for, torch_seeded
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.task import Task
from fedhet_app.training import Examples, Forward, TrainResult, local_sgd
from fedhet_app.wire import Query, TrainReply, TrainRequest

WEIGHTS, MODEL, CLUSTERS = "w", "model", "clusters"


def e_step(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Return tau_i = sum_j w_ij, shape ``(C,)``, and keep w until the M-step."""
    started = time.perf_counter()
    state = request.state
    assert state is not None, "the server half sends where the client's state stands"
    model = mixture_of(task)
    kept = state.load() or model.private()
    model.load(request.vector, kept[HEADS])
    rows = torch.from_numpy(task.partition.client(partition)).to(task.device)
    labels = task.train_examples.labels[rows]
    outputs = model.outputs(task.train_examples, rows)
    log_prior, scores = log_pi(kept, task.device), outputs.scores[:, partition]
    w = responsibilities(outputs.logits, labels, scores, log_prior)
    posterior = component_posterior(scores, log_prior)
    options = task.config.fedspm
    if task.config.components > 1 and options.init_w == "kmeans":
        if request.server_round <= options.init_rounds:
            clusters = kept.get(CLUSTERS)
            if clusters is None:
                clusters = kept[CLUSTERS] = _clusters(task, partition, rows)
            w = torch.from_numpy(clusters).to(task.device)
        else:
            kept.pop(CLUSTERS, None)
    tau = w.sum(dim=0, dtype=torch.float64)
    figures = diagnostics(task, partition, outputs.logits, labels, w, posterior)
    chosen = mixture_probabilities(outputs.logits, posterior)[torch.arange(len(rows)), labels]
    weights = w.cpu().numpy()
    state.save(request.server_round, {**kept, WEIGHTS: weights, MODEL: request.vector})
    extras = {DIAGNOSTICS: np.array(figures, dtype=np.float32)}
    if task.config.measures_bridge(request.server_round):
        extras[RESPONSIBILITIES] = weights.ravel()
        extras[LOG_MIXTURE] = log_mixture(outputs.logits, labels, scores, log_prior).cpu().numpy()
    return TrainReply(
        server_round=request.server_round,
        partition=partition,
        vector=tau.to(torch.float32).cpu().numpy(),
        examples=len(rows),
        loss=float(-chosen.clamp_min(torch.finfo(torch.float32).tiny).log().mean()),
        steps=0,
        seconds=time.perf_counter() - started,
        extras=extras,
    )


def _clusters(task: Task, partition: int, rows: Tensor) -> NDArray[np.float32]:
    pixels = task.dataset.train.inputs[rows.cpu().numpy()].reshape(len(rows), -1)
    rng = rng_for(task.config.seed, "clusters", partition)
    return kmeans_responsibilities(pixels, task.config.components, rng)


def diagnostics(
    task: Task, partition: int, logits: Tensor, labels: Tensor, w: Tensor, posterior: Tensor
) -> list[float]:
    """Return ``OF_E_STEP`` for a client; the last is left out where the truth is not known.

    The agreement is that of argmax w, which has seen the label, with argmax P(c|x), which has not;
    the accuracies are those of the heads chosen by one and by the other.
    """
    by_w, by_x = w.argmax(dim=1), posterior.argmax(dim=1)
    hits = logits.argmax(dim=2) == labels[:, None]  # (n, C)
    each = torch.arange(len(labels), device=labels.device)
    pi = w.mean(dim=0, dtype=torch.float64)
    values = [
        float((by_w == by_x).double().mean()),
        float(hits[each, by_w].double().mean()),
        float(hits[each, by_x].double().mean()),
        effective_components(pi),
    ]
    truth = task.dataset.train_components
    if truth is not None:
        values.append(purity(w, torch.from_numpy(truth[task.partition.client(partition)])))
    return values


@dataclass(frozen=True, kw_only=True)
class OwnExamples:
    """A client's training examples by position; a batch gives the positions as labels.

    Attributes:
        examples: Everybody's.
        rows: The client's, shape ``(n,)``.
        labels: Positions, shape ``(n,)``.
    """

    examples: Examples
    rows: Tensor
    labels: Tensor

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and positions, both of ``rows``, which are positions."""
        return self.examples.batch(self.rows[rows])[0], rows


def m_step(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Train both blocks on the w of this round's E-step and return what travels of them.

    ``request.vector`` is the table of all tau, shape ``(m C,)``.
    """
    started = time.perf_counter()
    state, config, number = request.state, task.config, request.server_round
    assert state is not None, "the server half sends where the client's state stands"
    model = mixture_of(task)
    draft = state.draft(number)
    model.load(draft.pop(MODEL), draft[HEADS])
    w = torch.from_numpy(draft.pop(WEIGHTS)).to(task.device)
    table = config.num_clients, config.components
    if request.vector.size != math.prod(table):
        remedy = f"the table of all clients has {table[0]} x {table[1]} sums"
        raise FedhetError("tau", f"{request.vector.size} numbers", remedy)
    tau = request.vector.reshape(table)
    rows = torch.from_numpy(task.partition.client(partition)).to(task.device)
    examples = augmented(task.train_examples, config, partition, number)
    positions = torch.arange(len(rows), device=task.device)
    own = OwnExamples(examples=examples, rows=rows, labels=positions)
    labels = task.train_examples.labels[rows]
    with torch_seeded(config.seed, "dropout", partition, number):
        supervised = train_supervised(task, partition, number, model.predictor, own, labels, w)
        trained = time.perf_counter()
        router = train_router(task, partition, number, model, own, w, tau)
    routed = time.perf_counter()
    pi = (tau[partition] / len(rows)).astype(np.float32)
    state.save(number, {**draft, HEADS: model.heads(), PI: pi})
    figures = [router.loss, trained - started, routed - trained]
    return TrainReply(
        server_round=number,
        partition=partition,
        vector=model.vector(),
        examples=len(rows),
        loss=supervised.loss,
        steps=supervised.steps + router.steps,
        seconds=time.perf_counter() - started,
        extras={DIAGNOSTICS: np.array(figures, dtype=np.float32)},
    )


def train_supervised(
    task: Task,
    partition: int,
    server_round: int,
    predictor: FlatModule,
    own: OwnExamples,
    labels: Tensor,
    w: Tensor,
) -> TrainResult:
    """Minimise the weighted cross-entropy of heads and encoder g in place (-Q1 / n)."""

    def objective(forward: Forward, model: FlatModule, inputs: Tensor, positions: Tensor) -> Tensor:
        loss = supervised_loss(forward(model, inputs), labels[positions], w[positions])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    config = task.config
    return local_sgd(
        predictor,
        own,
        np.arange(len(labels)),
        config=config,
        lr=config.lr_at(server_round),
        rng=rng_for(config.seed, "shuffle", partition, server_round),
        objective=objective,
    )


def train_router(
    task: Task,
    partition: int,
    server_round: int,
    model: MixtureModel,
    own: OwnExamples,
    w: Tensor,
    tau: NDArray[np.float32],
) -> TrainResult:
    """Minimise the density ratio surrogate of table and encoder h in place (-Q2~ / n)."""
    config, options = task.config, task.config.routing
    log_table = log_tau(torch.from_numpy(tau.copy()).to(task.device))
    encoders = model.router.layout.num_params - model.table_size

    def objective(
        forward: Forward, router: FlatModule, inputs: Tensor, positions: Tensor
    ) -> Tensor:
        loss = drm_loss(forward(router, inputs), log_table, w[positions], partition)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def decay(params: Tensor, grad: Tensor) -> None:
        grad[:encoders].add_(params[:encoders], alpha=config.weight_decay)

    block = replace(
        config,
        lr=options.lr or config.lr,
        local_steps=options.steps,
        momentum=options.momentum,
        weight_decay=0.0,
    )
    return local_sgd(
        model.router,
        own,
        np.arange(len(w)),
        config=block,
        lr=block.lr_at(server_round),
        rng=rng_for(config.seed, "shuffle", partition, server_round, 1),
        hook=decay if config.weight_decay else None,
        clip_before_hook=True,
        objective=objective,
    )


def predict(task: Task, partition: int, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities of the client's mixture, shape ``(n, K)`` (Eq. 11)."""
    state = query.state
    assert state is not None, "the server half sends where the client's state stands"
    model = mixture_of(task)
    kept = state.load() or model.private()
    model.load(query.vector, kept[HEADS])
    examples, rows = task.queried(query.rows, query.images)
    outputs = model.outputs(examples, rows)
    posterior = component_posterior(outputs.scores[:, partition], log_pi(kept, task.device))
    probabilities: NDArray[np.float32] = (
        mixture_probabilities(outputs.logits, posterior).to(torch.float32).cpu().numpy()
    )
    return probabilities

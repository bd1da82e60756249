"""FedGMM (Wu et al. 2023): client half.

Each client mixes shared Gaussians a over features z and shared classifiers b by a table pi_i(a, b)
of its own. E-step: q_j(a, b) is proportional to pi_i(a, b) N_a(z_j) P_b(y_j | x_j), over all
training examples. M-step: pi_i is the mean of q, the moments of z under q_a = sum_b q go to the
server, which makes Gaussians of them, and each classifier takes SGD steps on the mean of
q_b = sum_a q times its cross-entropy. It predicts with sum_ab P_i(a, b | z) P_b. With one Gaussian
and one classifier it is FedAvg; with one Gaussian it is FedEM but for the server's weights.

Deviations:
    1. It predicts with log pi + log N; the published code adds pi itself to log N.
    2. The E-step is made in evaluation mode on images that are not augmented; momentum starts at
       zero in every round.
    3. pi_i stays here, but its sums over a and over b travel with the statistics: routing needs
       pi_i(a), and the average of the classifiers goes by n_i pi_i(b).
"""

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from client_apps.fedem import m_step
from client_apps.fedspm import diagnostics
from fedhet_app.client_state import ClientState
from fedhet_app.gaussian_model import MASS, MOMENTS, gaussian_model_of
from fedhet_app.mixture.em import log_weights, mixture_probabilities
from fedhet_app.mixture.gaussian import joint_posterior, moments
from fedhet_app.mixture_model import DIAGNOSTICS, PI
from fedhet_app.task import Task
from fedhet_app.wire import Query, TrainReply, TrainRequest


def survey(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Return the moments of the encoder's features, shape ``((D + 1)^2,)``, once in a run.

    ``request.vector`` is the encoder where another run has trained it, else empty.
    """
    started = time.perf_counter()
    rows = torch.from_numpy(task.partition.client(partition)).to(task.device)
    model = gaussian_model_of(task)
    model.load_encoder(request.vector)
    features = model.features(task.train_examples, rows)
    return TrainReply(
        server_round=request.server_round,
        partition=partition,
        vector=_flat(moments(features, torch.ones_like(features[:, :1]))),
        examples=len(rows),
        loss=0.0,
        steps=0,
        seconds=time.perf_counter() - started,
    )


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Take both steps; keep pi_i, return the trained classifiers and what the Gaussians need."""
    started = time.perf_counter()
    state, number = request.state, request.server_round
    assert state is not None, "the server half sends where the client's state stands"
    model = gaussian_model_of(task)
    model.load(request.vector)
    rows = torch.from_numpy(task.partition.client(partition)).to(task.device)
    labels = task.train_examples.labels[rows]
    z = model.projected(model.features(task.train_examples, rows))
    densities = model.log_densities(z)
    logits = model.logits(task.train_examples, rows)
    log_pi = log_pi_of(task, state)
    q = joint_posterior(log_pi, densities, log_likelihoods(logits, labels))
    of_gaussians, of_classifiers = q.sum(dim=2), q.sum(dim=1)
    w = of_classifiers.float()
    posterior = joint_posterior(log_pi, densities).sum(dim=1).float()
    figures = diagnostics(task, partition, logits, labels, w, posterior)
    trained, result = m_step(task, partition, number, model.shared.stack, labels, w)
    state.save(number, {PI: q.mean(dim=0).cpu().numpy()})
    return TrainReply(
        server_round=number,
        partition=partition,
        vector=trained,
        examples=len(rows),
        loss=result.loss,
        steps=result.steps,
        seconds=time.perf_counter() - started,
        extras={
            MOMENTS: _flat(moments(z, of_gaussians)),
            MASS: _flat(of_classifiers.sum(dim=0)),
            DIAGNOSTICS: np.array(figures, dtype=np.float32),
        },
    )


def log_pi_of(task: Task, state: ClientState) -> Tensor:
    """Return the logarithms of the client's table, shape ``(A, B)``; first all are equal."""
    shape = task.config.fedgmm.gaussians, task.config.fedgmm.components
    kept = state.load() or {PI: np.full(shape, 1 / np.prod(shape))}
    return log_weights(torch.tensor(kept[PI], device=task.device))


def log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log P_b(y|x), float64 of shape ``(n, B)``.

    Args:
        logits: Of every classifier, shape ``(n, B, K)``.
        labels: Classes, int64, shape ``(n,)``.
    """
    targets = labels[:, None].expand(-1, logits.shape[1])
    return -cross_entropy(logits.double().mT, targets, reduction="none")


def predict(task: Task, partition: int, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities of the client's mixture, shape ``(n, K)``."""
    assert query.state is not None, "the server half sends where the client's state stands"
    model = gaussian_model_of(task)
    model.load(query.vector)
    outputs = model.outputs(*task.queried(query.rows, query.images))
    joint = joint_posterior(log_pi_of(task, query.state), outputs.scores[:, partition])
    probabilities: NDArray[np.float32] = (
        mixture_probabilities(outputs.logits, joint.sum(dim=1)).to(torch.float32).cpu().numpy()
    )
    return probabilities


def _flat(sums: Tensor) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = sums.flatten().to(torch.float32).cpu().numpy()
    return flat

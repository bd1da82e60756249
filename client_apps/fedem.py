"""FedEM (Marfoq et al. 2021, Algorithm 1): client half.

Each client mixes the C shared models with weights pi_i of its own. E-step: q_jc, the responsibility
of model c for example j, goes as pi_ic P_c(y_j | x_j). M-step: pi_ic is the mean of q_jc
over all training examples, and each model takes SGD steps on the mean of q_jc times its
cross-entropy, all on the same batches. It predicts with sum_c pi_ic P_c. With one model it is
FedAvg.

Deviations:
    1. The E-step is made in evaluation mode, on images that are not augmented and in the order of
       the client's examples: q belongs to the example, whatever the order of the batches.
    2. A pi_ic without responsibility counts as `mixture.em.SMALLEST_PI` in the next E-step.
    3. Momentum starts at zero in every round, as in all methods here; the published code keeps it
       while the models are replaced.
"""

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_apps.fedspm import OwnExamples, diagnostics
from fedhet_app.augmentation import augmented
from fedhet_app.client_state import ClientState
from fedhet_app.mixture.em import (
    component_posterior,
    log_weights,
    mixture_probabilities,
    responsibilities,
    supervised_loss,
)
from fedhet_app.mixture_model import DIAGNOSTICS, PI
from fedhet_app.model_stack import models_of, stack_logits
from fedhet_app.seeding import rng_for, torch_seeded
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.task import Task
from fedhet_app.training import Forward, TrainResult, local_sgd
from fedhet_app.wire import Query, TrainReply, TrainRequest


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Take both steps; keep pi_i, shape ``(C,)``, and return all trained models as a stack."""
    started = time.perf_counter()
    state, number, stack = request.state, request.server_round, request.vector
    assert state is not None, "the server half sends where the client's state stands"
    rows = torch.from_numpy(task.partition.client(partition)).to(task.device)
    labels = task.train_examples.labels[rows]
    log_pi = log_pi_of(task, state, len(models_of(task, stack)))
    logits = stack_logits(task, stack, task.train_examples, rows)
    nothing = torch.zeros_like(logits[..., 0])
    q = responsibilities(logits, labels, nothing, log_pi)
    posterior = component_posterior(nothing, log_pi)
    figures = diagnostics(task, partition, logits, labels, q, posterior)
    trained, result = m_step(task, partition, number, stack, labels, q)
    pi = q.mean(dim=0, dtype=torch.float64)
    state.save(number, {PI: pi.to(torch.float32).cpu().numpy()})
    return TrainReply(
        server_round=number,
        partition=partition,
        vector=trained,
        examples=len(rows),
        loss=result.loss,
        steps=result.steps,
        seconds=time.perf_counter() - started,
        extras={DIAGNOSTICS: np.array(figures, dtype=np.float32)},
    )


def log_pi_of(task: Task, state: ClientState, count: int) -> Tensor:
    """Return the logarithms of the client's mixing weights, shape ``(C,)``; first all are equal."""
    kept = state.load() or {PI: np.full(count, 1 / count, dtype=np.float32)}
    return log_weights(torch.tensor(kept[PI], device=task.device))


def m_step(
    task: Task,
    partition: int,
    server_round: int,
    stack: NDArray[np.float32],
    labels: Tensor,
    q: Tensor,
) -> tuple[NDArray[np.float32], TrainResult]:
    """Train every model on its responsibilities.

    Args:
        task: Data and network.
        partition: The client.
        server_round: Counted from 1.
        stack: The models to start from, shape ``(C D,)``.
        labels: Of the client's examples, shape ``(n,)``.
        q: Responsibilities, shape ``(n, C)``.

    Returns:
        The trained stack; the mean weighted loss of all models together, and the steps of all.
    """
    model, trained, loss, steps = task.module(1.0), [], 0.0, 0
    for vector, weights in zip(models_of(task, stack), q.T[..., None], strict=True):
        model.load(vector)
        result = train_component(task, partition, server_round, model, labels, weights)
        trained.append(model.numpy())
        loss, steps = loss + result.loss, steps + result.steps
    return np.concatenate(trained), TrainResult(loss=loss, steps=steps)


def train_component(
    task: Task,
    partition: int,
    server_round: int,
    model: FlatModule,
    labels: Tensor,
    weights: Tensor,
) -> TrainResult:
    """Minimise the weighted cross-entropy of one model in place; ``weights`` is ``(n, 1)``."""

    def objective(forward: Forward, model: FlatModule, inputs: Tensor, positions: Tensor) -> Tensor:
        logits = forward(model, inputs)[:, None]  # (B, 1, K)
        loss = supervised_loss(logits, labels[positions], weights[positions])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    config, each = task.config, torch.arange(len(labels), device=task.device)
    # Made anew for each model: batches and augmentation are then the same for all.
    own = OwnExamples(
        examples=augmented(task.train_examples, config, partition, server_round),
        rows=torch.from_numpy(task.partition.client(partition)).to(task.device),
        labels=each,
    )
    with torch_seeded(config.seed, "dropout", partition, server_round):
        return local_sgd(
            model,
            own,
            np.arange(len(labels)),
            config=config,
            lr=config.lr_at(server_round),
            rng=rng_for(config.seed, "shuffle", partition, server_round),
            objective=objective,
        )


def predict(task: Task, partition: int, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities of the client's mixture, shape ``(n, K)``."""
    assert query.state is not None, "the server half sends where the client's state stands"
    examples, rows = task.queried(query.rows, query.images)
    logits = stack_logits(task, query.vector, examples, rows)
    log_pi = log_pi_of(task, query.state, logits.shape[1])
    posterior = component_posterior(torch.zeros_like(logits[..., 0]), log_pi)
    probabilities: NDArray[np.float32] = (
        mixture_probabilities(logits, posterior).to(torch.float32).cpu().numpy()
    )
    return probabilities

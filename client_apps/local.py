"""Local SGD on the slice that was sent (Paper A, Algorithm 1, lines 8-15).

The client half of FedAvg and of every sub-model method: they differ in the width the server sends.

Deviations:
    1. The trained slice is returned instead of its update: the server subtracts in float64, which
       loses nothing, while a float32 difference would be rounded once more.
"""

import time

import numpy as np
from numpy.typing import NDArray

from fedhet_app.augmentation import augmented
from fedhet_app.config import Config
from fedhet_app.evaluation import logits_of
from fedhet_app.seeding import rng_for, torch_seeded
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.task import Task
from fedhet_app.training import (
    GradientHook,
    Objective,
    TrainResult,
    cross_entropy_objective,
    local_sgd,
)
from fedhet_app.wire import Query, TrainReply, TrainRequest


def train(
    task: Task,
    partition: int,
    request: TrainRequest,
    *,
    config: Config | None = None,
    hook: GradientHook | None = None,
    clip_before_hook: bool = False,
    objective: Objective = cross_entropy_objective,
) -> TrainReply:
    """Train the slice of ``request`` on the examples of client ``partition``.

    Args:
        task: Data and network.
        partition: The client.
        request: Round, width and start point.
        config: What local SGD goes by; ``None`` for the run's own.
        hook: Changes the gradient of each step (FedProx, SCAFFOLD).
        clip_before_hook: Clip the loss's gradient alone.
        objective: The loss and its gradient.
    """
    started = time.perf_counter()
    config, server_round = config or task.config, request.server_round
    model = task.module(request.width)
    model.load(request.vector)
    result = fit(
        task,
        partition,
        model,
        keys=(server_round,),
        config=config,
        lr=config.lr_at(server_round),
        hook=hook,
        clip_before_hook=clip_before_hook,
        objective=objective,
    )
    return TrainReply(
        server_round=server_round,
        partition=partition,
        vector=model.numpy(),
        examples=len(task.partition.client(partition)),
        loss=result.loss,
        steps=result.steps,
        seconds=time.perf_counter() - started,
    )


def fit(
    task: Task,
    partition: int,
    model: FlatModule,
    *,
    keys: tuple[int, ...],
    config: Config,
    lr: float,
    hook: GradientHook | None = None,
    clip_before_hook: bool = False,
    objective: Objective = cross_entropy_objective,
) -> TrainResult:
    """Train ``model`` in place on the examples of client ``partition``.

    Args:
        task: Data and seed.
        partition: The client.
        model: Start point, then result.
        keys: The round; behind it what tells apart the draws of a client that trains several times.
        config: What local SGD goes by.
        lr: Learning rate.
        hook: Changes the gradient of each step.
        clip_before_hook: Clip the loss's gradient alone.
        objective: The loss and its gradient.
    """
    with torch_seeded(config.seed, "dropout", partition, *keys):
        return local_sgd(
            model,
            augmented(task.train_examples, config, partition, keys[0]),
            task.partition.client(partition),
            config=config,
            lr=lr,
            rng=rng_for(config.seed, "shuffle", partition, *keys),
            hook=hook,
            clip_before_hook=clip_before_hook,
            objective=objective,
        )


def answer(task: Task, model: FlatModule, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities that a network gives for a query, shape ``(n, K)``."""
    logits = logits_of(model, *task.queried(query.rows, query.images))
    probabilities: NDArray[np.float32] = logits.softmax(dim=1).cpu().numpy()
    return probabilities

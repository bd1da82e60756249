"""Local SGD on the slice that was sent (Paper A, Algorithm 1, lines 8-15).

The client half of FedAvg and of every sub-model method: they differ in the width the server sends.

Deviations:
    1. The trained slice is returned instead of its update: the server subtracts in float64, which
       loses nothing, while a float32 difference would be rounded once more.
"""

import time

from fedhet_app.augmentation import augmented
from fedhet_app.seeding import rng_for, torch_seeded
from fedhet_app.task import Task
from fedhet_app.training import GradientHook, Objective, cross_entropy_objective, local_sgd
from fedhet_app.wire import TrainReply, TrainRequest


def train(
    task: Task,
    partition: int,
    request: TrainRequest,
    *,
    hook: GradientHook | None = None,
    clip_before_hook: bool = False,
    objective: Objective = cross_entropy_objective,
) -> TrainReply:
    """Train the slice of ``request`` on the examples of client ``partition``.

    Args:
        task: Data and network.
        partition: The client.
        request: Round, width and start point.
        hook: Changes the gradient of each step (FedProx, SCAFFOLD).
        clip_before_hook: Clip the loss's gradient alone.
        objective: The loss and its gradient.
    """
    started = time.perf_counter()
    config, server_round = task.config, request.server_round
    rows = task.partition.client(partition)
    examples = augmented(task.train_examples, config, partition, server_round)
    model = task.module(request.width)
    model.load(request.vector)
    with torch_seeded(config.seed, "dropout", partition, server_round):
        result = local_sgd(
            model,
            examples,
            rows,
            config=config,
            lr=config.lr_at(server_round),
            rng=rng_for(config.seed, "shuffle", partition, server_round),
            hook=hook,
            clip_before_hook=clip_before_hook,
            objective=objective,
        )
    return TrainReply(
        server_round=server_round,
        partition=partition,
        vector=model.numpy(),
        examples=len(rows),
        loss=result.loss,
        steps=result.steps,
        seconds=time.perf_counter() - started,
    )

"""IFCA (Ghosh et al. 2020, Algorithm 1, lines 4-9), Paper B's ClusterFL: client half.

From the C models that it is sent a client chooses the one with the smallest mean loss on its own
training examples, trains that one by local SGD and returns it with its number. It predicts with the
model that it would choose. With one model it is FedAvg.

Deviations:
    1. Where no initial models gave each cluster a client (`strategies.ifca`), the server says in
       the first round which model to train.
    2. The choice is made in evaluation mode on images that are not augmented. The published code
       augments them, and chooses the model that predicts by the labels of the test set.
"""

import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from client_apps import local
from fedhet_app.evaluation import evaluate
from fedhet_app.model_stack import CLUSTER, models_of
from fedhet_app.task import Task
from fedhet_app.wire import Query, TrainReply, TrainRequest


def choose(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Return the number of the model that the client would train, shape ``(1,)``."""
    started = time.perf_counter()
    losses = train_losses(task, partition, request.vector)
    cluster = best(losses)
    return TrainReply(
        server_round=request.server_round,
        partition=partition,
        vector=np.array([cluster], dtype=np.float32),
        examples=len(task.partition.client(partition)),
        loss=float(losses[cluster]),
        steps=0,
        seconds=time.perf_counter() - started,
    )


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Choose a model, train it and return it alone, with its number."""
    started = time.perf_counter()
    if CLUSTER in request.extras:
        cluster = int(request.extras[CLUSTER][0])
    else:
        cluster = best(train_losses(task, partition, request.vector))
    vector = models_of(task, request.vector)[cluster]
    reply = local.train(task, partition, replace(request, vector=vector))
    chosen = {CLUSTER: np.array([cluster], dtype=np.float32)}
    return replace(reply, extras=chosen, seconds=time.perf_counter() - started)


def train_losses(task: Task, partition: int, stack: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return each model's mean cross-entropy (nats) on the client's examples, shape ``(C,)``."""
    model = task.module(1.0)
    rows = torch.from_numpy(task.partition.client(partition)).to(task.device)
    losses = []
    for vector in models_of(task, stack):
        model.load(vector)
        losses.append(evaluate(model, task.train_examples, task.dataset.num_classes, rows).loss)
    return np.array(losses)


def best(losses: NDArray[np.float64]) -> int:
    """Return the position of the smallest loss, the first of equals; one not finite is largest."""
    return int(np.where(np.isfinite(losses), losses, np.inf).argmin())


def predict(task: Task, partition: int, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities of the model with the smallest train loss, ``(n, K)``."""
    cluster = best(train_losses(task, partition, query.vector))
    model = task.module(1.0)
    model.load(models_of(task, query.vector)[cluster])
    return local.answer(task, model, query)

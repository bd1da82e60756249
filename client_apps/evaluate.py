"""A client's own measurement, on examples that it holds out: loss and accuracy go back, no example.

Where clients predict with models of their own, it is that model that is measured, else the slice
that was sent.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError
from fedhet_app.evaluation import evaluate
from fedhet_app.task import Task
from fedhet_app.wire import Measured, Query, TrainRequest


def measure(
    task: Task,
    partition: int,
    request: TrainRequest,
    answer: Callable[[Task, int, Query], NDArray[np.float32]] | None,
) -> Measured:
    """Measure what was sent on the client's held-out examples.

    Args:
        task: Data and network.
        partition: The client.
        request: The models, their round and width, and the client's state.
        answer: How the method's clients predict; ``None`` where all do so with what was sent.

    Raises:
        FedhetError: The client holds no example out.
    """
    rows = task.held_out(partition)
    if not len(rows):
        raise FedhetError("evaluate", "federated", "the client holds no example out")
    if answer is None:
        model = task.module(request.width)
        model.load(request.vector)
        chosen = torch.from_numpy(rows).to(task.device)
        found = evaluate(model, task.test_examples, task.dataset.num_classes, chosen)
        loss, correct = found.loss, int(found.correct.sum())
    else:
        query = Query(vector=request.vector, rows=rows, state=request.state)
        probabilities, labels = answer(task, partition, query), task.dataset.test.labels[rows]
        loss = mean_loss(probabilities, labels)
        correct = int((probabilities.argmax(axis=1) == labels).sum())
    return Measured(
        server_round=request.server_round,
        partition=partition,
        examples=len(rows),
        correct=correct,
        loss=loss,
    )


def mean_loss(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy in nats of probabilities (n, K) and classes (n,)."""
    likelihood = probabilities[np.arange(len(labels)), labels]
    smallest = np.finfo(np.float32).tiny
    return float(-np.log(np.maximum(likelihood, smallest), dtype=np.float64).mean())

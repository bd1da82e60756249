"""Fine-tuning before a client predicts (Wang et al. 2019; Paper B, Section 3): FedAvgFT.

The rounds are FedAvg's. Asked to predict, client i starts from the global model, takes
``fedavg-ft.epochs`` epochs of SGD on its own training examples, all parameters and fresh momentum,
and predicts with what comes out, which it then forgets. As the learning rate goes to 0 all clients
predict what FedAvg does. FedBABU's clients are the same with a part frozen (`client_apps.fedbabu`).

Deviations:
    1. The learning rate is a constant of its own: Paper B names none, and its cosine has come down
       to nothing by the last round, while its table shows fine-tuning change much.
    2. Clients fine-tune anew, in the same order of examples, whenever they are asked, so that
       evaluation leaves no trace in the run.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_apps import local
from client_apps.frozen import Frozen
from fedhet_app.task import Task
from fedhet_app.wire import Query

NO_ROUND = 0
"""Tells the draws of fine-tuning from those of the rounds, which count from 1."""


def predict(task: Task, partition: int, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities of the fine-tuned global model, shape ``(n, K)``."""
    options = task.config.fedavg_ft
    nothing = torch.zeros(task.slicer.num_params(1.0), dtype=torch.bool, device=task.device)
    return predict_tuned(
        task, partition, query, epochs=options.epochs, lr=options.lr, frozen=nothing
    )


def predict_tuned(
    task: Task, partition: int, query: Query, *, epochs: int, lr: float, frozen: Tensor
) -> NDArray[np.float32]:
    """Fine-tune the global model of a query, then predict with it.

    Args:
        task: Data and network.
        partition: The client.
        query: The global model, and what to predict.
        epochs: Passes over the client's examples.
        lr: Learning rate.
        frozen: The parameters that stay as they are, bool, shape ``(P,)``.

    Returns:
        Class probabilities, shape ``(n, K)``.
    """
    model = task.module(1.0)
    model.load(query.vector)
    tuning = Frozen(frozen, replace(task.config, local_steps=0, local_epochs=epochs))
    local.fit(
        task,
        partition,
        model,
        keys=(NO_ROUND,),
        config=tuning.config,
        lr=lr,
        hook=tuning.decay,
        clip_before_hook=True,
        objective=tuning.objective,
    )
    return local.answer(task, model, query)

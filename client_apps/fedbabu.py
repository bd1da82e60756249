"""FedBABU (Oh et al. 2022, Algorithm 1): clients train the body and never the head.

The head is the classifier; it keeps the bits of its random start at the server and at every
client, while the body is trained locally and averaged. Before it predicts, a client fine-tunes the
global model on its own examples. As the learning rate of fine-tuning goes to 0 all clients predict
with one model; without the frozen head and with ``fedbabu.finetune`` = full it would be FedAvgFT.

Deviations:
    1. By default fine-tuning is of the head alone, while Oh et al. fine-tune both: in Paper B's
       table FedBABU stays below FedAvg on the clients' own examples, far from FedAvgFT.
    2. Bodies are averaged by examples as in every method here; the published code averages by
       clients.
    3. The learning rate of fine-tuning is a constant of its own, as that of FedAvgFT.
    4. Under batch norm fine-tuning of the head renews the body's running statistics, which are no
       parameters.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_apps import fine_tuning, local
from client_apps.frozen import Frozen
from fedhet_app.task import Task
from fedhet_app.wire import Query, TrainReply, TrainRequest


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Train the body; the head returns as it came."""
    body = Frozen(head(task), task.config)
    return local.train(
        task,
        partition,
        request,
        config=body.config,
        hook=body.decay,
        clip_before_hook=True,
        objective=body.objective,
    )


def predict(task: Task, partition: int, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities of the fine-tuned global model, shape ``(n, K)``."""
    options = task.config.fedbabu
    frozen = ~head(task) if options.finetune == "head" else torch.zeros_like(head(task))
    return fine_tuning.predict_tuned(
        task, partition, query, epochs=options.epochs, lr=options.lr, frozen=frozen
    )


@lru_cache(maxsize=2)
def head(task: Task) -> Tensor:
    """Return which parameters are the classifier's, bool, shape ``(P,)``."""
    mask = torch.zeros(task.slicer.num_params(1.0), dtype=torch.bool, device=task.device)
    for entry in task.classifier:
        mask[entry.offset : entry.offset + entry.size] = True
    return mask

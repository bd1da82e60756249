"""FedProx (Li et al. 2020, Algorithm 2): local SGD on the loss plus a proximal term.

Each client minimises f_i(w) + (mu / 2) * ||w - w^t||^2 over parameters, w^t being the global
model it received. With mu = 0 it is FedAvg.

Deviations:
    1. Every client runs the configured epochs; the paper's gamma-inexact solutions (a straggler
       that stops early) are not simulated.
"""

import torch

from client_apps import local
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply, TrainRequest


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Train with the proximal term; it enters the gradient before clipping and momentum."""
    mu = task.config.fedprox.mu
    num_params = task.slicer.num_params(request.width)
    start = torch.tensor(request.vector[:num_params], device=task.device)

    def proximal_term(params: torch.Tensor, grad: torch.Tensor) -> None:
        grad.add_(params - start, alpha=mu)

    return local.train(task, partition, request, hook=proximal_term)

"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, lines 6-14, option II): corrected local SGD.

Client i takes K steps y <- y - lr * (g(y) - c_i + c) from the global model x, then sets its control
variate to c_i+ = c_i - c + (x - y) / (K * lr): the mean of the gradients it met. While all control
variates are zero it is FedAvg.

Deviations:
    1. Gradients are clipped before they are corrected, so that c_i+ is exactly the mean of the
       clipped gradients.
    2. The trained model is returned instead of its update, as by `client_apps.local`.
    3. With ``scaffold.momentum-correction`` the steps may have momentum mu: a constant gradient
       then moves the model by a_K * lr instead of K * lr times itself, and a_K takes K's place.
"""

import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from client_apps import local
from fedhet_app.mixture.bridge import accumulation
from fedhet_app.task import Task
from fedhet_app.wire import CONTROL, TrainReply, TrainRequest


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Train with the correction c - c_i, keep c_i+ and return c_i+ - c_i beside the model."""
    started = time.perf_counter()
    config, state = task.config, request.state
    assert state is not None, "the server half sends where the client's state stands"
    server_control = request.extras[CONTROL]
    control = (state.load() or {CONTROL: np.zeros_like(server_control)})[CONTROL]
    correction = torch.tensor(server_control, device=task.device)
    correction -= torch.tensor(control, device=task.device)

    def correct(params: torch.Tensor, grad: torch.Tensor) -> None:
        grad.add_(correction)

    reply = local.train(task, partition, request, hook=correct, clip_before_hook=True)
    momentum = config.momentum if config.scaffold.momentum_correction else 0.0
    effective_steps, _ = accumulation(momentum, reply.steps)
    num_params = len(server_control)
    with np.errstate(over="ignore", invalid="ignore"):  # the server tells of divergence
        renewed = next_control(
            control,
            server_control,
            before=request.vector[:num_params],
            after=reply.vector[:num_params],
            lr_sum=config.lr_at(request.server_round) * effective_steps,
        )
        kept = renewed.astype(np.float32)
        change = kept - control
    state.save(request.server_round, {CONTROL: kept})
    return replace(reply, extras={CONTROL: change}, seconds=time.perf_counter() - started)


def next_control(
    control: NDArray[np.floating],
    server_control: NDArray[np.floating],
    *,
    before: NDArray[np.floating],
    after: NDArray[np.floating],
    lr_sum: float,
) -> NDArray[np.float64]:
    """Return c_i+ = c_i - c + (x - y) / (K * lr), in float64 (Algorithm 1, line 12, option II).

    Args:
        control: c_i, shape ``(P,)``.
        server_control: c, shape ``(P,)``.
        before: x, the parameters that were sent, shape ``(P,)``.
        after: y, the trained ones, shape ``(P,)``.
        lr_sum: K * lr, with the learning rate that the steps took.
    """
    moved = np.subtract(before, after, dtype=np.float64)
    apart = np.subtract(control, server_control, dtype=np.float64)
    renewed: NDArray[np.float64] = apart + moved / lr_sum
    return renewed

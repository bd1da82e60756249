"""Ditto (Li et al. 2021, Algorithm 1): a global model by FedAvg and a personal one per client.

In each of its rounds client i trains the global model w^t as FedAvg does and returns it; its
personal model v_i, which never leaves it, takes steps v <- v - lr (grad f_i(v) + lam (v - w^t)),
w^t being the global model at the start of the round. Clients predict with v_i. With lam = 0 it is
local training; as lam grows v_i follows the global model, up to the lam at which gradient steps on
the proximal term diverge by themselves, lr lam = 2 (1 + momentum). The global model is FedAvg's
with the steps that are left to it.

Deviations:
    1. Half of a round's local steps train each of the two models (the odd one the global), so that
       Ditto costs what FedAvg does; ``ditto.budget`` = added takes as many again, as published. A
       client with one step takes one for each.
    2. Personal steps have batches of their own; the published code takes both steps on one.
    3. The proximal term enters before clipping and momentum, as FedProx's; it leaves float buffers
       alone: those are the client's own.
    4. Global models are averaged by examples as in every method here.
    5. A client that was never sampled predicts with the initial model, where v_i starts.
    6. A client whose personal model diverges keeps its last, and its round does not count.
"""

import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from client_apps import local
from fedhet_app.client_state import ClientState
from fedhet_app.config import Config
from fedhet_app.errors import FedhetError
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.task import Task
from fedhet_app.training import local_steps
from fedhet_app.wire import Query, TrainReply, TrainRequest

PERSONAL = "personal"


def train(task: Task, partition: int, request: TrainRequest) -> TrainReply:
    """Train the global model, which is returned, and the personal one, which is kept."""
    started = time.perf_counter()
    config, state, number = task.config, request.state, request.server_round
    for_global, for_personal = divided(config, len(task.partition.client(partition)))
    share = replace(config, local_steps=for_global)
    reply = local.train(task, partition, request, config=share)
    model = personal_model(task, state)
    sent = torch.tensor(request.vector[: len(model.params)], device=task.device)

    def pull(params: torch.Tensor, grad: torch.Tensor) -> None:
        grad.add_(params - sent, alpha=config.ditto.lam)

    local.fit(
        task,
        partition,
        model,
        keys=(number, 1),
        config=replace(config, local_steps=for_personal),
        lr=config.lr_at(number),
        hook=pull,
    )
    if not bool(torch.isfinite(model.params).all()):
        remedy = "the personal model diverged and is not kept; lower it, lr, or set clip-norm"
        raise FedhetError("ditto.lam", config.ditto.lam, remedy)
    assert state is not None, "the server half sends where the client's state stands"
    state.save(number, {PERSONAL: model.numpy()})
    steps = for_global + for_personal
    return replace(reply, steps=steps, seconds=time.perf_counter() - started)


def predict(task: Task, partition: int, query: Query) -> NDArray[np.float32]:
    """Return the class probabilities of the personal model, shape ``(n, K)``."""
    return local.answer(task, personal_model(task, query.state), query)


def divided(config: Config, examples: int) -> tuple[int, int]:
    """Return a client's steps in one round with the global and with the personal model."""
    steps = local_steps(config, examples)
    if config.ditto.budget == "added":
        return steps, steps
    return steps - steps // 2, max(steps // 2, 1)


def personal_model(task: Task, state: ClientState | None) -> FlatModule:
    """Return the network with v_i as of the last round that counts, or as it starts."""
    assert state is not None, "the server half sends where the client's state stands"
    kept = state.load()
    model = task.module(1.0)
    model.load(kept[PERSONAL] if kept else task.initial_vector())
    return model

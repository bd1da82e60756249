"""Client halves: one file per local procedure, one row per method."""

from collections.abc import Callable

from client_apps import fedprox, local
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply, TrainRequest

Procedure = Callable[[Task, int, TrainRequest], TrainReply]

CLIENTS: dict[str, Procedure] = {
    "fedavg": local.train,
    "fedprox": fedprox.train,
    "fjord": local.train,
    "has-fl": local.train,
    "heterofl": local.train,
    "random-budget": local.train,
    "uniform": local.train,
}

"""Client halves: one file per local procedure, one row per method."""

from collections.abc import Callable

from client_apps import fedprox, fjord, heterofl, local, scaffold
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply, TrainRequest

Procedure = Callable[[Task, int, TrainRequest], TrainReply]

CLIENTS: dict[str, Procedure] = {
    "fedavg": local.train,
    "fedprox": fedprox.train,
    "fedrolex": local.train,
    "fjord": fjord.train,
    "has-fl": local.train,
    "heterofl": heterofl.train,
    "random-budget": local.train,
    "scaffold": scaffold.train,
    "uniform": local.train,
}

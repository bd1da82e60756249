"""Client halves: one file per local procedure, one row per method."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from client_apps import fedprox, fedspm, fjord, heterofl, local, scaffold
from fedhet_app.task import Task
from fedhet_app.wire import Query, TrainReply, TrainRequest

Procedure = Callable[[Task, int, TrainRequest], TrainReply]
Answer = Callable[[Task, int, Query], NDArray[np.float32]]

CLIENTS: dict[str, Procedure] = {
    "fedavg": local.train,
    "feddrm": fedspm.m_step,
    "fedprox": fedprox.train,
    "fedrolex": local.train,
    "fedspm": fedspm.m_step,
    "fjord": fjord.train,
    "has-fl": local.train,
    "heterofl": heterofl.train,
    "random-budget": local.train,
    "scaffold": scaffold.train,
    "uniform": local.train,
}

E_STEPS: dict[str, Procedure] = {"feddrm": fedspm.e_step, "fedspm": fedspm.e_step}
"""The first of the two exchanges of a round, for methods that have two."""

ANSWERS: dict[str, Answer] = {"feddrm": fedspm.predict, "fedspm": fedspm.predict}
"""How a client predicts a query, for methods whose clients do."""

"""Client halves: one file per local procedure, one row per method."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from client_apps import (
    ditto,
    fedbabu,
    fedem,
    fedgmm,
    fedprox,
    fedspm,
    fine_tuning,
    fjord,
    heterofl,
    ifca,
    local,
    scaffold,
)
from fedhet_app.task import Task
from fedhet_app.wire import Query, TrainReply, TrainRequest

Procedure = Callable[[Task, int, TrainRequest], TrainReply]
Answer = Callable[[Task, int, Query], NDArray[np.float32]]

CLIENTS: dict[str, Procedure] = {
    "ditto": ditto.train,
    "fedavg": local.train,
    "fedavg-ft": local.train,
    "fedbabu": fedbabu.train,
    "feddrm": fedspm.m_step,
    "fedem": fedem.train,
    "fedgmm": fedgmm.train,
    "fedprox": fedprox.train,
    "fedrolex": local.train,
    "fedspm": fedspm.m_step,
    "fjord": fjord.train,
    "has-fl": local.train,
    "heterofl": heterofl.train,
    "ifca": ifca.train,
    "random-budget": local.train,
    "scaffold": scaffold.train,
    "uniform": local.train,
}

E_STEPS: dict[str, Procedure] = {
    "feddrm": fedspm.e_step,
    "fedgmm": fedgmm.survey,
    "fedspm": fedspm.e_step,
    "ifca": ifca.choose,
}
"""The first of the two exchanges of a round, for methods that have two; IFCA's first round has."""

ANSWERS: dict[str, Answer] = {
    "ditto": ditto.predict,
    "fedavg-ft": fine_tuning.predict,
    "fedbabu": fedbabu.predict,
    "feddrm": fedspm.predict,
    "fedem": fedem.predict,
    "fedgmm": fedgmm.predict,
    "fedspm": fedspm.predict,
    "ifca": ifca.predict,
}
"""How a client predicts a query, for methods whose clients do."""

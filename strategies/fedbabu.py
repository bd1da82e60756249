"""FedBABU (Oh et al. 2022, Algorithm 1): server half.

It averages what clients return, as FedAvg does; the head among it is equal everywhere and stays so
(`client_apps.fedbabu`).

Deviations:
    1. The head travels with the body, unchanged: it is a small part of a network.
"""

from fedhet_app.errors import FedhetError
from fedhet_app.submodel.classifier import classifier_of
from fedhet_app.task import Task
from strategies import allocation
from strategies.allocation import Fixed, Widths


def full_width(task: Task, caps: Widths) -> Fixed:
    """Return full widths, after a look at whether the network has a head.

    Raises:
        FedhetError: It has none.
    """
    layouts = task.slicer.layout(1.0), task.slicer.narrowest
    if not classifier_of(*layouts, task.dataset.num_classes):
        remedy = "no layer of the network has one row per class, which FedBABU's head must; add one"
        raise FedhetError("model", task.config.model, remedy)
    return allocation.full_width(task, caps)

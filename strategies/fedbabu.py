"""FedBABU (Oh et al. 2022, Algorithm 1): server half.

It averages what clients return, as FedAvg does; the head among it is equal everywhere and stays so
(`client_apps.fedbabu`): a client that returns another is left out of the round.

Deviations:
    1. The head travels with the body, unchanged: it is a small part of a network.
"""

import numpy as np
from flwr.app import Message

from fedhet_app.errors import FedhetError
from fedhet_app.task import Task
from fedhet_app.wire import Rejection, TrainReply
from strategies import allocation
from strategies.allocation import Fixed, Widths
from strategies.base import Sent
from strategies.personal import Personal


class FedBABU(Personal):
    """FedAvg's rounds, in which no reply changes the head."""

    def read(self, sent: Sent, reply: Message | None) -> TrainReply:
        """Return a reply that passes every check; its head is the one that was sent."""
        read = super().read(sent, reply)
        for entry in self.task.classifier:
            head = slice(entry.offset, entry.offset + entry.size)
            if not np.array_equal(read.vector[head], self.vector[head]):
                raise Rejection(f"{entry.name} is not as it was sent, which FedBABU never trains")
        return read


def full_width(task: Task, caps: Widths) -> Fixed:
    """Return full widths, after a look at whether the network has a head.

    Raises:
        FedhetError: It has none.
    """
    if not task.classifier:
        remedy = "no layer of the network has one row per class, which FedBABU's head must; add one"
        raise FedhetError("model", task.config.model, remedy)
    return allocation.full_width(task, caps)

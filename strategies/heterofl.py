"""HeteroFL (Diao et al. 2021): every client trains its cap, p_i = p_i^max.

Without options it is the HeteroFL of Paper A. ``heterofl.*`` and ``norm = "sbn"`` add what the
published code does besides; this half averages by clients where asked, and a label's row of the
classifier over the clients that hold the label. With all capacities 1 it is FedAvg; with every
label at every client the masked classifier changes nothing.

Deviations:
    1. Coordinates are averaged by examples unless ``heterofl.weighting`` says otherwise (Paper A,
       3.3); the published code averages by clients.
    2. Capacities are drawn once (the code's ``fix``), never anew in each round (``dynamic``).
    3. Which labels a client holds, the server reads off the partition; it is not asked for them.
"""

from functools import cached_property

import numpy as np

from fedhet_app.errors import FedhetError
from fedhet_app.submodel.aggregation import Update
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply
from strategies.allocation import Fixed, Widths
from strategies.base import Sent
from strategies.submodel import SubmodelStrategy


def at_cap(task: Task, caps: Widths) -> Fixed:
    """Return the caps as widths, after a look at whether the network can do what the options ask.

    Raises:
        FedhetError: The network has no classifier to mask, or no layer to scale.
    """
    options, slicer = task.config.heterofl, task.slicer
    if options.masked_classifier and not _classifier(task):
        remedy = "no layer of the network has one row per class at every width; leave it off"
        raise FedhetError("heterofl.masked-classifier", True, remedy)
    if options.scaler and not slicer.cut_layers():
        remedy = "no convolution or linear layer has fewer outputs at a smaller width; leave it off"
        raise FedhetError("heterofl.scaler", True, remedy)
    return Fixed(caps)


class HeteroFL(SubmodelStrategy):
    """The server half with the published code's two ways of averaging."""

    def update(self, sent: Sent, reply: TrainReply) -> Update:
        """Return a reply with its weight, without the classifier rows of labels it has not seen."""
        options = self.config.heterofl
        weight = 1.0 if options.weighting == "clients" else float(reply.examples)
        if not options.masked_classifier:
            return Update(index=sent.index, values=reply.vector, weight=weight)
        absent = np.flatnonzero(self.task.histograms[sent.partition] == 0)
        if not len(absent):
            return Update(index=sent.index, values=reply.vector, weight=weight)
        kept = np.ones(sent.size, dtype=bool)
        for entry in self.task.slicer.layout(sent.width).entries:
            if entry.name not in self._masked:
                continue
            block = kept[entry.offset : entry.offset + entry.size]
            block.reshape(entry.shape[0], -1)[absent] = False
        index = np.flatnonzero(kept) if sent.index is None else sent.index[kept]
        return Update(index=index, values=reply.vector[kept], weight=weight)

    @cached_property
    def _masked(self) -> frozenset[str]:
        return _classifier(self.task)


def _classifier(task: Task) -> frozenset[str]:
    return frozenset(entry.name for entry in task.classifier)

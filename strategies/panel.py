"""Clients that predict what they are asked, each with its own model."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app import wire
from fedhet_app.client_state import StateNote
from fedhet_app.evaluation import balanced
from fedhet_app.mixture.routing import majority
from fedhet_app.task import Task
from fedhet_app.wire import Rejection

LOG = logging.getLogger("fedhet")

Note = Callable[[int], StateNote | None]
"""Returns what a client must know of its state, for methods with one."""


class Panel:
    """The clients of a run, asked for predictions.

    Args:
        task: Data and networks.
        nodes: The node id of each client that is there.
        note: Where the clients' states stand.
    """

    def __init__(self, task: Task, nodes: Mapping[int, int], note: Note) -> None:
        self.task, self.nodes, self._note = task, nodes, note

    def ask(
        self,
        grid: Grid,
        asked: Mapping[int, Mapping[str, NDArray[Any]]],
        record: ArrayRecord,
    ) -> dict[int, NDArray[np.float32]]:
        """Return the class probabilities of each client that answers, shape ``(n_i, K)``.

        Args:
            grid: Where the nodes are.
            asked: By client ``rows`` or ``images``, as ``wire.query_content`` takes them.
            record: What the server sends of the model, packed.
        """
        timeout = self.task.config.round_timeout
        messages = {
            partition: Message(
                wire.query_content(record, note=self._note(partition), **inputs),
                dst_node_id=self.nodes[partition],
                message_type=wire.PREDICT,
                ttl=timeout,
            )
            for partition, inputs in asked.items()
        }
        replies = grid.send_and_receive(list(messages.values()), timeout=timeout)
        said = wire.by_request(replies)
        answers = {}
        for partition, message in messages.items():
            (inputs,) = asked[partition].values()
            try:
                reply = wire.only_answer(message, said.get(message.metadata.message_id, []))
                if reply is None:
                    raise Rejection(f"no answer within {timeout:g} s")
                classes = self.task.dataset.num_classes
                answers[partition] = wire.read_answer(reply, len(inputs), classes)
            except Rejection as rejection:
                LOG.warning("client %d does not predict: %s", partition, rejection)
        return answers


def evaluate_voted(
    panel: Panel, grid: Grid, record: ArrayRecord, rows: Tensor | None
) -> dict[str, Any]:
    """Measure personal models that nobody chooses between: each client predicts everything.

    Args:
        panel: The clients.
        grid: Where the nodes are.
        record: What the server sends of the model, packed.
        rows: Rows of the test set to measure on, ascending; ``None`` for all.

    Returns:
        Accuracy of the clients' majority vote, plain and balanced, which is the system accuracy;
        the loss (nats) of their mean probabilities; the mean of their accuracies on their own
        examples, weighted by their training examples.
    """
    task = panel.task
    index, owners, labels = tested(task, rows)
    asked = {client: {"rows": index} for client in sorted(panel.nodes)}
    answers = panel.ask(grid, asked, record)
    if not answers:
        nothing = np.zeros(len(labels), dtype=bool)
        return {"loss": float("nan"), **accuracies(task, labels, nothing)} | own_accuracies(
            task, owners, labels, {}
        )
    voters = torch.from_numpy(np.stack(list(answers.values())))
    chosen = majority(voters, task.config.vote_tie).numpy()
    mean = voters.mean(dim=0).numpy()[np.arange(len(labels)), labels]
    hits = {i: (said.argmax(axis=1) == labels)[owners == i] for i, said in answers.items()}
    return {
        "loss": float(-np.log(np.maximum(mean, np.finfo(np.float32).tiny)).mean()),
        **accuracies(task, labels, chosen == labels),
        **own_accuracies(task, owners, labels, hits),
    }


def tested(
    task: Task, rows: Tensor | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of the test set, and the client and label of each, shape ``(n,)`` each."""
    dataset, owners = task.dataset, task.test_owners
    assert owners is not None, "Task.check asks for it"
    index = np.arange(len(dataset.test.labels)) if rows is None else rows.cpu().numpy()
    return index, owners[index], dataset.test.labels[index]


def accuracies(task: Task, labels: NDArray[np.int64], right: NDArray[np.bool_]) -> dict[str, float]:
    """Return the columns on what the system says of all examples.

    Args:
        task: How many classes there are.
        labels: Shape ``(n,)``.
        right: Whether the prediction of each is right, shape ``(n,)``.
    """
    accuracy = float(right.mean())
    return {
        "accuracy": accuracy,
        "balanced-accuracy": _balanced(task, labels, right),
        "system-accuracy": accuracy,
    }


def own_accuracies(
    task: Task,
    owners: NDArray[np.int64],
    labels: NDArray[np.int64],
    hits: Mapping[int, NDArray[np.bool_]],
) -> dict[str, Any]:
    """Return the columns on the clients' accuracies on their own examples.

    Args:
        task: Who has how many training examples.
        owners: The client of each test example, shape ``(n,)``.
        labels: The label of each, shape ``(n,)``.
        hits: By client that answered, whether its prediction of each of its own is right.
    """
    by_client = {i: float(hit.mean()) for i, hit in hits.items() if len(hit)}
    fair = [_balanced(task, labels[owners == i], hits[i]) for i in by_client]
    sizes = task.partition.sizes[list(by_client)]
    shares = sizes / max(sizes.sum(), 1)
    return {
        "average-accuracy": float(shares @ list(by_client.values())),
        "balanced-average-accuracy": float(shares @ fair),
        "worst-client-accuracy": min(by_client.values(), default=0.0),
        "client-accuracy": {str(i): value for i, value in by_client.items()},
    }


def _balanced(task: Task, labels: NDArray[np.int64], right: NDArray[np.bool_]) -> float:
    classes = task.dataset.num_classes
    correct = np.bincount(labels[right], minlength=classes)
    return float(balanced(correct, np.bincount(labels, minlength=classes)))

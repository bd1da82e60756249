"""System, average and routing accuracy: the server routes, the chosen clients predict (Eq. 10, 11).

The routing needs the shared networks and the tau table alone, since rho_i pi_ic = tau_ic / n.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.gaussian_model import routing_model_of
from fedhet_app.mixture.routing import client_log_weights, confusion, majority
from fedhet_app.task import Task
from fedhet_app.training import Examples
from strategies.panel import Note, Panel, accuracies, own_accuracies, tested

LOG = logging.getLogger("fedhet")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Who predicted what.

    Attributes:
        by: The most preferred client that answered, shape ``(n,)``; -1 where none did.
        predicted: Class probabilities by client, shape ``(m, n, K)``; NaN where it was not asked,
            or did not answer.
        away: Clients that did not answer.
    """

    by: NDArray[np.int64]
    predicted: NDArray[np.float32]
    away: frozenset[int]

    def of(self, clients: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return what one client for each query says, ``(n, K)``; zeros where it said nothing."""
        return np.nan_to_num(self.predicted[clients, np.arange(len(clients))])


class QueryRouter:
    """Chooses a client for every query, and asks it.

    Args:
        task: Data and networks.
        nodes: The node id of each client that is there.
        note: Where the clients' states stand.
    """

    def __init__(self, task: Task, nodes: Mapping[int, int], note: Note) -> None:
        self.task, self.nodes, self.panel = task, nodes, Panel(task, nodes, note)

    def log_weights(
        self,
        vector: NDArray[np.float32],
        tau: NDArray[np.float64],
        examples: Examples,
        rows: Tensor,
    ) -> NDArray[np.float64]:
        """Return what the server prefers clients by (Eq. 10), shape ``(n, m)``."""
        model = routing_model_of(self.task)
        model.load(vector)
        scores = model.outputs(examples, rows, predict=False).scores
        table = torch.from_numpy(tau).to(scores.device)
        weights = client_log_weights(scores.double(), table, self.task.config.routing.prior)
        preferred: NDArray[np.float64] = weights.cpu().numpy()
        return preferred

    def ask(
        self,
        grid: Grid,
        preferred: NDArray[np.float64],
        inputs: Callable[[NDArray[np.int64]], dict[str, Any]],
        record: ArrayRecord,
        also: NDArray[np.bool_] | None = None,
    ) -> Answers:
        """Let the preferred client predict each query, or the next best where one is away.

        Args:
            grid: Where the nodes are.
            preferred: From ``log_weights``, shape ``(n, m)``.
            inputs: Returns what ``wire.query_content`` sends of the queries at some positions.
            record: The shared model, packed.
            also: Which clients are to predict which queries besides, shape ``(m, n)``.
        """
        count, num_clients = preferred.shape
        each, best = np.arange(count), preferred.argmax(axis=1)
        predicted = np.full((num_clients, count, self.task.dataset.num_classes), np.nan, "f4")
        wanted = np.zeros((num_clients, count), dtype=bool) if also is None else also.copy()
        wanted[best, each] = True
        away = set(range(num_clients)) - set(self.nodes)
        while True:
            asked = {i: np.flatnonzero(wanted[i]) for i in range(num_clients) if wanted[i].any()}
            asked = {i: at for i, at in asked.items() if i not in away}
            answers = self.panel.ask(grid, {i: inputs(at) for i, at in asked.items()}, record)
            for client, answer in answers.items():
                predicted[client, asked[client]] = answer
            away |= asked.keys() - answers.keys()
            if len(away) == num_clients:
                return Answers(by=np.full(count, -1), predicted=predicted, away=frozenset(away))
            left = preferred.copy()
            left[:, sorted(away)] = -np.inf
            best = left.argmax(axis=1)
            wanted[:] = False
            wanted[best, each] = np.isnan(predicted[best, each, 0])
            if not wanted.any():
                return Answers(by=best, predicted=predicted, away=frozenset(away))


def evaluate_routed(
    router: QueryRouter,
    grid: Grid,
    *,
    vector: NDArray[np.float32],
    record: ArrayRecord,
    tau: NDArray[np.float64],
    rows: Tensor | None,
    vote: bool,
) -> dict[str, Any]:
    """Measure a mixture on the pooled test set.

    Args:
        router: Chooses and asks clients.
        grid: Where the nodes are.
        vector: The shared model, shape ``(D,)``.
        record: The same, packed.
        tau: The table, shape ``(m, C)``.
        rows: Rows of the test set to measure on, ascending; ``None`` for all.
        vote: Whether to let every client predict every example, to measure their vote.

    Returns:
        Loss (nats) and accuracy, plain and balanced, of the routed predictions, which is the system
        accuracy; the mean of the clients' accuracies on their own examples, weighted by their
        training examples; the share of queries routed to the client they come from, with the counts
        by client; and with ``vote`` the accuracy of the clients' majority, which is a system that
        does not route.
    """
    task, num_clients = router.task, len(tau)
    index, owners, labels = tested(task, rows)
    examples, asked = task.queried(index, None)
    preferred = router.log_weights(vector, tau, examples, asked)
    also = (owners == np.arange(num_clients)[:, None]) | vote
    answers = router.ask(grid, preferred, lambda at: {"rows": index[at]}, record, also)
    routed, own = answers.of(answers.by), answers.of(owners)
    hits = {
        i: (own.argmax(axis=1) == labels)[owners == i]
        for i in range(num_clients)
        if i not in answers.away
    }
    best = preferred.argmax(axis=1)
    likelihood = np.maximum(routed[np.arange(len(labels)), labels], np.finfo(np.float32).tiny)
    counts = confusion(torch.from_numpy(owners), torch.from_numpy(best), num_clients)
    row = {
        "loss": float(-np.log(likelihood).mean()),
        **accuracies(task, labels, (answers.by >= 0) & (routed.argmax(axis=1) == labels)),
        "routing-accuracy": float((best == owners).mean()),
        "routing-confusion": counts.tolist(),
        **own_accuracies(task, owners, labels, hits),
    }
    if vote and hits:
        voters = [i for i in range(num_clients) if i not in answers.away]
        votes = torch.from_numpy(answers.predicted[voters])
        chosen = majority(votes, task.config.vote_tie).numpy()
        row["vote-accuracy"] = float((chosen == labels).mean())
    return row

"""Width policies that look at nothing but capacities: the sub-model comparison set of Paper A.

A policy says how wide each client's slice is in a round; `strategies.submodel` does the rest. Each
of them is FedAvg when all capacities are 1 (uniform: and its width is 1).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.aggregation import Aggregate, Update
from fedhet_app.submodel.allocation import fjord_widths, uniform_widths
from fedhet_app.task import Task

Widths = NDArray[np.float64]
Columns = dict[str, dict[int, float]]
"""Columns for ``clients.jsonl``: by name, values by partition id."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished round, as a policy may learn from it.

    Attributes:
        server_round: Counted from 1.
        partitions: Clients whose replies were used, ascending.
        updates: Their trained slices, in the same order.
        before: Global vector that was sent, shape ``(D,)``.
        after: What became of it.
    """

    server_round: int
    partitions: list[int]
    updates: list[Update]
    before: NDArray[np.float32]
    after: Aggregate


class Allocation(ABC):
    """What the server half of a sub-model method decides.

    Attributes:
        advance: By how many channels all slices roll from one round to the next.
    """

    advance: int = 0

    @abstractmethod
    def widths(self, server_round: int) -> Widths:
        """Return every client's width in a round, by partition id, shape ``(N,)``."""

    def reach(self, server_round: int) -> Widths:
        """Return the widest slice each client can get as things stand, shape ``(N,)``."""
        return self.widths(server_round)

    def shift(self, server_round: int) -> int:
        """Return how far behind the leading channels a round's slices begin."""
        return self.advance * (server_round - 1)

    def observe(self, outcome: Outcome) -> Columns:
        """Learn from a finished round; return columns to log."""
        return {}

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return what a checkpoint must hold."""
        return {}

    def restore(self, state: dict[str, NDArray[np.float64]]) -> None:  # noqa: B027
        """Continue from a checkpoint's state."""


class Fixed(Allocation):
    """The same widths in every round: FedAvg, FedProx (1), HeteroFL (the caps), Uniform."""

    def __init__(self, widths: Widths) -> None:
        self._widths = widths

    def widths(self, server_round: int) -> Widths:
        """Return the fixed widths."""
        return self._widths


def full_width(task: Task, caps: Widths) -> Fixed:
    """FedAvg and FedProx: every client trains the whole network, whatever its capacity."""
    return Fixed(np.ones_like(caps))


def uniform(task: Task, caps: Widths) -> Fixed:
    """Uniform (Paper A 4.1): p_i = min(width, p_i^max); what lies outside is never trained."""
    return Fixed(uniform_widths(caps, task.config.uniform.width))


class Fjord(Allocation):
    """FjORD (Horvath et al. 2021): a random tier up to the client's cap.

    With ``fjord.draw = "batch"`` the client draws it for each mini-batch, as published, and is sent
    the slice of its largest tier: averaging each coordinate over the clients whose slice holds it
    is FjORD's average of nested blocks. With one tier it is HeteroFL.

    Deviations:
        1. By default the tier is drawn here, per client and round (Paper A 4.1).

    Raises:
        FedhetError: The draw is for each mini-batch, and the network has running statistics.
    """

    def __init__(self, task: Task, caps: Widths) -> None:
        self._caps, self._tiers, self._seed = caps, task.config.tiers, task.config.seed
        self._by_batch = task.config.fjord.draw == "batch"
        if self._by_batch and task.slicer.size > task.slicer.num_params(1.0):
            remedy = (
                "the network keeps running statistics, which every width needs of its own; with "
                "fjord.draw = 'batch' use gn, sbn or none"
            )
            raise FedhetError("norm", task.config.norm, remedy)

    def widths(self, server_round: int) -> Widths:
        """Draw a tier for every client, sampled or not, so that cohorts do not shift the draws."""
        if self._by_batch:
            return self.reach(server_round)
        rng = rng_for(self._seed, "allocation", server_round)
        return fjord_widths(self._caps, self._tiers, rng)

    def reach(self, server_round: int) -> Widths:
        """Return the largest tier each client can draw, in any round."""
        tiers = np.asarray(self._tiers)
        return np.array([tiers[tiers <= cap].max(initial=min(cap, tiers[0])) for cap in self._caps])

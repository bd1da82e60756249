"""Width policies that look at nothing but capacities: the sub-model comparison set of Paper A.

A policy says how wide each client's slice is in a round; `strategies.submodel` does the rest. Each
of them is FedAvg when all capacities are 1 (uniform: and its width is 1).
"""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhet_app.config import Config, parse
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.aggregation import Aggregate, Update
from fedhet_app.submodel.allocation import (
    fjord_widths,
    random_budget_widths,
    uniform_widths,
)

LOG = logging.getLogger("fedhet")
BUDGET_TOLERANCE = 0.005

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
    """What the server half of a sub-model method decides."""

    @abstractmethod
    def widths(self, server_round: int) -> Widths:
        """Return every client's width in a round, by partition id, shape ``(N,)``."""

    def reach(self, server_round: int) -> Widths:
        """Return the widest slice each client can get as things stand, shape ``(N,)``."""
        return self.widths(server_round)

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


def full_width(config: Config, caps: Widths) -> Fixed:
    """FedAvg and FedProx: every client trains the whole network, whatever its capacity."""
    return Fixed(np.ones_like(caps))


def at_cap(config: Config, caps: Widths) -> Fixed:
    """HeteroFL (Diao et al. 2021), as Paper A runs it: every client at its cap, p_i = p_i^max.

    Deviations:
        1. Coordinate-wise averaging weighted by examples (Paper A 3.3) where the official code
           averages by count; no masked cross-entropy, scaler or static batch norm.
    """
    return Fixed(caps)


def uniform(config: Config, caps: Widths) -> Fixed:
    """Uniform (Paper A 4.1): p_i = min(width, p_i^max); what lies outside is never trained."""
    return Fixed(uniform_widths(caps, config.uniform.width))


class Fjord(Allocation):
    """FjORD (Horvath et al. 2021), as Paper A runs it: a random tier a round.

    Deviations:
        1. The tier is drawn per client and round among those up to its cap, not per mini-batch,
           and there is no self-distillation (Paper A 4.1).
    """

    def __init__(self, config: Config, caps: Widths) -> None:
        self._caps, self._tiers, self._seed = caps, config.tiers, config.seed

    def widths(self, server_round: int) -> Widths:
        """Draw a tier for every client, sampled or not, so that cohorts do not shift the draws."""
        rng = rng_for(self._seed, "allocation", server_round)
        return fjord_widths(self._caps, self._tiers, rng)

    def reach(self, server_round: int) -> Widths:
        """Return the largest tier each client can draw, in any round."""
        tiers = np.asarray(self._tiers)
        return np.array([tiers[tiers <= cap].max(initial=min(cap, tiers[0])) for cap in self._caps])


class RandomBudget(Allocation):
    """Random-budget (Paper A 4.1): the control that spends a policy's budget without looking.

    Same cadence as HAS-FL: caps until the first adaptation, then widths that are drawn afresh at
    each adaptation round and scaled to the budget.

    Deviations:
        1. The paper gives no sampler: u_i ~ U(0.25, cap), scaled by one factor to meet the mean,
           clipped to [0.25, cap], clients of the largest cap kept there (coverage).
    """

    def __init__(self, config: Config, caps: Widths) -> None:
        self._caps, self._seed, self._options = caps, config.seed, config.random_budget
        match = self._options.match
        self._budget = matched_budget(Path(match)) if match else self._options.budget
        reached = self._drawn(0).mean()
        if abs(reached - self._budget) > BUDGET_TOLERANCE:
            LOG.warning(
                "random-budget: these capacities allow a mean width of %.3f, not %.3f",
                reached,
                self._budget,
            )

    def widths(self, server_round: int) -> Widths:
        """Return the draw of the last adaptation round before this one."""
        options = self._options
        last = (server_round - 1) // options.adapt_every * options.adapt_every
        if last <= options.warmup:
            return self._caps
        return self._drawn(last)

    def _drawn(self, server_round: int) -> Widths:
        return random_budget_widths(
            self._caps,
            self._budget,
            coverage=self._options.coverage,
            rng=rng_for(self._seed, "allocation", server_round),
        )


def matched_budget(directory: Path) -> float:
    """Return the mean width a HAS-FL run allotted over all clients once it had adapted.

    Raises:
        FedhetError: The directory holds no HAS-FL run, or one that never adapted.
    """
    key = "random-budget.match"
    try:
        reader = RunReader(directory)
        config = parse(reader.config)
    except FedhetError as error:
        raise FedhetError(key, str(directory), error.remedy) from error
    if config.strategy != "has-fl":
        raise FedhetError(key, str(directory), f"is a run of {config.strategy}; name one of has-fl")
    first = config.has_fl.first_adaptation
    widths = [row["allocated-mean-width"] for row in reader.rounds if row["round"] > first]
    if not widths:
        raise FedhetError(key, str(directory), f"has no round after its first adaptation, {first}")
    return float(np.mean(widths))

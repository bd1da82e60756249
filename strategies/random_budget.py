"""Random-budget (Paper A 4.1): the control that spends a policy's budget without looking.

Same cadence as HAS-FL: caps until the first adaptation, then widths drawn afresh at each adaptation
round, of the same mean (`RandomBudget`), or the very widths that a HAS-FL run allotted, dealt out
anew among the clients of equal capacity (`Permuted`): then even the widths of each tier are matched
and nothing but who got which is left to chance. With all capacities 1 and coverage it is FedAvg.

Deviations:
    1. The paper gives no sampler: u_i ~ U(0.25, cap), scaled by one factor to meet the mean,
       clipped to [0.25, cap], clients of the largest cap kept there (coverage).
    2. ``permute`` is not in the paper; it is the stricter control.
"""

import logging
from pathlib import Path

import numpy as np

from fedhet_app.config import Config, parse
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.allocation import permuted_widths, random_budget_widths
from fedhet_app.task import Task
from strategies.allocation import Allocation, Widths

LOG = logging.getLogger("fedhet")
BUDGET_TOLERANCE = 0.005
MATCH = "random-budget.match"


def random_budget(task: Task, caps: Widths) -> Allocation:
    """Return the control in the mode that the configuration names."""
    if task.config.random_budget.mode == "permute":
        return Permuted(task.config, caps)
    return RandomBudget(task.config, caps)


class RandomBudget(Allocation):
    """Random widths whose mean is a budget."""

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


class Permuted(Allocation):
    """The widths of a HAS-FL run, dealt out anew among clients of equal capacity."""

    def __init__(self, config: Config, caps: Widths) -> None:
        self._caps, self._seed = caps, config.seed
        self._allotted = allotted_widths(Path(config.random_budget.match), caps)

    def widths(self, server_round: int) -> Widths:
        """Return the permutation of what the last adaptation before this round allotted."""
        last = max((r for r in self._allotted if r < server_round), default=0)
        if not last:
            return self._caps
        rng = rng_for(self._seed, "allocation", last)
        return permuted_widths(self._caps, self._allotted[last], rng)


def matched_budget(directory: Path) -> float:
    """Return the mean width a HAS-FL run allotted over all clients once it had adapted.

    Raises:
        FedhetError: The directory holds no HAS-FL run, or one that never adapted.
    """
    reader, first = _has_fl_run(directory)
    widths = [row["allocated-mean-width"] for row in reader.rounds if row["round"] > first]
    if not widths:
        raise _never_adapted(directory, first)
    return float(np.mean(widths))


def allotted_widths(directory: Path, caps: Widths) -> dict[int, Widths]:
    """Return what a HAS-FL run allotted, ``(N,)``, by the round that ended with it.

    Raises:
        FedhetError: The directory holds no HAS-FL run, one that never adapted, or one whose
            clients had other capacities.
    """
    reader, first = _has_fl_run(directory)
    rows = [row for row in reader.clients if "allocated-width" in row]
    allotted: dict[int, Widths] = {}
    for row in rows:
        widths = allotted.setdefault(row["round"], np.full(len(caps), np.nan))
        partition = row["partition"]
        if partition >= len(caps) or row["capacity"] != caps[partition]:
            remedy = "its clients had other capacities; match a run of the same seed and clients"
            raise FedhetError(MATCH, str(directory), remedy)
        widths[partition] = row["allocated-width"]
    if not allotted:
        raise _never_adapted(directory, first)
    if any(np.isnan(widths).any() for widths in allotted.values()):
        raise FedhetError(MATCH, str(directory), "it had fewer clients; match a run with as many")
    return allotted


def _has_fl_run(directory: Path) -> tuple[RunReader, int]:
    """Return the run and its first adaptation round."""
    try:
        reader = RunReader(directory)
        config = parse(reader.config)
    except FedhetError as error:
        raise FedhetError(MATCH, str(directory), error.remedy) from error
    if config.strategy != "has-fl":
        remedy = f"is a run of {config.strategy}; name one of has-fl"
        raise FedhetError(MATCH, str(directory), remedy)
    return reader, config.has_fl.first_adaptation


def _never_adapted(directory: Path, first: int) -> FedhetError:
    return FedhetError(MATCH, str(directory), f"has no round after its first adaptation, {first}")

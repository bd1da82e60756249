"""Server halves: one file per server procedure, one row per method."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fedhet_app.checkpoint import Checkpoint
from fedhet_app.results import RunWriter
from fedhet_app.task import Task
from strategies import allocation, fedbabu, heterofl
from strategies.allocation import Allocation, Widths
from strategies.base import RoundStrategy
from strategies.fedem import FedEM
from strategies.federation import Federation
from strategies.fedgmm import FedGMM, GaussianMixture
from strategies.fedrolex import FedRolex
from strategies.fedspm import Mixture
from strategies.has_fl import HasFL
from strategies.ifca import Ifca
from strategies.multi_model import Models
from strategies.personal import Personal, PersonalState
from strategies.privacy import check_private
from strategies.random_budget import random_budget
from strategies.scaffold import Scaffold
from strategies.submodel import SubmodelStrategy


class Start(Protocol):
    """Makes the server half of a run once its directory is there."""

    def __call__(self, *, writer: RunWriter, resumed: Checkpoint | None) -> RoundStrategy:
        """Return the server half, new or as it was at a checkpoint."""


class Row(Protocol):
    """One method's server half."""

    def prepare(self, task: Task, federation: Federation) -> Start:
        """Find what is wrong with the method's options before anything is written."""


@dataclass(frozen=True)
class Method:
    """The two choices that make a server half of slices.

    Attributes:
        allocation: Builds the width policy from the task and the capacities, shape ``(N,)``.
        strategy: What happens in a round.
    """

    allocation: Callable[[Task, Widths], Allocation]
    strategy: type[SubmodelStrategy] = SubmodelStrategy

    def prepare(self, task: Task, federation: Federation) -> Start:
        """Build the width policy."""
        check_private(task)
        policy = self.allocation(task, federation.caps)
        return partial(self.strategy, task=task, federation=federation, allocation=policy)


STRATEGIES: dict[str, Row] = {
    "ditto": Method(allocation.full_width, PersonalState),
    "fedavg": Method(allocation.full_width),
    "fedavg-ft": Method(allocation.full_width, Personal),
    "fedbabu": Method(fedbabu.full_width, fedbabu.FedBABU),
    "feddrm": Mixture(),
    "fedem": Models(FedEM, lambda config: config.fedem.components),
    "fedgmm": GaussianMixture(FedGMM, lambda config: config.fedgmm.components),
    "fedprox": Method(allocation.full_width),
    "fedrolex": Method(FedRolex),
    "fedspm": Mixture(),
    "fjord": Method(allocation.Fjord),
    "has-fl": Method(HasFL),
    "heterofl": Method(heterofl.at_cap, heterofl.HeteroFL),
    "ifca": Models(Ifca, lambda config: config.ifca.clusters),
    "random-budget": Method(random_budget),
    "scaffold": Method(allocation.full_width, Scaffold),
    "uniform": Method(allocation.uniform),
}

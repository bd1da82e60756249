"""Server halves: one file per server procedure, one row per method."""

from collections.abc import Callable
from dataclasses import dataclass

from fedhet_app.task import Task
from strategies import allocation, heterofl
from strategies.allocation import Allocation, Widths
from strategies.fedrolex import FedRolex
from strategies.has_fl import HasFL
from strategies.random_budget import random_budget
from strategies.scaffold import Scaffold
from strategies.submodel import SubmodelStrategy


@dataclass(frozen=True)
class Method:
    """The two choices that make a server half.

    Attributes:
        allocation: Builds the width policy from the task and the capacities, shape ``(N,)``.
        strategy: What happens in a round.
    """

    allocation: Callable[[Task, Widths], Allocation]
    strategy: type[SubmodelStrategy] = SubmodelStrategy


STRATEGIES: dict[str, Method] = {
    "fedavg": Method(allocation.full_width),
    "fedprox": Method(allocation.full_width),
    "fedrolex": Method(FedRolex),
    "fjord": Method(allocation.Fjord),
    "has-fl": Method(HasFL),
    "heterofl": Method(heterofl.at_cap, heterofl.HeteroFL),
    "random-budget": Method(random_budget),
    "scaffold": Method(allocation.full_width, Scaffold),
    "uniform": Method(allocation.uniform),
}

"""Server halves: one file per server procedure, one row per method."""

from collections.abc import Callable

from fedhet_app.config import Config
from strategies import allocation
from strategies.allocation import Allocation, Widths
from strategies.has_fl import HasFL

STRATEGIES: dict[str, Callable[[Config, Widths, int], Allocation]] = {
    "fedavg": lambda config, caps, _: allocation.full_width(config, caps),
    "fedprox": lambda config, caps, _: allocation.full_width(config, caps),
    "fjord": lambda config, caps, _: allocation.Fjord(config, caps),
    "has-fl": HasFL,
    "heterofl": lambda config, caps, _: allocation.at_cap(config, caps),
    "random-budget": lambda config, caps, _: allocation.RandomBudget(config, caps),
    "uniform": lambda config, caps, _: allocation.uniform(config, caps),
}
"""Arguments: configuration, capacities ``(N,)``, number of parameters (buffers left out)."""

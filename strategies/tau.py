"""tau_ic: how many of its examples component c of client i is responsible for, shape ``(m, C)``."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhet_app.checkpoint import Checkpoint
from fedhet_app.config import Config
from fedhet_app.errors import FedhetError
from fedhet_app.wire import Profile, Rejection

TAU = "tau"
_TOLERANCE = 1e-4


def even(profiles: Sequence[Profile], components: int) -> NDArray[np.float64]:
    """Return the table before any client has told its own: n_i / C everywhere."""
    examples = np.array([profile.examples for profile in profiles], dtype=float)
    return np.repeat(examples[:, None] / components, components, axis=1)


def table_of(state: Checkpoint, config: Config) -> NDArray[np.float64]:
    """Return the table of a checkpoint.

    Raises:
        FedhetError: It is not that of the run's clients and components.
    """
    table = state.arrays[TAU]
    columns = config.fedgmm.gaussians if config.strategy == "fedgmm" else config.components
    if table.shape != (config.num_clients, columns):
        remedy = (
            f"{TAU} has shape {table.shape}, not {(config.num_clients, columns)}: the file is not "
            "as the run wrote it; start the run again"
        )
        raise FedhetError("checkpoint of round", state.server_round, remedy)
    return table


def check_sums(name: str, sums: NDArray[np.floating], examples: int) -> None:
    """Refuse sums of responsibilities that cannot be such.

    Args:
        name: What to call them.
        sums: One for each component.
        examples: The client's number of examples, n_i.

    Raises:
        Rejection: One is negative, or they do not sum to n_i.
    """
    total = float(sums.sum(dtype=np.float64))
    if sums.min() < 0 or abs(total - examples) > _TOLERANCE * examples:
        raise Rejection(
            f"{name} {sums.tolist()} is negative or does not sum to {examples} examples"
        )

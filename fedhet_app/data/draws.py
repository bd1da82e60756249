"""Draws of a partition by flwr-datasets' partitioners.

``IidPartitioner``; ``DirichletPartitioner``, which for each class draws the clients' shares from
Dir(alpha) and cuts the class's examples accordingly (Yurochkin et al., arXiv:1905.12022); and, for
natural clients, ``NaturalIdPartitioner`` and ``GroupedNaturalIdPartitioner``.

Deviations from using them bare:
1. They are given the examples in random order: the IID partitioner cuts consecutive blocks, the
   Dirichlet one cuts each class and the grouped one the natural clients in the order it finds, so a
   sorted set would be handed out sorted.
2. The smallest client gets a twentieth of an even share, but no fewer than 1 and no more than 10
   examples (theirs: always 10, which 1,000 clients of 60 examples practically never meet).
3. They give up after 10 repetitions; here ``_ATTEMPTS`` such series are drawn.
4. Groups of natural clients have a given number, not a given size: where that leaves a remainder,
   groups of two sizes are made, each by a partitioner of its own.

Theirs as it is: with the balance mask a client is closed once it holds more than n/m examples
(spec 0.6: n/m or more), and the last client, closed or not, keeps what rounding leaves of a class.
"""

import contextlib
import io
import warnings

import datasets
import numpy as np
from flwr_datasets.partitioner import (
    DirichletPartitioner,
    GroupedNaturalIdPartitioner,
    IidPartitioner,
    NaturalIdPartitioner,
)
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError

_ATTEMPTS = 10


def draw_iid(shuffled: NDArray[np.int64], num_clients: int) -> list[NDArray[np.int64]]:
    """Cut the shuffled examples (n,) into even parts (n_i,)."""
    partitioner = IidPartitioner(num_partitions=num_clients)
    partitioner.dataset = datasets.Dataset.from_dict({"index": shuffled})
    return [_indices(partitioner.load_partition(client)) for client in range(num_clients)]


def draw_dirichlet(
    labels: NDArray[np.int64],
    shuffled: NDArray[np.int64],
    num_clients: int,
    alpha: float,
    balance_mask: bool,
    rng: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """Cut each class by shares drawn from Dir(alpha), again while a client is too small.

    Args:
        labels: (n,) classes of the training set.
        shuffled: (n,) all examples in random order.
        num_clients: Number m of clients.
        alpha: Concentration, finite and positive.
        balance_mask: Whether a client above n/m gets no examples of further classes.
        rng: Draws the seeds of the partitioner.

    Returns:
        The examples (n_i,) of each client, in random order.

    Raises:
        FedhetError: Some client stayed too small in every draw.
    """
    rows = datasets.Dataset.from_dict({"index": shuffled, "label": labels[shuffled]})
    smallest = max(1, min(10, len(labels) // (20 * num_clients)))
    for _ in range(_ATTEMPTS):
        partitioner = DirichletPartitioner(
            num_partitions=num_clients,
            partition_by="label",
            alpha=float(alpha),
            min_partition_size=smallest,
            self_balancing=balance_mask,
            seed=int(rng.integers(2**32)),
        )
        partitioner.dataset = rows
        # It warns at each repetition, and raises ValueError after the tenth.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                parts = [_indices(partitioner.load_partition(i)) for i in range(num_clients)]
            except ValueError:
                continue
        # With a tiny alpha and the mask all open shares can be zero: then its cuts are not cuts.
        if np.array_equal(np.bincount(np.concatenate(parts)), np.ones(len(labels))):
            return parts
    mask = "" if balance_mask else " or balance-mask = true"
    raise FedhetError(
        "alpha",
        alpha,
        f"no draw left each of {num_clients} clients {smallest} of {len(labels)} examples;"
        f" use a larger alpha, fewer clients{mask}",
    )


def draw_natural(
    groups: NDArray[np.int64], shuffled: NDArray[np.int64], num_clients: int
) -> list[NDArray[np.int64]]:
    """Give each natural client to a client: one each in their order, or groups of them at random.

    Args:
        groups: (n,) natural client of each example, at least ``num_clients`` of them.
        shuffled: (n,) all examples in random order, which also puts the natural clients in one.
        num_clients: Number m of clients.

    Returns:
        The examples (n_i,) of each client; the numbers of natural clients differ by one at most.
    """
    rows = datasets.Dataset.from_dict({"index": shuffled, "group": groups[shuffled]})
    found, first = np.unique(groups[shuffled], return_index=True)
    if len(found) == num_clients:
        partitioner = NaturalIdPartitioner(partition_by="group")
        partitioner.dataset = rows
        # It draws a progress bar without a way to ask for none.
        with contextlib.redirect_stderr(io.StringIO()):
            return [_indices(partitioner.load_partition(client)) for client in range(num_clients)]
    size, larger = divmod(len(found), num_clients)
    among_larger = np.isin(groups[shuffled], found[np.argsort(first)][: larger * (size + 1)])
    parts = []
    for chosen, group_size, count in (
        (among_larger, size + 1, larger),
        (~among_larger, size, num_clients - larger),
    ):
        grouped = GroupedNaturalIdPartitioner("group", group_size, mode="strict")
        grouped.dataset = rows.select(np.flatnonzero(chosen))
        parts += [_indices(grouped.load_partition(client)) for client in range(count)]
    return parts


def _indices(part: datasets.Dataset) -> NDArray[np.int64]:
    return np.asarray(part["index"][:], dtype=np.int64)

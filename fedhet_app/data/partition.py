"""Which training example belongs to which client.

The draws are those of flwr-datasets, see ``draws``; an infinite alpha is the IID partition. A
partition is stored in the cache, so that a worker loads it and imports none of that.
"""

import hashlib
import json
import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.cache import entry, map_array, reading, staged
from fedhet_app.data.clients import Partition
from fedhet_app.data.known import NATURAL
from fedhet_app.data.skew import describe, label_histograms, total_variation
from fedhet_app.errors import FedhetError
from fedhet_app.seeding import rng_for

__all__ = [
    "Kind",
    "Partition",
    "cached_partition",
    "describe",
    "label_histograms",
    "make_partition",
    "total_variation",
]

Kind = Literal["iid", "dirichlet", "natural"]

_KINDS = get_args(Kind)


def make_partition(
    labels: NDArray[np.int64],
    *,
    kind: Kind,
    num_clients: int,
    alpha: float,
    balance_mask: bool,
    seed: int,
    groups: NDArray[np.int64] | None = None,
) -> Partition:
    """Divide a training set over clients.

    Args:
        labels: (n,) classes of the training set.
        kind: ``iid`` (sizes differ by at most one), ``dirichlet`` or ``natural`` (each client is
            one natural client, or a group of them where there are more than clients).
        num_clients: Number m of clients.
        alpha: Concentration of the Dirichlet distribution; smaller is less alike.
        balance_mask: A client above the even share n/m gets no examples of further classes.
        seed: The run's seed.
        groups: (n,) natural client of each example, where the data set has such.

    Returns:
        The partition; equal arguments give equal partitions.

    Raises:
        FedhetError: Unknown kind, more clients than examples or natural clients, no natural
            clients, or an alpha that is not positive or too small for that many clients.
    """
    if kind not in _KINDS:
        raise FedhetError("partition", kind, f"no such partition; use one of {', '.join(_KINDS)}")
    if not 1 <= num_clients <= len(labels):
        remedy = f"the training set has {len(labels)} examples; use 1 to {len(labels)} clients"
        raise FedhetError("num-clients", num_clients, remedy)
    if kind == "dirichlet" and not alpha > 0:
        raise FedhetError("alpha", alpha, "must be positive; 0.1 is very uneven, 10 almost even")
    if kind == "natural":
        groups = _natural_clients(groups, num_clients)
    # Imported here: flwr-datasets takes seconds, and a worker with a warm cache needs none of it.
    from fedhet_app.data.draws import draw_dirichlet, draw_iid, draw_natural

    rng = rng_for(seed, "partition")
    shuffled = rng.permutation(len(labels))
    if kind == "natural" and groups is not None:
        parts = draw_natural(groups, shuffled, num_clients)
    elif kind == "iid" or math.isinf(alpha):
        parts = draw_iid(shuffled, num_clients)
    else:
        parts = draw_dirichlet(labels, shuffled, num_clients, alpha, balance_mask, rng)
    sizes = [0, *(len(part) for part in parts)]
    return Partition(order=np.concatenate(parts), offsets=np.cumsum(sizes, dtype=np.int64))


def _natural_clients(groups: NDArray[np.int64] | None, num_clients: int) -> NDArray[np.int64]:
    """Return the natural clients (n,), refusing none and too few."""
    if groups is None:
        have = ", ".join(NATURAL)
        remedy = f"this data set has no natural clients, {have} have; use dirichlet or iid"
        raise FedhetError("partition", "natural", remedy)
    count = len(np.unique(groups))
    if num_clients > count:
        remedy = f"the training set has {count} natural clients; use that or fewer"
        raise FedhetError("num-clients", num_clients, remedy)
    return groups


def cached_partition(
    dataset_fingerprint: str,
    labels: NDArray[np.int64],
    *,
    kind: Kind,
    num_clients: int,
    alpha: float,
    balance_mask: bool,
    seed: int,
    groups: NDArray[np.int64] | None = None,
) -> Partition:
    """Return the partition of ``make_partition``, computed once per cache.

    Args:
        dataset_fingerprint: Fingerprint of the data set that the labels belong to.
        labels: (n,) classes of its training set.
        kind: See ``make_partition``, as for the others.
        num_clients: Number m of clients.
        alpha: Concentration of the Dirichlet distribution.
        balance_mask: Whether full clients get no further classes.
        seed: The run's seed.
        groups: (n,) natural client of each example.

    Returns:
        The partition.

    Raises:
        FedhetError: As ``make_partition``, or the cache cannot be written or is damaged.
    """
    identity = (dataset_fingerprint, kind, num_clients, float(alpha), balance_mask, seed)
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    target = entry("partitions", f"{kind}-{num_clients}", key)
    if not target.is_dir():
        partition = make_partition(
            labels,
            kind=kind,
            num_clients=num_clients,
            alpha=alpha,
            balance_mask=balance_mask,
            seed=seed,
            groups=groups,
        )
        with staged(target) as folder:
            np.save(folder / "order.npy", partition.order)
            np.save(folder / "offsets.npy", partition.offsets)
    with reading(target):
        return Partition(
            order=map_array(target / "order.npy", np.int64),
            offsets=map_array(target / "offsets.npy", np.int64),
        )

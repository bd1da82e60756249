"""Who gets which image under dual heterogeneity: clients, components, training and test (spec 2.1).

Deviations, where the paper is silent:
1. The classes are cut by ``draws.draw_dirichlet`` with the balance mask, whose closing rule and
   smallest client are flwr-datasets' and its own (spec 0.6 closes at n/m and wants K examples).
2. A client trains on at least one image of each component: what it never saw it cannot learn.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.shifts import CLIENTS, COMPONENTS
from fedhet_app.errors import FedhetError
from fedhet_app.seeding import rng_for

_TRAIN_SHARE = 0.7
_Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
# One training image for each component and a test image.
_SMALLEST = COMPONENTS + 1


@dataclass(frozen=True, kw_only=True)
class Dual:
    """What a division under dual heterogeneity depends on.

    Attributes:
        num_clients: Number m of clients, 1 to 8.
        seed: The run's seed.
        alpha_inter: Concentration of the Dirichlet distribution of a class over the clients.
        alpha_intra: Concentration of that of a client's examples over its two components.
        amplitude: Strength of a client's tint and shading, in units of the range of brightness.
        examples: Number of images to take of the data set, 0 for all.
        fine: Whether a data set that has finer classes is dealt out by those.

    Raises:
        FedhetError: There are more clients than shifts.
    """

    num_clients: int
    seed: int
    alpha_inter: float = 1.0
    alpha_intra: float = 2.0
    amplitude: float = 0.2
    examples: int = 0
    fine: bool = True

    def __post_init__(self) -> None:
        """Refuse clients that would have no shift of their own."""
        if self.num_clients > CLIENTS:
            remedy = f"partition = 'dual' shifts {CLIENTS} clients, 2^3; use {CLIENTS} or fewer"
            raise FedhetError("num-clients", self.num_clients, remedy)


@dataclass(frozen=True, kw_only=True, eq=False)
class Hand:
    """The clients' training or test images, client after client, each client's in random order.

    Attributes:
        rows: (n,) which images.
        groups: (n,) the client of each, 0..m-1.
        components: (n,) the component of each, 0 or 1.
    """

    rows: NDArray[np.int64]
    groups: NDArray[np.int64]
    components: NDArray[np.int64]


def draw_pool(total: int, dual: Dual) -> NDArray[np.int64]:
    """Draw the images (n,) to deal out, in their order; all where fewer are there."""
    if not 0 < dual.examples < total:
        return np.arange(total)
    rng = rng_for(dual.seed, "subsample")
    return np.sort(rng.choice(total, size=dual.examples, replace=False))


def deal(labels: NDArray[np.int64], dual: Dual) -> tuple[Hand, Hand, NDArray[np.float64]]:
    """Deal images out to clients, each client's to its components, and 70 % of them to training.

    A client of n_i images has weights pi_i ~ Dir(alpha_intra, alpha_intra), and round(pi_i0 n_i) of
    its images, at least 1 and at most n_i - 1, in component 0.

    Args:
        labels: (n,) classes by which the images are dealt out.
        dual: Clients, seed and concentrations; the strength of the shift plays no part.

    Returns:
        Training and test images as rows of ``labels``, and the weights pi, (m, 2).

    Raises:
        FedhetError: A client would not get an image for training in each component and one for
            testing.
    """
    rng = rng_for(dual.seed, "partition")
    owned = _owned(labels, dual, rng)
    weights = rng.dirichlet([dual.alpha_intra] * COMPONENTS, size=dual.num_clients)
    train: list[_Part] = []
    test: list[_Part] = []
    for client, rows in enumerate(owned):
        count = len(rows)
        first = min(max(round(weights[client, 0] * count), 1), count - 1)
        components = (np.arange(count) >= first).astype(np.int64)
        for hand, part in zip((train, test), _split(components, rng), strict=True):
            hand.append((rows[part], np.full(len(part), client), components[part]))
    return _hand(train), _hand(test), weights


def _owned(
    labels: NDArray[np.int64], dual: Dual, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return the images (n_i,) of each client, in random order, refusing too few."""
    # Imported here: flwr-datasets takes seconds, and a worker with a warm cache needs none of it.
    from fedhet_app.data.draws import draw_dirichlet

    count, clients = len(labels), dual.num_clients
    smallest = 0
    if count >= _SMALLEST * clients:
        shuffled = rng.permutation(count)
        try:
            owned = draw_dirichlet(labels, shuffled, clients, dual.alpha_inter, True, rng)
        except FedhetError as problem:
            key, value = "dual.alpha-inter", dual.alpha_inter
            raise FedhetError(key, value, problem.remedy) from problem
        smallest = min(len(rows) for rows in owned)
    if smallest < _SMALLEST:
        remedy = (
            f"{count} images leave some of {clients} clients fewer than {_SMALLEST}: one to train"
            " on in each component, one to test on; use more images, a smaller num-clients or a"
            " larger dual.alpha-inter"
        )
        raise FedhetError("dual.examples", dual.examples, remedy)
    return owned


def _split(
    components: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a client's training and test examples, both in random order."""
    order = rng.permutation(len(components))
    _, pinned = np.unique(components[order], return_index=True)
    order = np.concatenate([order[pinned], np.delete(order, pinned)])
    cut = round(_TRAIN_SHARE * len(components))
    return rng.permutation(order[:cut]), order[cut:]


def _hand(parts: list[_Part]) -> Hand:
    rows, groups, components = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Hand(rows=rows, groups=groups, components=components)

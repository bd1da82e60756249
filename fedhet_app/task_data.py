"""Which examples a configuration stands for, whose each is, and which are held out.

Server and clients of a simulation derive the same from the same configuration. Where clients hold
their own data, a client knows its own alone, and the server the numbers that clients declare.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhet_app.config import Config
from fedhet_app.data import Dataset, Split, load_dataset
from fedhet_app.data.clients import owners
from fedhet_app.data.deal import Dual
from fedhet_app.data.dual import dual_dataset, dual_partition
from fedhet_app.data.holdout import divide
from fedhet_app.data.own import unseen
from fedhet_app.data.partition import Partition, cached_partition
from fedhet_app.errors import FedhetError
from fedhet_app.seeding import rng_for


@dataclass(frozen=True, kw_only=True, eq=False)
class Division:
    """What a task is about.

    Attributes:
        dataset: The training and the test examples.
        partition: Which training example is whose.
        test_owners: The client of each test example, shape ``(M,)``; ``None`` if some is nobody's.
    """

    dataset: Dataset
    partition: Partition
    test_owners: NDArray[np.int64] | None


class TaskData:
    """The examples of one configuration, loaded when they are asked for.

    Args:
        config: A checked configuration, for the number of clients that are there.
        own: Where clients hold their own data, what is known of those; ``None`` for the shape and
            the classes alone.
    """

    def __init__(self, config: Config, own: Division | None) -> None:
        self._config, self._own = config, own

    @cached_property
    def dataset(self) -> Dataset:
        """The training and test examples."""
        if self._own is not None:
            return self._own.dataset
        if self._config.clients_own:
            return unseen(self._config.dataset, self._config.facts)
        return self._source if self._held_out is None else self._held_out.dataset

    @cached_property
    def partition(self) -> Partition:
        """Which training examples belong to which client.

        Raises:
            FedhetError: Clients hold their own, and have not said how many.
        """
        if self._own is not None:
            return self._own.partition
        if self._config.clients_own:
            remedy = "the clients hold the data themselves, and only a run knows how much"
            raise FedhetError("partition", self._config.partition, remedy)
        return self._dealt if self._held_out is None else self._held_out.partition

    @cached_property
    def test_owners(self) -> NDArray[np.int64] | None:
        """The client that each test example is of, shape ``(M,)``; ``None`` if some is nobody's."""
        if self._own is not None:
            return self._own.test_owners
        if self._config.clients_own:
            return None
        return self._given_owners if self._held_out is None else self._held_out.test_owners

    @cached_property
    def _source(self) -> Dataset:
        config = self._config
        dual = None
        if config.partition == "dual":
            dual = Dual(num_clients=config.num_clients, seed=config.seed, **asdict(config.dual))
        source = load_dataset(
            config.dataset,
            data_dir=config.data_dir,
            image_column=config.image_column,
            label_column=config.label_column,
            test_split=config.test_split,
            stride=config.stride,
            max_windows_per_client=config.max_windows_per_client,
            image_size=config.image_size,
            max_train_examples=config.max_train_examples,
            seed=config.seed,
        )
        return source if dual is None else dual_dataset(source, dual)

    @cached_property
    def _dealt(self) -> Partition:
        config = self._config
        if config.partition == "dual":
            return dual_partition(self._source)
        assert config.partition != "own", "the clients' own data are not dealt out"
        return cached_partition(
            self._source.fingerprint,
            self._source.train.labels,
            kind=config.partition,
            num_clients=config.num_clients,
            alpha=config.alpha,
            balance_mask=config.balance_mask,
            seed=config.seed,
            groups=self._source.train_groups,
        )

    @cached_property
    def _given_owners(self) -> NDArray[np.int64] | None:
        dataset, kind = self._source, self._config.partition
        if kind == "dual" or dataset.train_groups is None or dataset.test_groups is None:
            return dataset.test_groups
        if kind != "natural":
            return None
        return owners(self._dealt, dataset.train_groups, dataset.test_groups)

    @cached_property
    def _held_out(self) -> Division | None:
        """Each client's examples divided, where it is to measure and has no test examples."""
        config = self._config
        if not config.federated_evaluation or self._given_owners is not None:
            return None
        clients = [self._dealt.client(i) for i in range(self._dealt.num_clients)]
        return held_out(self._source, clients, config.test_fraction, config.seed)


def held_out(
    dataset: Dataset, clients: Sequence[NDArray[np.int64]], fraction: float, seed: int
) -> Division:
    """Take a part of every client's training examples for its test examples.

    Args:
        dataset: The set; its own test examples are left out.
        clients: The training examples of each client.
        fraction: The part, below 1, rounded down.
        seed: The run's seed.
    """
    parts = [
        divide(rows, fraction, rng_for(seed, "holdout", client))
        for client, rows in enumerate(clients)
    ]
    test = np.concatenate([held for _, held in parts])
    sizes = [len(held) for _, held in parts]
    split = Split(inputs=dataset.train.inputs[test], labels=dataset.train.labels[test])
    return Division(
        dataset=replace(dataset, test=split, test_groups=None),
        partition=blocks([kept for kept, _ in parts]),
        test_owners=np.repeat(np.arange(len(clients)), sizes),
    )


def blocks(clients: Sequence[NDArray[np.int64]]) -> Partition:
    """Return the partition that gives each client these examples."""
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in clients])])
    return Partition(order=np.concatenate(list(clients)), offsets=offsets.astype(np.int64))

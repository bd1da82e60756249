"""The tasks of a run whose clients hold the data: a client's, and the server's.

A client's task has its own examples and nobody else's; the server's has none, and of each client
the number that it declared, its weight in every average.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedhet_app.config import Config
from fedhet_app.data import Partition, Split
from fedhet_app.data.holdout import divide
from fedhet_app.data.own import open_own, own_entry, unseen
from fedhet_app.data.own_files import KEY
from fedhet_app.errors import FedhetError
from fedhet_app.options import Scalar
from fedhet_app.seeding import rng_for
from fedhet_app.task import Task
from fedhet_app.task_data import Division, blocks

TEST_FRACTION = "test-fraction"


def node_task(config: Config, node_config: Mapping[str, Scalar], partition: int) -> Task:
    """Return the task of one client, with the data that its node config names.

    Args:
        config: The run's, for the number of clients that are there.
        node_config: ``data-path``, and ``test-fraction`` where it is not to be the run's.
        partition: The client.

    Raises:
        FedhetError: The path or the fraction is missing or wrong, or the data do not fit the run.
    """
    path = node_config.get(KEY, "")
    if not isinstance(path, str) or not path:
        remedy = "set it in the node config to the folder of the node's data: the run has none"
        raise FedhetError(KEY, path, remedy)
    fraction = node_config.get(TEST_FRACTION, config.test_fraction)
    if isinstance(fraction, bool | str) or not 0.0 <= fraction < 1.0:
        remedy = "the node config's test-fraction is a number from 0 to less than 1"
        raise FedhetError(TEST_FRACTION, fraction, remedy)
    entry = own_entry(
        path,
        config.dataset,
        config.facts,
        image_size=config.image_size,
        image_column=config.image_column,
        label_column=config.label_column,
    )
    return _node_task(config, entry, float(fraction), partition)


# Where one process serves several clients, as in a simulation, each finds its task again.
@lru_cache(maxsize=16)
def _node_task(config: Config, entry: Path, fraction: float, partition: int) -> Task:
    dataset = open_own(entry, config.dataset, config.facts)
    mine = np.arange(len(dataset.train.labels))
    test = dataset.test
    if not len(test.labels):
        mine, held = divide(mine, fraction, rng_for(config.seed, "holdout", partition))
        train = dataset.train
        test = Split(inputs=train.inputs[held], labels=train.labels[held])
    none = np.empty(0, dtype=np.int64)
    clients = [mine if client == partition else none for client in range(config.num_clients)]
    division = Division(
        dataset=replace(dataset, test=test),
        partition=blocks(clients),
        test_owners=np.full(len(test.labels), partition),
    )
    return Task(config, division)


class _Declared(Partition):
    """Sizes alone, which strangers declare: nothing here is as large as they say."""

    @property
    def fingerprint(self) -> str:
        """Hexadecimal hash of the sizes."""
        return hashlib.sha256(self.offsets.astype("<i8").tobytes()).hexdigest()


def server_task(config: Config, sizes: Sequence[int]) -> Task:
    """Return the server's task.

    Args:
        config: The run's, for the number of clients that are there.
        sizes: The training examples that each client declares.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    division = Division(
        dataset=unseen(config.dataset, config.facts),
        partition=_Declared(order=np.broadcast_to(np.int64(0), offsets[-1:]), offsets=offsets),
        test_owners=None,
    )
    return Task(config, division)


def refuse_data_path(node_config: Mapping[str, Scalar]) -> None:
    """Refuse a node with data of its own in a run that does not look at them.

    Raises:
        FedhetError: It names such.
    """
    if KEY in node_config:
        remedy = "the run divides a data set of its own; set partition = 'own' in the run config"
        raise FedhetError(KEY, node_config[KEY], remedy)

"""Data sets under dual heterogeneity: clients that differ, each of two components that differ.

Made once from a whole data set by ``dual_store``, then mapped by every process; ``deal`` says who
gets which image, ``shifts`` what becomes of it.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.cache import entry, map_array, reading, staged
from fedhet_app.data.clients import Partition
from fedhet_app.data.datasets import Dataset, Split
from fedhet_app.data.deal import Dual
from fedhet_app.data.shifts import COMPONENTS
from fedhet_app.data.skew import label_histograms
from fedhet_app.errors import FedhetError

# Part of every key: raise it when what is written to the cache changes.
_FORMAT = 1
_MIDDLE = 127.5


def dual_dataset(source: Dataset, dual: Dual) -> Dataset:
    """Return a data set under dual heterogeneity, computed once per cache.

    Args:
        source: The data set as it is; its training and test sets are merged.
        dual: The clients and what tells them apart.

    Returns:
        The clients' shares of it, client after client, with what only its maker can know. A
        network sees its images in [-1, 1]; its classes have no names, for each stands for another
        in each component of each client.

    Raises:
        FedhetError: The data set is of text or too small, it has no fine classes to leave aside, or
            the cache cannot be written or is damaged.
    """
    if source.vocabulary:
        remedy = "is text; partition = 'dual' shifts images; use a data set of those"
        raise FedhetError("dataset", source.name, remedy)
    if not dual.fine and source.train.fine is None:
        remedy = f"{source.name} has no finer classes to leave aside; leave the option out"
        raise FedhetError("dual.fine", dual.fine, remedy)
    identity = json.dumps([_FORMAT, source.fingerprint, asdict(dual)])
    key = hashlib.sha256(identity.encode()).hexdigest()
    target = entry("dual", f"{source.name}-{dual.num_clients}", key)
    if not target.is_dir():
        from fedhet_app.data.dual_store import write

        with staged(target) as folder:
            write(source, dual, folder)
    with reading(target):
        return _open(source, target)


def dual_partition(dataset: Dataset) -> Partition:
    """Return the training examples of each client of a data set under dual heterogeneity."""
    if dataset.train_groups is None:
        raise ValueError(f"{dataset.name} is not divided")
    return _blocks(dataset.train_groups)


def describe_dual(dataset: Dataset) -> dict[str, object]:
    """Return what ``partition.json`` says of dual heterogeneity, nothing for another data set.

    The histograms before the shift count a client's training and test examples by the classes that
    the data set itself gives them: what the Dirichlet draw made uneven.
    """
    if dataset.mixing_weights is None or dataset.permutations is None:
        return {}
    originals = np.argsort(dataset.permutations, axis=-1)
    counts, before = [], []
    for split, groups, components in (
        (dataset.train, dataset.train_groups, dataset.train_components),
        (dataset.test, dataset.test_groups, dataset.test_components),
    ):
        assert groups is not None, "set where the weights are"
        assert components is not None, "set where the weights are"
        clients = _blocks(groups)
        counts.append(label_histograms(clients, components, COMPONENTS))
        original = originals[groups, components, split.labels]
        before.append(label_histograms(clients, original, dataset.num_classes))
    return {
        "mixing-weights": dataset.mixing_weights.tolist(),
        "component-counts": counts[0].tolist(),
        "class-histograms-before-shift": (before[0] + before[1]).tolist(),
    }


def _blocks(groups: NDArray[np.int64]) -> Partition:
    """Return the partition of examples (n,) that lie client after client."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(groups))])
    return Partition(order=np.arange(len(groups)), offsets=offsets)


def _open(source: Dataset, folder: Path) -> Dataset:
    """Map the files that ``write`` left."""
    meta = json.loads((folder / "meta.json").read_text())
    train, test = (
        Split(
            inputs=map_array(folder / f"{part}-inputs.npy", np.uint8),
            labels=map_array(folder / f"{part}-labels.npy", np.int64),
        )
        for part in ("train", "test")
    )
    level = np.full(train.inputs.shape[-1], _MIDDLE, dtype=np.float32)
    return replace(
        source,
        train=train,
        test=test,
        class_names=None,
        train_groups=map_array(folder / "train-groups.npy", np.int64),
        test_groups=map_array(folder / "test-groups.npy", np.int64),
        train_components=map_array(folder / "train-components.npy", np.int64),
        test_components=map_array(folder / "test-components.npy", np.int64),
        permutations=map_array(folder / "permutations.npy", np.int64),
        shift_example=map_array(folder / "shift-example.npy", np.uint8),
        mixing_weights=map_array(folder / "mixing-weights.npy", np.float64),
        mean=level,
        std=level,
        fingerprint=meta["fingerprint"],
    )

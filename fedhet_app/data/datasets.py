"""Data sets as arrays in shared memory: decoded once, mapped by every process."""

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.cache import entry, map_array, reading, staged
from fedhet_app.data.sources import locate
from fedhet_app.seeding import rng_for

LOG = logging.getLogger("fedhet")

IMAGE_DIMS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Examples and their labels.

    Attributes:
        inputs: uint8 images (N, H, W, C) or windows of symbols (N, L), or float32 rows (N, F);
            memory-mapped unless it is a part of a set.
        labels: (N,) classes 0..K-1; of text the symbol that follows.
        fine: (N,) finer classes 0..F-1 of which the labels are groups, where the set has such.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    fine: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A classification set of images, of rows of numbers, or of text with the next symbol as class.

    Attributes:
        name: What the user calls it.
        train: Training set.
        test: Test set.
        num_classes: K.
        class_names: K names, where they are known.
        vocabulary: Number of symbols of a text, else 0.
        train_groups: (N,) natural client of each training example, where the set has such; under
            dual heterogeneity its client.
        mean: (C,) of the whole training set, in units of the images (0..255); (0,) for others.
        std: (C,) likewise; 1 for a channel that is constant.
        fingerprint: Hexadecimal hash of all examples, labels and natural clients, equal wherever
            they came from.
        test_groups: (M,) likewise of each test example, where it is known; each has training
            examples, though a subsample may have none of them. A method may know both, but not what
            follows: that is for diagnosis under dual heterogeneity alone.
        train_components: (N,) the true component of each training example, 0 or 1.
        test_components: (M,) likewise of each test example.
        permutations: (m, 2, K) the class that each class became in a component of a client.
        shift_example: (m, 2, H, W, 3) one image as each client and component has it.
        mixing_weights: (m, 2) the shares of the components that were drawn for each client.
        columns: Names of the F numbers of a row, where the set has such.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...] | None
    vocabulary: int
    train_groups: NDArray[np.int64] | None
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    fingerprint: str
    test_groups: NDArray[np.int64] | None = None
    train_components: NDArray[np.int64] | None = None
    test_components: NDArray[np.int64] | None = None
    permutations: NDArray[np.int64] | None = None
    shift_example: NDArray[np.uint8] | None = None
    mixing_weights: NDArray[np.float64] | None = None
    columns: tuple[str, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example as a network takes it: (C, H, W) of an image, else its length."""
        shape = self.train.inputs.shape[1:]
        return (shape[2], shape[0], shape[1]) if len(shape) == IMAGE_DIMS else shape

    @property
    def columns_digest(self) -> str:
        """Hexadecimal hash of the columns' names and order, empty without."""
        return hashlib.sha256(json.dumps(self.columns).encode()).hexdigest() if self.columns else ""


def load_dataset(
    name: str,
    *,
    data_dir: str = "",
    image_column: str = "",
    label_column: str = "",
    test_split: str = "test",
    stride: int = 80,
    max_windows_per_client: int = 0,
    image_size: int = 0,
    max_train_examples: int = 0,
    seed: int = 0,
) -> Dataset:
    """Open a data set, decoding it into the cache the first time.

    Args:
        name: ``digits``, a key of ``known.KNOWN`` or ``hub:NAME``.
        data_dir: Folder of the data set, or of one folder per data set (not used by digits).
        image_column: Column of the images; empty takes the only one.
        label_column: Column of the labels; empty takes ``label``, or the only one like it.
        test_split: Name of the split to test on.
        stride: Text: symbols from one window to the next.
        max_windows_per_client: Text: most training windows of one role, 0 for all.
        image_size: Height and width that images are resized to, 0 to leave them as they are.
        max_train_examples: Size of a uniform subsample of the training set, 0 for all of it.
        seed: The run's seed, which draws the subsample.

    Returns:
        The data set. A hub data set that is cached is not compared with the hub again.

    Raises:
        FedhetError: The data set is unknown, cannot be found, or cannot be read.
    """
    source = locate(
        name,
        data_dir=data_dir,
        image_column=image_column,
        label_column=label_column,
        test_split=test_split,
        stride=stride,
        max_windows=max_windows_per_client,
        image_size=image_size,
    )
    target = entry("datasets", name, source.key)
    if not target.is_dir():
        # Imported here: a worker that finds the cache ready needs no reader.
        from fedhet_app.data.store import write

        with staged(target) as folder:
            write(source, folder)
    with reading(target):
        dataset = _open(name, target)
    return _subsample(dataset, max_train_examples, seed)


def _open(name: str, folder: Path) -> Dataset:
    """Map the files that ``write`` left, with a warning that names the roles it left out."""
    meta = json.loads((folder / "meta.json").read_text())
    train, test = (
        Split(
            inputs=map_array(folder / f"{part}-inputs.npy", np.uint8),
            labels=map_array(folder / f"{part}-labels.npy", np.int64),
            fine=map_array(folder / f"{part}-fine.npy", np.int64) if meta.get("has-fine") else None,
        )
        for part in ("train", "test")
    )
    train_groups, test_groups = (
        map_array(folder / f"{part}-groups.npy", np.int64) if meta[key] else None
        for part, key in (("train", "has-groups"), ("test", "has-test-groups"))
    )
    if meta.get("left-out"):
        LOG.warning("roles too short for a window are left out: %s", ", ".join(meta["left-out"]))
    return Dataset(
        name=name,
        train=train,
        test=test,
        num_classes=meta["num-classes"],
        class_names=None if meta["class-names"] is None else tuple(meta["class-names"]),
        vocabulary=meta["vocabulary"],
        train_groups=train_groups,
        mean=np.asarray(meta["mean"], dtype=np.float32),
        std=np.asarray(meta["std"], dtype=np.float32),
        fingerprint=meta["fingerprint"],
        test_groups=test_groups,
    )


def _subsample(dataset: Dataset, size: int, seed: int) -> Dataset:
    """Keep ``size`` training examples, in their order; 0, or more than there are, keeps all."""
    total = len(dataset.train.labels)
    if not 0 < size < total:
        return dataset
    kept = np.sort(rng_for(seed, "subsample").choice(total, size=size, replace=False))
    fine = None if dataset.train.fine is None else dataset.train.fine[kept]
    train = Split(inputs=dataset.train.inputs[kept], labels=dataset.train.labels[kept], fine=fine)
    groups = None if dataset.train_groups is None else dataset.train_groups[kept]
    identity = f"{dataset.fingerprint} {size} {seed}"
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    return replace(dataset, train=train, train_groups=groups, fingerprint=fingerprint)

"""A client's own data: read where they lie, checked against the run, and never sent.

They are decoded once into the cache (see ``cache``), on the client's own disk: a node of Flower's
starts a process for every message. Images become what they are under dual heterogeneity, pixels in
[-1, 1]; rows of numbers are taken as they are. Neither needs the mean of everybody's data, which
nobody knows.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.cache import entry, map_array, reading, staged, write_chunks
from fedhet_app.data.datasets import IMAGE_DIMS, Dataset, Split
from fedhet_app.data.own_files import KEY, OwnFiles, find
from fedhet_app.errors import FedhetError
from fedhet_app.facts import Facts

if TYPE_CHECKING:
    from fedhet_app.data.own_readers import Reading
    from fedhet_app.data.raw import RawSplit

# Part of every key: raise it when what is written to the cache changes.
_FORMAT = 1
_MIDDLE = 127.5
_SHOWN = 5


def unseen(name: str, facts: Facts) -> Dataset:
    """Return a data set of which only the facts are known: it has no examples.

    Args:
        name: What the user calls it.
        facts: Its shape and classes.
    """
    kind = np.uint8 if len(facts.stored_shape) == IMAGE_DIMS else np.float32
    none = Split(
        inputs=np.empty((0, *facts.stored_shape), dtype=kind), labels=np.empty(0, dtype=np.int64)
    )
    channels = facts.input_shape[:1] if len(facts.stored_shape) == IMAGE_DIMS else (0,)
    level = np.full(channels, _MIDDLE, dtype=np.float32)
    return Dataset(
        name=name,
        train=none,
        test=none,
        num_classes=facts.num_classes,
        class_names=facts.class_names,
        vocabulary=0,
        train_groups=None,
        mean=level,
        std=level,
        fingerprint=hashlib.sha256(json.dumps(asdict(facts)).encode()).hexdigest(),
    )


def own_entry(
    path: str,
    name: str,
    facts: Facts,
    *,
    image_size: int = 0,
    image_column: str = "",
    label_column: str = "",
) -> Path:
    """Return the cached folder of a client's own data, made where they are new or changed.

    Args:
        path: Their folder, absolute.
        name: What the run calls the data set.
        facts: What the run wants.
        image_size: Height and width that images are resized to, 0 to leave them as they are.
        image_column: Column of the images in parquet, empty to guess.
        label_column: Column of the labels in parquet or CSV, empty to guess.

    Raises:
        FedhetError: The path, what lies there, or what is in it does not fit the run.
    """
    if not Path(path).is_absolute():
        raise FedhetError(KEY, path, "the node config's data-path is an absolute path")
    files = find(Path(path))
    options = (image_size, image_column, label_column)
    identity = json.dumps([_FORMAT, files.key, asdict(facts), options])
    target = entry("own", name, hashlib.sha256(identity.encode()).hexdigest())
    if not target.is_dir():
        # Imported here: a process that finds the cache ready needs no reader.
        from fedhet_app.data.own_readers import Reading

        how = Reading(
            facts=facts,
            image_size=image_size,
            image_column=image_column,
            label_column=label_column,
        )
        with staged(target) as folder:
            _write(files, how, folder)
    return target


def open_own(folder: Path, name: str, facts: Facts) -> Dataset:
    """Map the data in a folder from ``own_entry``; without test files the test set is empty.

    Raises:
        FedhetError: The folder is damaged.
    """
    nothing = unseen(name, facts)
    with reading(folder):
        train, test = (
            Split(
                inputs=map_array(folder / f"{part}-inputs.npy", nothing.test.inputs.dtype.type),
                labels=map_array(folder / f"{part}-labels.npy", np.int64),
            )
            if part == "train" or (folder / f"{part}-labels.npy").exists()
            else nothing.test
            for part in ("train", "test")
        )
        columns = tuple(json.loads((folder / "columns.json").read_text()))
    return replace(nothing, train=train, test=test, columns=columns)


def _write(files: OwnFiles, how: "Reading", folder: Path) -> None:
    """Decode a client's data.

    Raises:
        FedhetError: They cannot be read, or are not what the run wants.
    """
    from fedhet_app.data.own_readers import read

    place = str(files.root)
    try:
        splits, columns = read(files, how)
        (folder / "columns.json").write_text(json.dumps(columns))
        kind = unseen("", how.facts).test.inputs.dtype.type
        for part, raw in zip(("train", "test"), splits, strict=False):
            labels = _checked(part, raw, how.facts, place)
            write_chunks(folder / f"{part}-inputs.npy", raw.shape, raw.chunks, kind)
            np.save(folder / f"{part}-labels.npy", labels)
    except FedhetError as problem:
        # The readers are shared with other sources, whose options they name.
        if problem.key == "data-dir":
            raise FedhetError(KEY, str(problem.value), problem.remedy) from problem
        if files.kind == "images":
            raise FedhetError(KEY, place, problem.remedy) from problem
        raise


def _checked(part: str, raw: "RawSplit", facts: Facts, place: str) -> NDArray[np.int64]:
    """Return the classes of one split, if it is what the run wants.

    Raises:
        FedhetError: It is empty, of another shape, or has other classes.
    """
    if not len(raw.labels):
        raise FedhetError(KEY, place, f"its {part} part is empty; add examples")
    if raw.shape[1:] != facts.stored_shape:
        raise FedhetError(KEY, place, _other_shape(raw.shape[1:], facts))
    return _numbered(raw, facts, place)


def _other_shape(shape: tuple[int, ...], facts: Facts) -> str:
    if len(shape) != IMAGE_DIMS:
        return f"has {shape[0]} columns of features, and the run takes {facts.input_shape[0]}"
    (height, width, channels), wanted = shape, facts.input_shape
    if channels != wanted[0]:
        return "holds images in colour, and the run takes grey ones; convert them"
    has = f"holds images of {height}x{width}, and the run takes {wanted[1]}x{wanted[2]}"
    return f"{has}; resize them, or set image-size in the run config where it is square"


def _numbered(raw: "RawSplit", facts: Facts, place: str) -> NDArray[np.int64]:
    """Return the run's number of each example's class, shape ``(N,)``."""
    labels, count = raw.labels, facts.num_classes
    if raw.class_names is not None and labels.dtype.kind != "U":
        labels = _named(labels.astype(np.int64), raw.class_names, place)
    if labels.dtype.kind == "U":
        found, at = np.unique(labels, return_inverse=True)
        labels = _by_name([str(name) for name in found], facts, place)[at]
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= count:
        remedy = f"has classes {low} to {high}, and the run takes 0 to {count - 1}"
        raise FedhetError(KEY, place, f"{remedy}; number them so")
    return labels.astype(np.int64)


def _named(labels: NDArray[np.int64], names: tuple[str, ...], place: str) -> NDArray[np.str_]:
    """Return the names of classes that a file declares, shape ``(N,)``."""
    if labels.min() < 0 or labels.max() >= len(names):
        remedy = f"has classes {labels.min()} to {labels.max()}, and declares 0 to {len(names) - 1}"
        raise FedhetError(KEY, place, f"{remedy}; mend the file")
    return np.array(names, dtype=np.str_)[labels]


def _by_name(found: list[str], facts: Facts, place: str) -> NDArray[np.int64]:
    """Return the number of each name: by the run's names, or what it says where it is a number."""
    numbers = {name: at for at, name in enumerate(facts.class_names or ())}
    if all(name in numbers for name in found):
        return np.array([numbers[name] for name in found])
    if all(name.isascii() and name.isdigit() for name in found):
        return np.array([int(name) for name in found])
    strange = [name for name in found if name not in numbers]
    if facts.class_names is None:
        way = "the run has numbers alone; name them 0, 1, ..., or set class-names in the run config"
    else:
        known = _shown(facts.class_names)
        way = f"the run's are {known}; rename or remove them, or mend class-names"
    raise FedhetError(KEY, place, f"has classes {_shown([*map(repr, strange)])}; {way}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")

"""Which files of a client's own folder hold its data, and how."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedhet_app.data.folders import idx_files, parquet_files
from fedhet_app.errors import FedhetError

KEY = "data-path"
Kind = Literal["images", "idx", "parquet", "csv"]

# Those that torchvision's ImageFolder takes for images.
_IMAGES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
_WANTED = (
    "folders of images named for their classes (there, or in train/ and test/), "
    "train-images*-ubyte[.gz] with their labels, train*.parquet, or a CSV file"
)


@dataclass(frozen=True, kw_only=True)
class OwnFiles:
    """The files of one client.

    Attributes:
        root: Its folder.
        kind: How they store the data.
        train: Those of the whole, or of the training set where there is a test set.
        test: Those of the test set; empty where one is to be held out.
        bases: Of images: the folders that hold the classes' folders, of ``train`` and ``test``.
    """

    root: Path
    kind: Kind
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    bases: tuple[Path, ...] = ()

    @property
    def key(self) -> str:
        """Hexadecimal key that changes with the files: path, size, time."""
        stats = [(str(path), path.stat()) for path in (*self.train, *self.test)]
        files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
        identity = json.dumps([self.kind, len(self.train), files])
        return hashlib.sha256(identity.encode()).hexdigest()


def find(root: Path) -> OwnFiles:
    """List the data files of a folder.

    Raises:
        FedhetError: It is no folder, cannot be read, or holds no data or data of several kinds.
    """
    if not root.is_dir():
        raise FedhetError(
            KEY, str(root), "is not a folder; set it to the folder of the node's data"
        )
    try:
        listed = sorted(root.iterdir())
        found = [files for files in _kinds(root, listed) if files.train]
    except OSError as problem:
        remedy = f"cannot be read ({problem.strerror}); let the node's user read it"
        raise FedhetError(KEY, str(root), remedy) from problem
    except FedhetError as problem:  # of a shard or a label file that is missing
        raise FedhetError(KEY, str(problem.value), problem.remedy) from problem
    if not found:
        raise FedhetError(KEY, str(root), f"holds no data; put there {_WANTED}")
    if len(found) > 1:
        kinds = " and ".join(files.kind for files in found)
        raise FedhetError(KEY, str(root), f"holds {kinds}; leave one of them there")
    return found[0]


def _kinds(root: Path, listed: list[Path]) -> Iterator[OwnFiles]:
    parts = root / "train", root / "test"
    split = parts[0].is_dir() and any(path.is_dir() for path in parts[0].iterdir())
    bases = parts if split else (root,)  # a class may be named train
    images = [tuple(_images(base)) for base in bases]
    yield OwnFiles(root=root, kind="images", train=images[0], test=(*images, ())[1], bases=bases)
    test = idx_files(root, "t10k") or idx_files(root, "test")
    yield OwnFiles(root=root, kind="idx", train=idx_files(root, "train"), test=test)
    test = parquet_files(root, "test")
    yield OwnFiles(root=root, kind="parquet", train=parquet_files(root, "train"), test=test)
    tables = {path.name: path for path in listed if path.suffix == ".csv"}
    if "train.csv" not in tables and len(tables) > 1:
        remedy = f"holds {len(tables)} CSV files; name the one to train on train.csv"
        raise FedhetError(KEY, str(root), remedy)
    test = (tables.pop("test.csv"),) if {"train.csv", "test.csv"} <= tables.keys() else ()
    whole = tables.get("train.csv", next(iter(tables.values()), None))
    yield OwnFiles(root=root, kind="csv", train=() if whole is None else (whole,), test=test)


def _images(base: Path) -> Iterator[Path]:
    """Yield the images below the classes' folders, in torchvision's order within each."""
    if not base.is_dir():
        return
    for folder in sorted(path for path in base.iterdir() if path.is_dir()):
        if folder.name.startswith("."):
            continue
        for parent, _, names in sorted(os.walk(folder, followlinks=True)):
            for name in sorted(names):
                if Path(name).suffix.lower() in _IMAGES:
                    yield Path(parent) / name

"""Where a data set is found, decided from names and folders alone.

The order is: the folder given as ``data-dir``; the folder of the data set under the environment
variable ``FEDHET_DATA``; for Fashion-MNIST the folder of Debian's package; the hub. A folder that
is named but does not hold the data is an error, never a reason to look further.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedhet_app.data.folders import split_files
from fedhet_app.data.known import KNOWN, UNNAMED, Known
from fedhet_app.errors import FedhetError

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
# Part of every key: raise it when what is written to the cache changes.
_FORMAT = 3


@dataclass(frozen=True, kw_only=True)
class Source:
    """One data set at one place.

    Attributes:
        name: What the user calls it.
        kind: How it is stored there.
        place: Folder or hub id, for messages.
        known: What is particular about it.
        train: Files of the training set (``idx``: images, labels), empty on the hub.
        test: Files of the test set, likewise; empty where it is taken from the training set.
        image_column: Column of the images, empty to guess.
        label_column: Column of the labels, empty to guess.
        test_split: Name of the split to test on.
        stride: Text: symbols from one window to the next.
        max_windows: Text: most training windows of one role, 0 for all.
        image_size: Height and width that images are resized to, 0 to leave them as they are.
    """

    name: str
    kind: Literal["digits", "idx", "parquet", "hub"]
    place: str
    known: Known = UNNAMED
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    image_column: str = ""
    label_column: str = ""
    test_split: str = "test"
    stride: int = 80
    max_windows: int = 0
    image_size: int = 0

    @property
    def key(self) -> str:
        """Hexadecimal key that changes with the files (path, size, time) and the options."""
        stats = [(path, path.stat()) for path in (*self.train, *self.test)]
        files = [(str(path.absolute()), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
        columns = (self.image_column, self.label_column, self.test_split)
        windows = (self.stride, self.max_windows)
        place = (self.name, self.kind, self.place)
        options = (columns, windows, self.image_size)
        identity = (_FORMAT, place, files, len(self.train), *options)
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def locate(
    name: str,
    *,
    data_dir: str = "",
    image_column: str = "",
    label_column: str = "",
    test_split: str = "test",
    stride: int = 80,
    max_windows: int = 0,
    image_size: int = 0,
) -> Source:
    """Find a data set without reading it.

    Args:
        name: ``digits``, a key of ``KNOWN`` or ``hub:NAME``.
        data_dir: Folder of the data set, or of one folder per data set; empty to search.
        image_column: Column of the images, empty to guess.
        label_column: Column of the labels, empty to guess.
        test_split: Name of the split to test on.
        stride: Text: symbols from one window to the next.
        max_windows: Text: most training windows of one role, 0 for all.
        image_size: Height and width that images are resized to, 0 to leave them as they are.

    Returns:
        The source. On the hub nothing has been asked yet.

    Raises:
        FedhetError: Unknown name, or a folder that is missing or lacks files.
    """
    if name == "digits":
        return Source(name=name, kind="digits", place="scikit-learn", image_size=image_size)
    known = KNOWN.get(name, Known(hub_id=name[4:] if name.startswith("hub:") else ""))
    if not known.hub_id.strip("/"):
        names = ", ".join(("digits", *KNOWN))
        raise FedhetError(
            "dataset", name, f"no such data set; use one of {names}, or hub:NAME for one of the hub"
        )
    folder = _folder(name, known.hub_id.strip("/").rsplit("/", 1)[-1], data_dir)
    kind: Literal["idx", "parquet", "hub"] = "hub"
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    if folder is not None:
        kind, train, test = split_files(folder, test_split, known)
    return Source(
        name=name,
        kind=kind,
        place=known.hub_id if folder is None else str(folder),
        known=known,
        train=train,
        test=test,
        image_column=image_column,
        label_column=label_column or known.label_column,
        test_split=test_split,
        stride=stride,
        max_windows=max_windows,
        image_size=image_size,
    )


def _folder(name: str, hub_name: str, data_dir: str) -> Path | None:
    """Return the folder of a data set, or None when only the hub is left."""
    names = (hub_name,) if name.startswith("hub:") else (name, hub_name)
    for key, root in (("data-dir", data_dir), ("FEDHET_DATA", os.environ.get("FEDHET_DATA", ""))):
        if not root:
            continue
        base = Path(root).expanduser()
        if not base.is_dir():
            raise FedhetError(key, root, "is not a folder; set it to the folder of the data")
        found = next((base / sub for sub in names if (base / sub).is_dir()), None)
        if found is not None or key == "data-dir":
            return found or base
    if name == "fashion-mnist" and any(DEBIAN_FASHION_MNIST.glob("train-images*")):
        return DEBIAN_FASHION_MNIST
    return None

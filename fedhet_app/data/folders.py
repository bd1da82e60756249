"""Which files of a folder are the training and the test set."""

import re
from pathlib import Path
from typing import Literal

from fedhet_app.errors import FedhetError


def split_files(
    folder: Path, test_split: str
) -> tuple[Literal["idx", "parquet"], tuple[Path, ...], tuple[Path, ...]]:
    """List the files of a data set.

    Args:
        folder: Its folder, laid out as on the hub (``train*.parquet`` there or in ``data/``) or
            with IDX files, plain or gzipped.
        test_split: Name of the split to test on.

    Returns:
        How the folder stores its data, the files of the training set and those of the test set
        (``idx``: images, labels).

    Raises:
        FedhetError: A split or some of its files are missing.
    """
    kind: Literal["idx", "parquet"] = "parquet"
    train, test = _parquet(folder, "train"), _parquet(folder, test_split)
    if not train:
        kind = "idx"
        train = _idx(folder, "train")
        test = _idx(folder, "t10k" if test_split == "test" else test_split)
    if not train:
        raise FedhetError(
            "data-dir",
            str(folder),
            "holds neither train*.parquet (there or in data/) nor train-images-idx3-ubyte[.gz];"
            " set data-dir or FEDHET_DATA to a folder that does",
        )
    if not test:
        raise FedhetError(
            "test-split", test_split, f"{folder} has no {kind} files of that split; name one it has"
        )
    return kind, train, test


def _parquet(folder: Path, split: str) -> tuple[Path, ...]:
    """Return the parquet files of one split, checked for missing shards."""
    pattern = re.compile(re.escape(split) + r"([-_.\d].*)?\.parquet")
    for base in (folder, folder / "data"):
        files = sorted(path for path in base.glob("*.parquet") if pattern.fullmatch(path.name))
        if files:
            break
    shards = {int(count) for path in files for count in re.findall(r"-of-(\d+)", path.name)}
    if shards and shards != {len(files)}:
        wanted = " or ".join(str(count) for count in sorted(shards))
        raise FedhetError(
            "data-dir",
            str(base),
            f"has {len(files)} files of split {split!r} where their names promise {wanted};"
            " fetch the missing ones or remove the surplus",
        )
    return tuple(files)


def _idx(folder: Path, prefix: str) -> tuple[Path, ...]:
    """Return the image and the label file of one split; of plain and .gz the plain one."""
    images = sorted(folder.glob(f"{prefix}-images*"))
    labels = sorted(folder.glob(f"{prefix}-labels*"))
    if images and not labels:
        missing = f"has {images[0].name} but no {prefix}-labels-idx1-ubyte[.gz]; add that file"
        raise FedhetError("data-dir", str(folder), missing)
    return (images[0], labels[0]) if images else ()

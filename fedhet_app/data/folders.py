"""Which files of a folder are the training and the test set."""

import re
from pathlib import Path
from typing import Literal

from fedhet_app.data.known import Known
from fedhet_app.errors import FedhetError

# Where torchvision and NIST's own archive put EMNIST's files.
_IDX_FOLDERS = ("", "raw", "EMNIST/raw", "gzip")


def split_files(
    folder: Path, test_split: str, known: Known
) -> tuple[Literal["idx", "parquet"], tuple[Path, ...], tuple[Path, ...]]:
    """List the files of a data set.

    Args:
        folder: Its folder, laid out as on the hub (``train*.parquet`` there or in ``data/``; of
            text also ``roles*.parquet``) or with IDX files, plain or gzipped.
        test_split: Name of the split to test on.
        known: What is particular about the data set.

    Returns:
        How the folder stores its data, the files of the training set and those of the test set
        (``idx``: images, labels), none if the test set is to be taken from the training set.

    Raises:
        FedhetError: A split or some of its files are missing.
    """
    kind: Literal["idx", "parquet"] = "parquet"
    train, test = parquet_files(folder, "train"), parquet_files(folder, test_split)
    if known.text:
        train, test = parquet_files(folder, "roles") or train, ()
    elif not train:
        kind = "idx"
        test_name = "t10k" if test_split == "test" and not known.idx_prefix else test_split
        train = idx_files(folder, f"{known.idx_prefix}train")
        test = idx_files(folder, f"{known.idx_prefix}{test_name}")
    if not train:
        idx = f"{known.idx_prefix}train-images-idx3-ubyte[.gz]"
        wanted = "neither roles*.parquet nor train*.parquet (there or in data/)"
        if not known.text:
            wanted = f"neither train*.parquet (there or in data/) nor {idx}"
        remedy = f"holds {wanted}; set data-dir or FEDHET_DATA to a folder that does"
        raise FedhetError("data-dir", str(folder), remedy)
    if not test and not (known.whole and kind == "parquet" and test_split == "test"):
        raise FedhetError(
            "test-split", test_split, f"{folder} has no {kind} files of that split; name one it has"
        )
    return kind, train, test


def parquet_files(folder: Path, split: str) -> tuple[Path, ...]:
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


def idx_files(folder: Path, prefix: str) -> tuple[Path, ...]:
    """Return the image and the label file of one split; of plain and .gz the plain one."""
    for base in (folder / sub for sub in _IDX_FOLDERS):
        images = sorted(base.glob(f"{prefix}-images*"))
        labels = sorted(base.glob(f"{prefix}-labels*"))
        if images and not labels:
            missing = f"has {images[0].name} but no {prefix}-labels-idx1-ubyte[.gz]; add that file"
            raise FedhetError("data-dir", str(base), missing)
        if images:
            return images[0], labels[0]
    return ()

"""Folders that are computed once and mapped by every process afterwards.

An entry appears under its name only when it is complete, by one rename. Processes that compute the
same entry at the same time do so each in a folder of its own; the first rename wins.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError

Scalar = TypeVar("Scalar", bound=np.generic)


def cache_root() -> Path:
    """Return the cache folder: FEDHET_CACHE, else XDG_CACHE_HOME/fedhet, else ~/.cache/fedhet."""
    own = os.environ.get("FEDHET_CACHE", "")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "") or "~/.cache").expanduser() / "fedhet"


def entry(kind: str, name: str, key: str) -> Path:
    """Return the folder of one entry, whether or not it exists; the name is for human readers."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    return cache_root() / kind / f"{readable}-{key[:32]}"


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Hand out an empty folder, and give it the name ``target`` if the block ends well.

    Args:
        target: Folder of the entry.

    Yields:
        The folder to fill. It is removed when the block raises, or when another process was first.

    Raises:
        FedhetError: The cache cannot be written.
    """
    staging = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        staging.mkdir(parents=True)
        yield staging
        try:
            staging.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    except OSError as problem:
        remedy = f"cannot be written ({problem}); set FEDHET_CACHE to a folder with free space"
        raise FedhetError("FEDHET_CACHE", str(cache_root()), remedy) from problem
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def reading(target: Path) -> Iterator[None]:
    """Turn what a damaged entry raises in the block into one error that says how to mend it.

    Raises:
        FedhetError: A file of the entry is missing or damaged.
    """
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, TypeError) as problem:
        remedy = f"this cached folder is damaged ({problem}); delete it, it is made again"
        raise FedhetError("FEDHET_CACHE", str(target), remedy) from problem


def map_array(path: Path, dtype: type[Scalar]) -> NDArray[Scalar]:
    """Map an array file; pages are shared between processes, writes stay private.

    Raises:
        ValueError: The file is damaged, or holds another type.
    """
    array: NDArray[Scalar] = np.load(path, mmap_mode="c", allow_pickle=False)
    if array.dtype != dtype:
        raise ValueError(f"{path.name} holds {array.dtype}")
    return array


def write_chunks(
    path: Path,
    shape: tuple[int, ...],
    chunks: Iterable[NDArray[Any]],
    dtype: type[np.generic] = np.uint8,
) -> None:
    """Write the array of a given shape whose rows come in chunks, never holding it whole.

    Args:
        path: The .npy file.
        shape: Shape of the whole.
        chunks: Arrays (n, ...) whose n sum to ``shape[0]``.
        dtype: Theirs.
    """
    with path.open("wb") as file:
        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk).data)

"""What a reader hands over: undecoded labels, inputs in chunks; and the readers of plain arrays."""

import gzip
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from fedhet_app.data.holdout import every_fifth
from fedhet_app.data.images import resize
from fedhet_app.data.sources import Source
from fedhet_app.errors import FedhetError, one_line

_CHUNK = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class RawSplit:
    """One split as its source stores it.

    Attributes:
        shape: (N, H, W, C) of images, (N, L) of text, (N, F) of rows of numbers.
        chunks: uint8 arrays (n, ...) of that shape whose n sum to N; may be walked only once.
            Rows of numbers are float32.
        labels: (N,) integers or strings.
        class_names: Names of the labels 0..K-1 where the source declares them.
        fine: (N,) labels of finer classes, where the source has such.
        groups: (N,) natural client of each example, 0..G-1 in the training set, where the source
            tells them apart; of a test set only where each has training examples.
        held_out: Whether it is a test set taken here from the training set.
        left_out: Natural clients of the source that have too little to train on.
    """

    shape: tuple[int, ...]
    chunks: Iterable[NDArray[Any]]
    labels: NDArray[np.int64] | NDArray[np.str_]
    class_names: tuple[str, ...] | None = None
    fine: NDArray[np.int64] | NDArray[np.str_] | None = None
    groups: NDArray[np.int64] | None = None
    held_out: bool = False
    left_out: tuple[str, ...] = ()


def in_memory(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> RawSplit:
    """Return the raw split of grey images (N, H, W) that are already decoded."""
    chunks = (images[start : start + _CHUNK, ..., None] for start in range(0, len(images), _CHUNK))
    return RawSplit(shape=(*images.shape, 1), chunks=chunks, labels=labels)


def upright(raw: RawSplit) -> RawSplit:
    """Swap the rows and columns of every image back."""
    count, width, height, channels = raw.shape
    chunks = (chunk.swapaxes(1, 2) for chunk in raw.chunks)
    return replace(raw, shape=(count, height, width, channels), chunks=chunks)


def resized(raw: RawSplit, size: int) -> RawSplit:
    """Resize every image of one channel to ``size`` x ``size``."""

    def smaller(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.asarray(resize(PIL.Image.fromarray(image), size))

    chunks = (
        np.stack([smaller(image) for image in chunk[..., 0]])[..., None] for chunk in raw.chunks
    )
    return replace(raw, shape=(raw.shape[0], size, size, 1), chunks=chunks)


def read_digits() -> tuple[RawSplit, RawSplit]:
    """Read scikit-learn's 1,797 digits, 8x8, their values 0..16 times 15.

    Of each class every fifth image is for testing.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (np.asarray(bunch.images) * 15).astype(np.uint8)
    labels = np.asarray(bunch.target, dtype=np.int64)
    test = every_fifth(labels)
    train, held_out = (in_memory(images[part], labels[part]) for part in (~test, test))
    return train, replace(held_out, held_out=True)


def read_idx(source: Source) -> tuple[RawSplit, RawSplit]:
    """Read the training and the test set from IDX files, plain or gzipped.

    Raises:
        FedhetError: A file that is damaged, or files that do not belong together.
    """
    splits = []
    for images_path, labels_path in (source.train, source.test):
        images, labels = read_idx_file(images_path, 3), read_idx_file(labels_path, 1)
        if len(images) != len(labels):
            remedy = f"{len(labels)} labels for the {len(images)} images of {images_path.name}"
            raise FedhetError("data-dir", str(labels_path), f"{remedy}; fetch both again")
        raw = in_memory(images, labels.astype(np.int64))
        splits.append(replace(raw, class_names=source.known.class_names))
    train, test = splits
    if train.shape[1:] != test.shape[1:]:
        sizes = " and ".join(f"{s.shape[1]}x{s.shape[2]}" for s in splits)
        remedy = f"training and test images differ in size ({sizes}); fetch them again"
        raise FedhetError("data-dir", source.place, remedy)
    return train, test


def read_idx_file(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes: magic 0 0 8 ndim, ndim big-endian sizes, the bytes."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as problem:
        remedy = f"cannot be read ({one_line(problem)}); fetch the file again"
        raise FedhetError("data-dir", str(path), remedy) from problem
    start = 4 + 4 * ndim
    if content[:4] != bytes((0, 0, 8, ndim)) or len(content) < start:
        remedy = f"is no IDX file of bytes with {ndim} dimensions; fetch the file again"
        raise FedhetError("data-dir", str(path), remedy)
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", ndim, 4))
    if len(content) - start != math.prod(shape):
        remedy = f"is truncated: {len(content) - start} of {math.prod(shape)} bytes of data"
        raise FedhetError("data-dir", str(path), f"{remedy}; fetch the file again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)

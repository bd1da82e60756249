"""Writer of a decoded data set: plain arrays and what is known of them."""

import hashlib
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.cache import map_array, write_chunks
from fedhet_app.data.labels import classes_of, fine_classes
from fedhet_app.data.raw import RawSplit, read_digits, read_idx, resized, upright
from fedhet_app.data.sources import Source

_CHUNK = 4096


def write(source: Source, folder: Path) -> None:
    """Decode a source into the files that ``load_dataset`` maps.

    Args:
        source: Where the data set is.
        folder: Empty folder for inputs, labels, natural clients and ``meta.json``.

    Raises:
        FedhetError: The source cannot be read, or its two splits do not fit together.
    """
    train, test = _read(source)
    classes = classes_of(train, test, source)
    digest = hashlib.sha256(str(classes.count).encode())
    for part, raw, labels in (("train", train, classes.train), ("test", test, classes.test)):
        write_chunks(folder / f"{part}-inputs.npy", raw.shape, raw.chunks)
        np.save(folder / f"{part}-labels.npy", labels)
        digest.update(str(raw.shape).encode())
        digest.update(map_array(folder / f"{part}-inputs.npy", np.uint8).data)
        digest.update(labels.data)
    for part, raw in (("train", train), ("test", test)):
        if raw.groups is not None:
            np.save(folder / f"{part}-groups.npy", raw.groups)
            digest.update(raw.groups.data)
    fine = fine_classes(train, test)
    for part, numbers in fine.items():
        np.save(folder / f"{part}-fine.npy", numbers)
        digest.update(numbers.data)
    mean, std = np.empty(0), np.empty(0)
    if not source.known.text:
        mean, std = _moments(map_array(folder / "train-inputs.npy", np.uint8))
    meta = {
        "num-classes": classes.count,
        "class-names": classes.names,
        "vocabulary": classes.count if source.known.text else 0,
        "has-groups": train.groups is not None,
        "has-test-groups": test.groups is not None,
        "has-fine": bool(fine),
        "left-out": train.left_out,
        "mean": mean.tolist(),
        "std": std.tolist(),
        "fingerprint": digest.hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta))


def _read(source: Source) -> tuple[RawSplit, RawSplit]:
    if source.kind == "digits":
        return _sized(source, *read_digits())
    # Imported here: ``datasets`` takes seconds, and only tables and the hub need it.
    if source.kind == "hub" and source.known.idx_prefix:
        from fedhet_app.data.hub import fetch_idx

        source = fetch_idx(source)
    if source.kind == "idx":
        train, test = _sized(source, *read_idx(source))
    elif source.known.text:
        from fedhet_app.data.roles import read_roles

        train, test = read_roles(source)
    else:
        from fedhet_app.data.tables import read_tables

        train, test = read_tables(source)
    return (upright(train), upright(test)) if source.known.transposed else (train, test)


def _sized(source: Source, train: RawSplit, test: RawSplit) -> tuple[RawSplit, RawSplit]:
    """Return both splits as large as the source is to be; tables come so."""
    size = source.image_size
    return (resized(train, size), resized(test, size)) if size else (train, test)


def _moments(images: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation (C,) of the images (N, H, W, C), from exact counts."""
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for start in range(0, len(images), _CHUNK):
        for channel in range(channels):
            values = images[start : start + _CHUNK, ..., channel].ravel()
            counts[channel] += np.bincount(values, minlength=256)
    levels = np.arange(256)
    mean = counts @ levels / counts.sum(axis=1)
    variance = (counts * (levels - mean[:, None]) ** 2).sum(axis=1) / counts.sum(axis=1)
    return mean, np.sqrt(np.where(variance > 0, variance, 1.0))

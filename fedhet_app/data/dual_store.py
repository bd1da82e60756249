"""Writer of a data set under dual heterogeneity: plain arrays, client after client."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.cache import write_chunks
from fedhet_app.data.datasets import Dataset
from fedhet_app.data.deal import Dual, Hand, deal, draw_pool
from fedhet_app.data.shifts import (
    COMPONENTS,
    client_offset,
    draw_permutations,
    shift_images,
    to_colour,
)

_CHUNK = 4096


def write(source: Dataset, dual: Dual, folder: Path) -> None:
    """Deal out and shift a data set, into the files that ``dual_dataset`` maps.

    Args:
        source: The data set as it is, of images.
        dual: The clients and what tells them apart.
        folder: Empty folder for the files.

    Raises:
        FedhetError: The data set is too small.
    """
    labels = np.concatenate([source.train.labels, source.test.labels])
    pool = draw_pool(len(labels), dual)
    train, test, weights = deal(_dealt_by(source, dual)[pool], dual)
    permutations = draw_permutations(dual.num_clients, source.num_classes, dual.seed)
    example = to_colour(_images(source, pool[:1]))
    height, width = example.shape[1:3]
    offsets = [
        client_offset(client, height, width, dual.amplitude) for client in range(dual.num_clients)
    ]
    arrays: dict[str, NDArray[Any]] = {"permutations": permutations, "mixing-weights": weights}
    arrays["shift-example"] = _examples(example, offsets, _grey(source))
    for part, hand in (("train", train), ("test", test)):
        shape = (len(hand.rows), *example.shape[1:])
        chunks = _chunks(source, pool[hand.rows], hand, offsets)
        write_chunks(folder / f"{part}-inputs.npy", shape, chunks)
        original = labels[pool[hand.rows]]
        arrays[f"{part}-labels"] = permutations[hand.groups, hand.components, original]
        arrays[f"{part}-groups"] = hand.groups
        arrays[f"{part}-components"] = hand.components
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "meta.json").write_text(json.dumps({"fingerprint": _fingerprint(folder)}))


def _dealt_by(source: Dataset, dual: Dual) -> NDArray[np.int64]:
    """Return the classes (n,) of training and test set by which the images are dealt out."""
    splits = (source.train, source.test)
    fine = [split.fine for split in splits if dual.fine and split.fine is not None]
    return np.concatenate(fine or [split.labels for split in splits])


def _images(source: Dataset, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return images (n, H, W, C) of the training set followed by the test set."""
    size = len(source.train.labels)
    images = np.empty((len(rows), *source.train.inputs.shape[1:]), dtype=np.uint8)
    trained = rows < size
    images[trained] = source.train.inputs[rows[trained]]
    images[~trained] = source.test.inputs[rows[~trained] - size]
    return images


def _grey(source: Dataset) -> bool:
    return bool(source.train.inputs.shape[-1] == 1)


def _chunks(
    source: Dataset, rows: NDArray[np.int64], hand: Hand, offsets: list[NDArray[np.int16]]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the shifted images of a hand in its order, few enough at a time for any data set."""
    for client, offset in enumerate(offsets):
        own = np.flatnonzero(hand.groups == client)
        for start in range(0, len(own), _CHUNK):
            chunk = own[start : start + _CHUNK]
            images = to_colour(_images(source, rows[chunk]))
            yield shift_images(images, hand.components[chunk], offset=offset, grey=_grey(source))


def _examples(
    image: NDArray[np.uint8], offsets: list[NDArray[np.int16]], grey: bool
) -> NDArray[np.uint8]:
    """Return one image (1, H, W, 3) as each client and component has it, (m, 2, H, W, 3)."""
    images, components = image.repeat(COMPONENTS, axis=0), np.arange(COMPONENTS)
    return np.stack(
        [shift_images(images, components, offset=offset, grey=grey) for offset in offsets]
    )


def _fingerprint(folder: Path) -> str:
    """Return the hexadecimal hash of all arrays of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()

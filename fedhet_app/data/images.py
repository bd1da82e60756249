"""From encoded images to uint8 arrays of one size and one number of channels."""

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError, one_line

Cells = Iterable[dict[str, dict[str, Any]]]

_GREY_MODES = ("1", "L", "LA", "La")
_CHUNK = 1024


def resize(image: PIL.Image.Image, size: int) -> PIL.Image.Image:
    """Return an image, of an oblong one the middle, as ``size`` x ``size``.

    Bilinear, with antialiasing.
    """
    return PIL.ImageOps.fit(image, (size, size), PIL.Image.Resampling.BILINEAR)


def scan(
    splits: list[Cells], wheres: list[str], column: str, resized: int
) -> tuple[tuple[int, int], int]:
    """Read the headers of all images.

    Args:
        splits: Rows ``{column: {"bytes", "path"}}`` of each split.
        wheres: What to call each split in messages.
        column: Name of the image column.
        resized: Size that all will have, 0 where they stay as they are.

    Returns:
        The common size (H, W) once they are resized, and the number of channels: 1 if every image
        is grey, else 3.

    Raises:
        FedhetError: An image does not open, has more than 8 bits a channel, or another size.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    modes: set[str] = set()
    for cells, where in zip(splits, wheres, strict=True):
        for index, row in enumerate(cells):
            image = _open(row[column], index, where, column)
            sizes[image.size] += 1
            modes.add(image.mode)
    deep = sorted(mode for mode in modes if mode[0] in "IF")
    if deep:
        remedy = f"images of mode {deep[0]} have more than 8 bits; convert them to 8 bits"
        raise FedhetError("image-column", column, remedy)
    if len(sizes) > 1 and not resized:
        common = ", ".join(f"{w}x{h} ({count} images)" for (w, h), count in sizes.most_common(3))
        more = f" and {len(sizes) - 3} more" if len(sizes) > 3 else ""
        remedy = (
            f"the images have {len(sizes)} sizes: {common}{more}; set image-size to resize them"
        )
        raise FedhetError("image-column", column, remedy)
    if not sizes:
        raise FedhetError("image-column", column, f"no images in {' and '.join(wheres)}")
    width, height = (resized, resized) if resized else next(iter(sizes))
    return (height, width), 1 if modes <= set(_GREY_MODES) else 3


def decode(
    cells: Cells, where: str, column: str, channels: int, resized: int
) -> Iterator[NDArray[np.uint8]]:
    """Decode one split.

    Args:
        cells: Rows ``{column: {"bytes", "path"}}``.
        where: What to call the split in messages.
        column: Name of the image column.
        channels: 1 for grey, 3 for red, green and blue.
        resized: Size that all are to have, 0 to leave them as they are.

    Yields:
        Chunks (n, H, W, C) in the order of the rows.

    Raises:
        FedhetError: An image does not decode.
    """
    chunk: list[NDArray[np.uint8]] = []
    for index, row in enumerate(cells):
        image = _open(row[column], index, where, column)
        try:
            plain = image.convert("L" if channels == 1 else "RGB")
            pixels = np.asarray(resize(plain, resized) if resized else plain)
        except Exception as problem:
            raise _undecodable(row[column], index, where, column, problem) from problem
        chunk.append(pixels.reshape(*pixels.shape[:2], channels))
        if len(chunk) == _CHUNK:
            yield np.stack(chunk)
            chunk = []
    if chunk:
        yield np.stack(chunk)


def _open(cell: dict[str, Any], index: int, where: str, column: str) -> PIL.Image.Image:
    """Open one image without decoding its pixels, turned as its camera says."""
    # The decoders of PIL raise errors of many classes for damaged bytes.
    try:
        encoded = cell["bytes"]
        image = PIL.Image.open(cell["path"] if encoded is None else io.BytesIO(encoded))
        PIL.ImageOps.exif_transpose(image, in_place=True)
    except Exception as problem:
        raise _undecodable(cell, index, where, column, problem) from problem
    return image


def _undecodable(
    cell: dict[str, Any] | None, index: int, where: str, column: str, problem: Exception
) -> FedhetError:
    file = cell["path"] if cell and cell["bytes"] is None else None
    named = file or f"image {index} of {where}"
    remedy = f"{named} does not decode ({one_line(problem)}); replace or remove it"
    return FedhetError("image-column", column, remedy)

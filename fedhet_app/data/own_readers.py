"""Readers of a client's own files: each gives the training set, and the test set where there is.

They take what the run says of shape and size: images are resized where it says so, grey images
become colour ones where it wants those, and nothing else is changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.csv
from numpy.typing import NDArray

from fedhet_app.data.images import Cells, decode, scan
from fedhet_app.data.own_files import KEY, Kind, OwnFiles
from fedhet_app.data.raw import RawSplit, in_memory, read_idx_file, resized
from fedhet_app.data.tables import (
    LABEL_NAMES,
    choose,
    image_cells,
    image_column_of,
    label_column_of,
    labels_of,
    read_parquet,
)
from fedhet_app.errors import FedhetError, one_line
from fedhet_app.facts import Facts


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a client's files are to be read.

    Attributes:
        facts: What the run wants.
        image_size: Height and width that images are resized to, 0 to leave them as they are.
        image_column: Column of the images in parquet, empty to guess.
        label_column: Column of the labels in parquet or CSV, empty to guess.
    """

    facts: Facts
    image_size: int = 0
    image_column: str = ""
    label_column: str = ""


Splits = list[RawSplit]


def read(files: OwnFiles, how: Reading) -> tuple[Splits, tuple[str, ...]]:
    """Read a client's files.

    Returns:
        One split, or two; and the names of the columns of a table of numbers.

    Raises:
        FedhetError: They cannot be read, or hold other data than the run wants.
    """
    tabular = len(how.facts.input_shape) == 1
    if tabular != (files.kind == "csv"):
        has = "rows of numbers" if files.kind == "csv" else "images"
        wants = f"rows of {how.facts.input_shape[0]} numbers" if tabular else "images"
        remedy = f"holds {has}, and the run takes {wants}; name a folder with those"
        raise FedhetError(KEY, str(files.root), remedy)
    if files.kind == "csv":
        return _read_csv(files, how)
    return _READERS[files.kind](files, how), ()


def _read_images(files: OwnFiles, how: Reading) -> Splits:
    parts = [files.train, files.test] if files.test else [files.train]
    cells: list[Cells] = [
        [{"image": {"bytes": None, "path": str(path)}} for path in part] for part in parts
    ]
    names = [
        [path.relative_to(base).parts[0] for path in part]
        for part, base in zip(parts, files.bases, strict=False)
    ]
    wheres = [str(base) for base in files.bases[: len(cells)]]
    size, channels = scan(cells, wheres, "image", how.image_size)
    labels = [np.array(each, dtype=np.str_) for each in names]
    return _decoded(cells, wheres, "image", labels, size, channels, how)


def _read_tables(files: OwnFiles, how: Reading) -> Splits:
    parts = [files.train, files.test] if files.test else [files.train]
    tables = [read_parquet(part) for part in parts]
    images = image_column_of(tables[0], how.image_column)
    column = label_column_of(tables[0], how.label_column)
    cells = [image_cells(table, images) for table in tables]
    wheres = [str(part[0].parent) for part in parts]
    size, channels = scan(cells, wheres, images, how.image_size)
    read = [labels_of(table, column) for table in tables]
    splits = _decoded(cells, wheres, images, [r[0] for r in read], size, channels, how)
    return [
        replace(split, class_names=names) for split, (_, names) in zip(splits, read, strict=True)
    ]


def _decoded(
    cells: list[Cells],
    wheres: list[str],
    column: str,
    labels: Sequence[NDArray[np.int64] | NDArray[np.str_]],
    size: tuple[int, int],
    channels: int,
    how: Reading,
) -> Splits:
    """Return the splits of encoded images, in as many channels as the run wants."""
    wanted = how.facts.input_shape[0]
    channels = max(channels, wanted)
    return [
        RawSplit(
            shape=(len(own), *size, channels),
            chunks=decode(cell, where, column, channels, how.image_size),
            labels=own,
        )
        for cell, where, own in zip(cells, wheres, labels, strict=True)
    ]


def _read_idx(files: OwnFiles, how: Reading) -> Splits:
    splits = []
    for images_path, labels_path in (part for part in (files.train, files.test) if part):
        images, labels = read_idx_file(images_path, 3), read_idx_file(labels_path, 1)
        if len(images) != len(labels):
            remedy = f"{len(labels)} labels for the {len(images)} images of {images_path.name}"
            raise FedhetError(KEY, str(labels_path), f"{remedy}; mend one of the two")
        raw = in_memory(images, labels.astype(np.int64))
        splits.append(resized(raw, how.image_size) if how.image_size else raw)
    return [_colour(split) if how.facts.input_shape[0] == 3 else split for split in splits]


def _colour(raw: RawSplit) -> RawSplit:
    chunks = (chunk.repeat(3, axis=3) for chunk in raw.chunks)
    return replace(raw, shape=(*raw.shape[:3], 3), chunks=chunks)


def _read_csv(files: OwnFiles, how: Reading) -> tuple[Splits, tuple[str, ...]]:
    columns: tuple[str, ...] = ()
    splits = []
    for path in (*files.train, *files.test):
        try:
            table = pyarrow.csv.read_csv(path)
        except Exception as problem:  # Arrow has no common error class
            remedy = f"cannot be read as CSV with a header line ({one_line(problem)}); mend it"
            raise FedhetError(KEY, str(path), remedy) from problem
        names = list(table.column_names)
        if not len(table) or len(set(names)) < len(names):
            wrong = "has no rows" if not len(table) else "has several columns of one name"
            raise FedhetError(KEY, str(path), f"{wrong}; mend it")
        guesses = [[name for name in names if name == "label"]]
        guesses.append([name for name in names if name.lower() in ("label", *LABEL_NAMES)])
        label = choose("label-column", how.label_column, names, guesses)
        columns = columns or tuple(name for name in names if name != label)
        missing = sorted({*columns, label} - {*names})
        if missing:
            remedy = f"lacks the columns {', '.join(missing)} of {files.train[0].name}; add them"
            raise FedhetError(KEY, str(path), remedy)
        rows = np.empty((len(table), len(columns)), dtype=np.float32)
        for place, name in enumerate(columns):
            rows[:, place] = _numbers(table[name], name, path)
        splits.append(
            RawSplit(shape=rows.shape, chunks=[rows], labels=_classes(table[label], label, path))
        )
    return splits, columns


def _numbers(column: pyarrow.ChunkedArray, name: str, path: Path) -> NDArray[np.float64]:
    kind = column.type
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
        remedy = f"column {name!r} holds {kind}, not numbers; encode it as numbers, or remove it"
        raise FedhetError(KEY, str(path), remedy)
    values: NDArray[np.float64] = column.to_numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
    if len(wrong):
        remedy = f"row {wrong[0] + 1} has no finite number in column {name!r}; fill it in"
        raise FedhetError(KEY, str(path), f"{remedy}, or remove the row")
    return values


def _classes(
    column: pyarrow.ChunkedArray, name: str, path: Path
) -> NDArray[np.int64] | NDArray[np.str_]:
    kind, where = column.type, column.to_pylist()
    if None in where:
        remedy = f"row {where.index(None) + 1} has no {name!r}; fill it in, or remove the row"
        raise FedhetError(KEY, str(path), remedy)
    if pyarrow.types.is_integer(kind):
        return np.array(where, dtype=np.int64)
    if pyarrow.types.is_string(kind):
        return np.array(where, dtype=np.str_)
    remedy = f"holds {kind}, neither whole numbers nor text; name another column"
    raise FedhetError("label-column", name, remedy)


_READERS: dict[Kind, Callable[[OwnFiles, Reading], Splits]] = {
    "images": _read_images,
    "idx": _read_idx,
    "parquet": _read_tables,
}

"""Reader of tables with an image column: local parquet files and the HuggingFace hub."""

from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray

from fedhet_app.data.holdout import every_fifth
from fedhet_app.data.hub import read_hub
from fedhet_app.data.images import decode, scan
from fedhet_app.data.natural import clients_of
from fedhet_app.data.raw import RawSplit
from fedhet_app.data.sources import Source
from fedhet_app.errors import FedhetError, one_line

LABEL_NAMES = ("class", "target", "y")


def read_tables(source: Source) -> tuple[RawSplit, RawSplit]:
    """Read the training and the test set of a ``parquet`` or a ``hub`` source.

    Of a set in one piece every fifth image of each natural client is for testing.

    Raises:
        FedhetError: The source cannot be reached or read, a column cannot be found or guessed, or
            an image does not decode.
    """
    if source.kind == "parquet":
        tables = [read_parquet(files) for files in (source.train, source.test) if files]
    else:
        tables = read_hub(source)
    groups = clients_of(tables, source)
    whole = len(tables) == 1
    if whole and groups[0] is not None:
        test = every_fifth(groups[0])
        tables = [tables[0].select(np.flatnonzero(part)) for part in (~test, test)]
        groups = [groups[0][~test], groups[0][test]]
    image_column = image_column_of(tables[0], source.image_column)
    label_column = label_column_of(tables[0], source.label_column)
    cells = [image_cells(table, image_column) for table in tables]
    wheres = [f"the {name} split of {source.place}" for name in ("train", source.test_split)]
    (height, width), channels = scan(cells, wheres, image_column, source.image_size)
    splits = []
    for table, cell, where, clients in zip(tables, cells, wheres, groups, strict=True):
        labels, class_names = labels_of(table, label_column)
        splits.append(
            RawSplit(
                shape=(len(labels), height, width, channels),
                chunks=decode(cell, where, image_column, channels, source.image_size),
                labels=labels,
                class_names=class_names,
                fine=_fine(table, source),
                groups=clients,
            )
        )
    return splits[0], replace(splits[1], held_out=whole)


def read_parquet(files: tuple[Path, ...]) -> datasets.Dataset:
    """Read parquet files as one table.

    Raises:
        FedhetError: A file that is damaged, or has other columns than the one before it.
    """
    parts = []
    for path in files:
        try:
            # Without partitioning=None a folder called "a=b" on the way would become a column.
            table = pyarrow.parquet.read_table(path, partitioning=None)
            parts.append(datasets.Dataset(table))
            joined = datasets.concatenate_datasets(parts)
        # Arrow has no common error class, and damaged bytes can raise any of its errors.
        except Exception as problem:
            remedy = f"cannot be read ({one_line(problem)}); fetch the file again"
            raise FedhetError("data-dir", str(path), remedy) from problem
    return joined


def image_column_of(table: datasets.Dataset, wanted: str) -> str:
    """Return the column of the images: the wanted one, or else the only one there is."""
    features = table.features
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    # What other writers of parquet make of an image: its bytes and its path, without a type.
    structs = [n for n, k in features.items() if isinstance(k, dict) and {"bytes", "path"} == {*k}]
    return choose("image-column", wanted, list(features), [images, structs])


def label_column_of(table: datasets.Dataset, wanted: str) -> str:
    """Return the column of the labels: the wanted one, or else the only one like it."""
    features = table.features
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    named = [
        name
        for name, kind in features.items()
        if ("label" in name.lower() or name.lower() in LABEL_NAMES)
        and getattr(kind, "dtype", "").startswith(("int", "uint", "string", "large_string"))
    ]
    exact = [name for name in features if name == "label"]
    return choose("label-column", wanted, list(features), [exact, classes, named])


def choose(key: str, wanted: str, columns: list[str], guesses: list[list[str]]) -> str:
    """Return the wanted column, or the first guess that names exactly one."""
    if wanted and wanted not in columns:
        remedy = f"no such column; the columns are {', '.join(columns)}; set {key} to one of them"
        raise FedhetError(key, wanted, remedy)
    for guess in guesses:
        if not wanted and len(guess) == 1:
            return guess[0]
    if not wanted:
        remedy = f"cannot be guessed; set it to one of the columns {', '.join(columns)}"
        raise FedhetError(key, wanted, remedy)
    return wanted


def _fine(table: datasets.Dataset, source: Source) -> NDArray[np.int64] | NDArray[np.str_] | None:
    """Return the labels (N,) of the finer classes of one split, where the data set has such."""
    column = source.known.fine_column
    if not column:
        return None
    if column not in table.column_names:
        have = ", ".join(table.column_names)
        remedy = f"has no column {column!r} of its finer classes, only {have}; rename the one it is"
        raise FedhetError("data-dir", source.place, remedy)
    return labels_of(table, column)[0]


def image_cells(table: datasets.Dataset, column: str) -> datasets.Dataset:
    """Return the images alone, still encoded: rows ``{column: {"bytes", "path"}}``."""
    try:
        return table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    except Exception as problem:
        remedy = f"holds no encoded images ({one_line(problem)}); name another column"
        raise FedhetError("image-column", column, remedy) from problem


def labels_of(
    table: datasets.Dataset, column: str
) -> tuple[NDArray[np.int64] | NDArray[np.str_], tuple[str, ...] | None]:
    """Return the labels (N,) of one split and the names its column declares."""
    if column not in table.column_names:
        have = ", ".join(table.column_names)
        raise FedhetError("label-column", column, f"missing from the test split, which has {have}")
    names = getattr(table.features[column], "names", None)
    labels = np.asarray(table.select_columns([column])[column][:])
    if len(labels) and (labels.ndim != 1 or labels.dtype.kind not in "iubU"):
        remedy = "has values that are missing or neither integers nor text; name another column"
        raise FedhetError("label-column", column, remedy)
    if labels.dtype.kind != "U":
        labels = labels.astype(np.int64)
    return labels, None if names is None else tuple(names)

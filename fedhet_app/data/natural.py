"""Natural clients of a table: a column says whose each example is."""

import datasets
import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.sources import Source
from fedhet_app.errors import FedhetError


def clients_of(tables: list[datasets.Dataset], source: Source) -> list[NDArray[np.int64] | None]:
    """Return the natural client of each example of each table, numbered in their ids' sorted order.

    Args:
        tables: The training set, and the test set where that is a table of its own.
        source: Where they are.

    Returns:
        An array (N,) for each table. ``None`` for all where the data set has no natural clients;
        for the test set also where its table lacks the column, or has a client that the training
        set lacks: a model can be tested on those examples, but they are nobody's.

    Raises:
        FedhetError: The training set lacks the column, or a row lacks its value.
    """
    column = source.known.client_column
    if not column:
        return [None] * len(tables)
    if column not in tables[0].column_names:
        have = ", ".join(tables[0].column_names)
        remedy = (
            f"has no column {column!r} of its clients, only {have}; whatever the partition, rename"
            f" the column that tells them apart to {column!r}, for example by pyarrow's"
            " rename_columns"
        )
        raise FedhetError("data-dir", source.place, remedy)
    found, numbers = np.unique(_ids(tables[0], source, ""), return_inverse=True)
    groups: list[NDArray[np.int64] | None] = [numbers.astype(np.int64)]
    for table in tables[1:]:
        groups.append(None)
        if column in table.column_names:
            ids = _ids(table, source, f" of the {source.test_split} split")
            if np.isin(ids, found).all():
                groups[-1] = np.searchsorted(found, ids).astype(np.int64)
    return groups


def _ids(table: datasets.Dataset, source: Source, where: str) -> NDArray[np.int64 | np.str_]:
    """Return the column (N,) of a table as it is."""
    column = source.known.client_column
    ids = table.select_columns([column])[column][:]
    if None in ids:
        remedy = f"row {ids.index(None)}{where} has no {column!r}; fill it in or remove the row"
        raise FedhetError("data-dir", source.place, remedy)
    return np.asarray(ids)

"""Reader of plays: the roles that speak most, each a natural client.

A table has one row per role (columns ``role_id`` and ``text``), or, as the hub's copy of LEAF's
Shakespeare, one row per window (``character_id``, ``x``, ``y``), whose windows of stride 1 are put
together to the text again: windows, split and gap are then the same for both.
"""

from dataclasses import replace

import datasets
import numpy as np
import pyarrow
import pyarrow.compute

from fedhet_app.data.hub import read_hub
from fedhet_app.data.raw import RawSplit
from fedhet_app.data.sources import Source
from fedhet_app.data.tables import read_parquet
from fedhet_app.data.windows import LENGTH, SYMBOLS, Windows, check_symbols, cut, join, normalise
from fedhet_app.errors import FedhetError

_ROLES = 20


def read_roles(source: Source) -> tuple[RawSplit, RawSplit]:
    """Read the twenty roles with most text, ties by name; client 0 is the one with most.

    Of the twenty, one without a single training window is left out, and named in ``left_out`` of
    the training set; one without a test window only trains.

    Raises:
        FedhetError: The source cannot be reached or read, its columns are others, it holds no role
            or none that is long enough, or a role has symbols outside the vocabulary.
    """
    table = read_parquet(source.train) if source.kind == "parquet" else read_hub(source)[0]
    texts = {role: normalise(text) for role, text in _texts(table, source).items()}
    ranked = sorted(texts, key=lambda role: (-len(texts[role]), role))
    chosen = {role: texts[role] for role in ranked[:_ROLES]}
    check_symbols(chosen, source.place)
    parts = {role: cut(text, source.stride, source.max_windows) for role, text in chosen.items()}
    short = [role for role, (train, _) in parts.items() if not len(train.labels)]
    kept = [part for role, part in parts.items() if role not in short]
    if not any(len(test.labels) for _, test in kept):
        longest = len(texts[ranked[0]])
        remedy = f"its longest role has {longest} symbols; one needs {5 * (LENGTH + 1)} to be split"
        raise FedhetError("data-dir", source.place, f"{remedy} into training and test windows")
    groups = np.repeat(np.arange(len(kept)), [len(train.labels) for train, _ in kept])
    train, test = (join(list(side)) for side in zip(*kept, strict=True))
    raw = replace(_raw(train), groups=groups.astype(np.int64), left_out=tuple(short))
    return raw, replace(_raw(test), held_out=True)


def _raw(windows: Windows) -> RawSplit:
    return RawSplit(
        shape=windows.inputs.shape,
        chunks=[windows.inputs],
        labels=windows.labels,
        class_names=tuple(SYMBOLS),
    )


def _texts(table: datasets.Dataset, source: Source) -> dict[str, str]:
    """Return the text of each role."""
    for columns, read in ((("role_id", "text"), _spoken), (("character_id", "x", "y"), _rebuilt)):
        if set(columns) <= set(table.column_names):
            arrow = table.select_columns(list(columns)).with_format("arrow")[:]
            if arrow[columns[0]].null_count == arrow.num_rows:
                remedy = "its table holds no roles; set data-dir to a folder of one that does"
                raise FedhetError("data-dir", source.place, remedy)
            for name in columns:
                kind = arrow.schema.field(name).type
                strings = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
                if arrow[name].null_count or not strings:
                    remedy = f"column {name!r} has values that are missing or no text; mend them"
                    raise FedhetError("data-dir", source.place, remedy)
            return read(arrow, source)
    remedy = (
        f"has the columns {', '.join(table.column_names)}; it needs 'role_id' (who speaks) and"
        " 'text' (all that the role says): rename yours, for example by pyarrow's rename_columns"
    )
    raise FedhetError("data-dir", source.place, remedy)


def _spoken(table: pyarrow.Table, source: Source) -> dict[str, str]:
    """Return the texts of a table of roles; rows of the same role follow each other."""
    texts: dict[str, list[str]] = {}
    for role, text in zip(*(table[name].to_pylist() for name in ("role_id", "text")), strict=True):
        texts.setdefault(role, []).append(text)
    return {role: "\n".join(parts) for role, parts in texts.items()}


def _rebuilt(table: pyarrow.Table, source: Source) -> dict[str, str]:
    """Return the texts of a table of windows x with their next symbols y, in order of each role."""
    roles = table["character_id"].combine_chunks().dictionary_encode()
    last = pyarrow.compute.utf8_slice_codeunits(table["x"], start=-1).to_numpy()
    following = table["y"].to_numpy()
    order = np.argsort(roles.indices.to_numpy(), kind="stable")
    counts = np.bincount(roles.indices.to_numpy(), minlength=len(roles.dictionary))
    texts = {}
    for role, rows in zip(
        roles.dictionary.to_pylist(), np.split(order, np.cumsum(counts)[:-1]), strict=True
    ):
        if not np.array_equal(last[rows[1:]], following[rows[:-1]]):
            remedy = f"the windows of {role!r} do not follow each other; keep them in their order"
            raise FedhetError("data-dir", source.place, remedy)
        texts[role] = table["x"][int(rows[0])].as_py() + "".join(following[rows])
    return texts

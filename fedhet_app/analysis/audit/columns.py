"""The variables of an audit: per client its estimate, width, label skew, capacity and size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.results import CLIENTS, PARTITION

ESTIMATE, WIDTH, TV, CAPACITY, EXAMPLES = "estimate", "width", "TV", "capacity", "examples"

Rows = Sequence[Mapping[str, Any]]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ClientValues:
    """One variable, a value per client, shape (N,): NaN for a client without.

    ``server_round`` is the round the values are of, 0 where they are means over rounds;
    ``note`` says what they stand in for, ``missing`` why there are none at all.
    """

    values: Values
    server_round: int = 0
    note: str = ""
    missing: str = ""


def variables_of(rows: Rows, partition: Mapping[str, Any], column: str) -> dict[str, ClientValues]:
    """Return the variables of a run by name, over clients in the order of partition ids.

    Args:
        rows: Its ``clients.jsonl``.
        partition: Its ``partition.json``, as far as it is there.
        column: The column that is the estimate.
    """
    skew = partition.get("total-variation", [])
    clients = len(skew) or 1 + max((row["partition"] for row in rows), default=-1)
    capacities = partition.get("capacities")
    return {
        ESTIMATE: _last_known(rows, column, clients),
        WIDTH: _widths(rows, clients),
        TV: ClientValues(
            values=np.asarray(skew, dtype=np.float64) if skew else np.full(clients, math.nan),
            missing="" if skew else f"{PARTITION} holds no total-variation",
        ),
        CAPACITY: ClientValues(values=np.asarray(capacities, dtype=np.float64))
        if capacities
        else _mean(rows, CAPACITY, clients),
        EXAMPLES: _mean(rows, EXAMPLES, clients),
    }


def numeric_columns(rows: Rows) -> tuple[str, ...]:
    """Return the columns that can be an estimate, by name: those with a finite number."""
    there = {name for row in rows for name, value in row.items() if _is_number(value)}
    return tuple(sorted(there - {"round", "partition"}))


def _widths(rows: Rows, clients: int) -> ClientValues:
    """Return the widths of the last adaptation, or each client's mean width where none adapts."""
    allotted = _last_known(rows, "allocated-width", clients)
    return allotted if not allotted.missing else _mean(rows, WIDTH, clients)


def _last_known(rows: Rows, column: str, clients: int) -> ClientValues:
    """Return a column in the last round that has it, finite, for every client, else its means."""
    by_round: dict[int, dict[int, float]] = {}
    for row in rows:
        if _is_number(row.get(column)) or _is_not_finite(row.get(column, "")):
            value = row[column]
            own = by_round.setdefault(row["round"], {})
            own[row["partition"]] = math.nan if value is None else value
    whole = {
        number: np.array([known[client] for client in range(clients)], dtype=np.float64)
        for number, known in sorted(by_round.items())
        if len(known) == clients
    }
    finite = [number for number, values in whole.items() if np.isfinite(values).all()]
    if not finite:
        means = _mean(rows, column, clients)
        if means.missing or not whole:
            return means
        return replace(means, note=_passed_over(column, whole, "each client's mean over rounds"))
    at = finite[-1]
    note = _passed_over(column, whole, f"that of round {at}") if at < max(whole) else ""
    return ClientValues(values=whole[at], server_round=at, note=note)


def _passed_over(column: str, whole: Mapping[int, Values], instead: str) -> str:
    """Return what stands in for the last round of all clients, and why."""
    last = max(whole)
    clients = ", ".join(map(str, np.flatnonzero(~np.isfinite(whole[last]))))
    return f"{column} is {instead}: in round {last} it is not finite for client {clients}"


def _mean(rows: Rows, column: str, clients: int) -> ClientValues:
    """Return each client's mean of a column over the rounds that have it."""
    numbers: list[list[float]] = [[] for _ in range(clients)]
    for row in rows:
        if _is_number(row.get(column)):
            numbers[row["partition"]].append(row[column])
    values = [float(np.mean(own)) if own else math.nan for own in numbers]
    missing = "" if any(numbers) else _no_column(rows, column)
    return ClientValues(values=np.array(values, dtype=np.float64), missing=missing)


def _no_column(rows: Rows, column: str) -> str:
    names = ", ".join(numeric_columns(rows)) or "none"
    return f"no numeric column {column!r} in {CLIENTS}; there are: {names}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_not_finite(value: object) -> bool:
    """Tell a number that was not finite, which results write as null."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))

"""One finished run of a study: its settings, numbers and rows."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError
from fedhet_app.results import (
    CLIENTS,
    CONFIG,
    COST,
    PARTITION,
    ROUNDS,
    SHIFT,
    SUMMARY,
    RunReader,
    load_tensors,
)

_NUMBERS = ("best-accuracy", "final-accuracy", "mean-width", "upload-bytes", "download-bytes")

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
        label: What its method is called; runs of one label differ in nothing but the seed.
        seed: Its seed.
        directory: Where it is.
        config: Its options, flat.
        summary: Its closing summary.
        rounds: Its rounds, in order.
    """

    label: str
    seed: int
    directory: Path
    config: Row
    summary: Row
    rounds: Sequence[Row]

    @property
    def best(self) -> float:
        """Highest test accuracy of any evaluated round, in percent."""
        return 100 * float(self.summary["best-accuracy"])

    @property
    def final(self) -> float:
        """Test accuracy of the last round, in percent."""
        return 100 * float(self.summary["final-accuracy"])

    def percent(self, key: str) -> float:
        """Return an accuracy of the summary, in percent; NaN where the method has none."""
        return 100 * float(self.summary.get(key, math.nan))

    @property
    def width(self) -> float:
        """Mean width over rounds and the clients that trained in them."""
        return float(self.summary["mean-width"])

    @property
    def upload(self) -> float:
        """Mean bytes that one client uploads in one round."""
        replies = sum(row["replies"] for row in self.rounds)
        return float(self.summary["upload-bytes"]) / replies if replies else math.nan

    @cached_property
    def clients(self) -> Sequence[Row]:
        """The rows of its clients.

        Raises:
            FedhetError: They cannot be read.
        """
        with _readable(self.directory / CLIENTS):
            return RunReader(self.directory).clients

    @cached_property
    def partition(self) -> Row:
        """Who holds what; empty where it was not written.

        Raises:
            FedhetError: It cannot be read.
        """
        return read_object(self.directory / PARTITION)

    @cached_property
    def shift_example(self) -> NDArray[np.uint8] | None:
        """One image under every client's and component's shift, (m, 2, H, W, 3), if it was kept.

        Raises:
            FedhetError: It cannot be read.
        """
        path = self.directory / SHIFT
        return load_tensors(path)[0].get("example") if path.exists() else None

    @cached_property
    def cost(self) -> Sequence[Row]:
        """What each width costs, widths ascending; empty where it was not counted.

        Raises:
            FedhetError: It cannot be read.
        """
        with _readable(self.directory / COST):
            rows = RunReader(self.directory).cost
            return sorted(rows, key=lambda row: float(row["width"]))

    @property
    def full_cost(self) -> Row | None:
        """What the full model costs, if it was counted."""
        return next((row for row in self.cost if float(row["width"]) == 1.0), None)

    def curve(self, column: str) -> dict[int, float]:
        """Return a column by round, of the rounds that have it; NaN for a value not finite."""
        rows = [row for row in self.rounds if column in row]
        return {row["round"]: math.nan if row[column] is None else row[column] for row in rows}

    def comparable(self, column: str) -> NDArray[np.float64]:
        """Return a column of the evaluations made on the same examples, shape (evaluations,).

        A run that measures on part of the test set measures on all of it after its last round.
        """
        values = list(self.curve(column).values())
        return np.array(values[:-1] if self.config.get("evaluate-examples") else values)

    @property
    def fall(self) -> float:
        """Highest minus last accuracy of the comparable evaluations in points, NaN without any."""
        accuracies = self.comparable("accuracy")
        return 100 * float(accuracies.max() - accuracies[-1]) if len(accuracies) else math.nan

    def adaptations(self, column: str) -> dict[int, NDArray[np.float64]]:
        """Return a column of every client, shape (N,), by round in which all clients have it."""
        clients = 1 + max((row["partition"] for row in self.clients), default=-1)
        known: dict[int, dict[int, float]] = {}
        for row in self.clients:
            if column in row and "allocated-width" in row:
                known.setdefault(row["round"], {})[row["partition"]] = row[column]
        return {
            number: np.array([values[client] for client in range(clients)])
            for number, values in known.items()
            if len(values) == clients
        }


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FedhetError("file", str(path), f"cannot be read ({error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty where there is no file.

    Raises:
        FedhetError: It cannot be read.
    """
    with _readable(path):
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def read_run(directory: Path, label: str, seed: int) -> Run | str:
    """Read a run, or say why it can be in no table."""
    if not (directory / CONFIG).exists():
        return "not started"
    try:
        reader = RunReader(directory)
        config, rounds = reader.config, reader.rounds
        if not (directory / SUMMARY).exists():
            total = config.get("num-server-rounds")
            return f"unfinished: {len(rounds)} of {total} rounds; continue it with --resume"
        summary = reader.summary
    except (FedhetError, KeyError, TypeError, ValueError) as error:
        return f"cannot be read: {error}"
    missing = [key for key in _NUMBERS if not isinstance(summary.get(key), int | float)]
    if missing:
        return f"{SUMMARY} lacks {', '.join(missing)}"
    if summary.get("status") != "completed":
        return f"ended as {summary.get('status')!r}"
    if not any("accuracy" in row for row in rounds):
        return f"{ROUNDS} has no evaluated round"
    return Run(
        label=label, seed=seed, directory=directory, config=config, summary=summary, rounds=rounds
    )

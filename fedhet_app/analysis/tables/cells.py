"""Tables as data: typed cells, written as markdown, as HTML by ``page``, and as CSV.

A cell is a text, a number, the spread of a number over seeds, or an estimate with its interval;
``None`` is a cell without content. Formats belong to columns.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhet_app.analysis.correlation import Correlation, Difference

EMPTY = "–"  # noqa: RUF001


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation over seeds, which is NaN for a single one."""

    mean: float
    std: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread of values; ``None`` where there are none."""
        if not values:
            return None
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(mean=float(np.mean(values)), std=std)

    def text(self, form: str) -> str:
        """Return mean ± standard deviation."""
        if math.isnan(self.mean):
            return EMPTY
        mean = _number(self.mean, form)
        return mean if math.isnan(self.std) else f"{mean} ± {self.std:{form.lstrip('+')}}"

    def parts(self) -> Mapping[str, float]:
        """Return its numbers by what to add to the column's name."""
        return {"": self.mean, " (std)": self.std}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value and its 95 % interval; where it is undefined, the reason."""

    value: float
    low: float
    high: float
    reason: str = ""

    @classmethod
    def of(cls, result: Correlation | Difference) -> "Estimate":
        """Return a correlation or a paired difference as a cell."""
        value = result.r if isinstance(result, Correlation) else result.mean
        return cls(value=value, low=result.low, high=result.high, reason=result.reason)

    def text(self, form: str) -> str:
        """Return value and interval; the value alone where only the interval is undefined."""
        if math.isnan(self.value):
            return "undefined" if self.reason else EMPTY
        value = _number(self.value, form)
        if math.isnan(self.low):
            return value
        return f"{value} [{_number(self.low, form)}, {_number(self.high, form)}]"

    def parts(self) -> Mapping[str, float]:
        """Return its numbers by what to add to the column's name."""
        return {"": self.value, " (low)": self.low, " (high)": self.high}


Cell = str | int | float | Spread | Estimate | None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's name, and the format of its numbers."""

    name: str
    form: str = ".1f"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        name: Its file's name, without the suffix.
        title: What it shows.
        columns: Names and formats; names differ.
        rows: Cells in the order of the columns.
        note: What a reader has to know.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def texts(self) -> list[list[str]]:
        """Return the rows as they are shown."""
        return [
            [shown(cell, column.form) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def markdown(self) -> str:
        """Return the table in GitHub's markdown."""
        names = [column.name for column in self.columns]
        rows = [names, ["---"] * len(names), *self.texts()]
        return "\n".join(f"| {' | '.join(map(escaped, row))} |" for row in rows)

    def csv(self) -> str:
        """Return the table with a column for each number of a cell, at full precision."""
        suffixes = [_suffixes([row[i] for row in self.rows]) for i in range(len(self.columns))]
        names = [
            column.name + suffix
            for column, own in zip(self.columns, suffixes, strict=True)
            for suffix in own
        ]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        for row in self.rows:
            cells = zip(row, suffixes, strict=True)
            writer.writerow([_plain(cell, suffix) for cell, own in cells for suffix in own])
        return text.getvalue()


def shown(cell: Cell, form: str) -> str:
    """Return what a reader sees of a cell."""
    if cell is None:
        return EMPTY
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return EMPTY if math.isnan(cell) else _number(cell, form)
    return cell.text(form)


def _number(value: float, form: str) -> str:
    text = f"{value:{form}}"
    # A difference that rounds to nothing has no sign.
    return text.replace("-", "+" if "+" in form else "") if float(text) == 0 else text


def _suffixes(cells: Sequence[Cell]) -> Sequence[str]:
    for cell in cells:
        if isinstance(cell, Spread | Estimate):
            return list(cell.parts())
    return [""]


def _plain(cell: Cell, suffix: str) -> str | int | float:
    if isinstance(cell, Spread | Estimate):
        number = cell.parts().get(suffix, math.nan)
        return "" if math.isnan(number) else number
    if cell is None or suffix:
        return ""
    return _on_one_line(cell) if isinstance(cell, str) else cell


def escaped(text: str) -> str:
    """Return a text that markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_|])", r"\\\1", _on_one_line(text).replace("<", "&lt;"))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())

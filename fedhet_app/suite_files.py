"""The file of a suite: its keys and values checked, its runs still with ``@name`` in them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, cast

from fedhet_app.config import Config
from fedhet_app.config_checks import belongs
from fedhet_app.config_files import flatten_tables
from fedhet_app.errors import FedhetError
from fedhet_app.options import Scalar, Seed, convert
from fedhet_app.strict_yaml import read_yaml

MANIFEST = "suite.json"

_KEYS = ("extends", "name", "base", "seeds", "runs")
_SET_BY_SWEEP = {"seed": "seeds", "results-dir": "--results", "resume": "nothing: it always does"}
_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of ``runs``: its values by run-config key, those of ``base`` below, and its seeds."""

    values: Mapping[str, Scalar]
    seeds: tuple[int, ...]

    @property
    def needs(self) -> frozenset[str]:
        """The labels behind ``@``."""
        return frozenset(str(value)[1:] for value in self.values.values() if is_reference(value))


def read_suite(file: Path) -> tuple[str, dict[str, Entry]]:
    """Return the name of a suite and its entries by label.

    Raises:
        FedhetError: The file cannot be read, has a key or a value that is wrong, or a run that
            needs one that is not there, or itself.
    """
    content = _content(file)
    with located(str(file)):
        name, base, rows = content["name"], content["base"], content["runs"]
        if not rows:
            raise FedhetError("runs", rows, "must hold at least one run")
    entries = {}
    for label, row in rows.items():
        with located(f"run {label} of {file}"):
            own = dict(_table(_checked_name("run", label), row))
            seeds = _seeds(own.pop("seeds", content.get("seeds")))
            entries[label] = Entry(values=_over(base, _values(own)), seeds=seeds)
    with located(str(file)):
        _check_base_is_used(base, entries)
    for label, entry in entries.items():
        with located(f"run {label} of {file}"):
            _check_needs(entry, entries)
    with located(str(file)):
        _check_order(entries)
    return name, entries


def _content(file: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the tables of a suite, over those of the suite that it extends."""
    own = read_yaml(file)
    with located(str(file)):
        for key, value in own.items():
            check_known(key, value, key, _KEYS)
        _checked_name("name", own.get("name"))
        own["base"] = _values(_table("base", own.get("base", {})))
        own["runs"] = dict(_table("runs", own.get("runs", {})))
        parent = own.pop("extends", None)
        if parent is None:
            return own
        if not isinstance(parent, str) or (file.parent / parent).resolve() in below:
            raise FedhetError("extends", parent, "must be the path of another suite, from this one")
    extended = _content(file.parent / parent, (*below, file.resolve()))
    rows = extended["runs"] | own["runs"]
    runs = {label: row for label, row in rows.items() if row is not None}
    return extended | own | {"base": extended["base"] | own["base"], "runs": runs}


def _over(base: Mapping[str, Scalar], own: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a run's values over those of ``base``, less the options of other methods than its."""
    strategy = own.get("strategy", base.get("strategy", Config.strategy))
    return {key: value for key, value in base.items() if belongs(key, str(strategy))} | {**own}


def _check_base_is_used(base: Mapping[str, Scalar], entries: Mapping[str, Entry]) -> None:
    for key, value in base.items():
        if not any(key in entry.values for entry in entries.values()):
            remedy = f"no run has a strategy with {key.partition('.')[0]} options; leave it out"
            raise FedhetError(key, value, remedy)


@contextmanager
def located(place: str) -> Iterator[None]:
    """Add to a mistake where it was made."""
    try:
        yield
    except FedhetError as error:
        remedy = f"{error.remedy} (in {place})"
        raise FedhetError(error.key, error.value, remedy) from None


def is_reference(value: object) -> bool:
    """Whether a value names another run."""
    return isinstance(value, str) and value.startswith("@")


def check_known(key: str, value: object, name: str, known: Iterable[str]) -> None:
    """Raise ``FedhetError`` for a name that is not among those known."""
    known = list(known)
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise FedhetError(key, value, f"unknown; {hint}known are {', '.join(known)}")


def _check_needs(entry: Entry, entries: Mapping[str, Entry]) -> None:
    for key, value in entry.values.items():
        if not is_reference(value):
            continue
        needed = str(value)[1:]
        check_known(key, value, needed, entries)
        missing = set(entry.seeds) - set(entries[needed].seeds)
        if missing:
            remedy = f"run {needed} lacks seed {min(missing)}; give it that seed too"
            raise FedhetError(key, value, remedy)


def _check_order(entries: Mapping[str, Entry]) -> None:
    try:
        TopologicalSorter({label: entry.needs for label, entry in entries.items()}).prepare()
    except CycleError as error:
        circle = " needs ".join(reversed(error.args[1]))
        raise FedhetError("runs", circle, "need each other in a circle; break it") from None


def _values(table: Mapping[str, Any]) -> dict[str, Scalar]:
    values = flatten_tables(dict(table))
    for key in sorted(values.keys() & _SET_BY_SWEEP.keys()):
        remedy = f"a sweep sets it itself; use {_SET_BY_SWEEP[key]}"
        raise FedhetError(key, values[key], remedy)
    return values


def _seeds(seeds: object) -> tuple[int, ...]:
    if not isinstance(seeds, list) or not seeds:
        raise FedhetError("seeds", seeds, "must be a list of whole numbers, for example [42, 43]")
    checked = tuple(cast(int, convert("seeds", seed, Seed)) for seed in seeds)
    if len(set(checked)) < len(checked):
        raise FedhetError("seeds", seeds, "must hold each seed once")
    return checked


def _table(key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FedhetError(key, value, "must be a table, for example {strategy: has-fl}")
    return value


def _checked_name(key: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == MANIFEST:
        remedy = "must be letters, digits, '-', '_' and '.': it becomes the name of a folder"
        raise FedhetError(key, name, remedy)
    return name

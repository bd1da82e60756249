"""The runs of an audit: where they are and what it reads of each."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet_app.analysis.audit.columns import ClientValues, Rows, numeric_columns, variables_of
from fedhet_app.analysis.labels import FEATURES, MATCH, NOT_THE_METHOD
from fedhet_app.config import DEFAULTS
from fedhet_app.errors import FedhetError
from fedhet_app.results import CLIENTS, CONFIG, PARTITION, SUMMARY, RunReader

_KEY = "run directory"


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """One run as the audit sees it.

    Attributes:
        directory: Where it is.
        method: Its options other than the seed and what does not touch the result.
        seed: Its seed.
        variables: By name, over clients in the order of their partition ids.
        columns: The numeric columns of its ``clients.jsonl``.
        adaptations: Rounds after which widths were allotted anew.
        summary: Its closing summary, empty if it has not finished.
    """

    directory: Path
    method: Mapping[str, Any]
    seed: int
    variables: Mapping[str, ClientValues]
    columns: tuple[str, ...]
    adaptations: int
    summary: Mapping[str, Any]

    @property
    def task(self) -> dict[str, Any]:
        """The options that belong to no method: what a control has to share."""
        own = {key: value for key, value in self.method.items() if "." not in key}
        return {key: value for key, value in own.items() if key != "strategy"}


def find_runs(directories: Iterable[Path]) -> list[Path]:
    """Return the run directories among and below the given ones, each once.

    Raises:
        FedhetError: A directory is no run and holds none.
    """
    found: dict[Path, Path] = {}
    for directory in directories:
        here = [directory] if (directory / CONFIG).exists() else _below(directory)
        if not here:
            remedy = f"holds no {CONFIG}, nor does a folder below it: no run to read"
            raise FedhetError(_KEY, str(directory), remedy)
        for path in here:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def read_run(directory: Path, column: str) -> AuditedRun:
    """Read one run.

    Args:
        directory: The run directory.
        column: The numeric column of ``clients.jsonl`` that is the estimate.

    Raises:
        FedhetError: It holds no run, or a file of it cannot be read.
    """
    reader = RunReader(directory)
    try:
        options = {**DEFAULTS, **reader.config}
        method = {key: options[key] for key in options if key not in NOT_THE_METHOD}
        seed = int(options["seed"])
    except (KeyError, TypeError, ValueError):
        raise FedhetError(_KEY, str(directory), f"its {CONFIG} is not that of a run") from None
    for key in (MATCH, FEATURES):
        if method[key]:  # each seed names a run of its own
            method[key] = "a run"
    rows, partition = _rows(reader), _partition(directory)
    return AuditedRun(
        directory=directory,
        method=method,
        seed=seed,
        variables=variables_of(rows, partition, column),
        columns=numeric_columns(rows),
        adaptations=len({row["round"] for row in rows if "allocated-width" in row}),
        summary=reader.summary if (directory / SUMMARY).exists() else {},
    )


def _below(directory: Path) -> list[Path]:
    """Return the runs below a folder, through links too, each folder once."""
    found, seen = [], set()
    for name, folders, files in os.walk(directory, followlinks=True):
        folder = Path(name)
        is_run = CONFIG in files and _is_run(folder / CONFIG)
        if is_run:
            found.append(folder)
        if is_run or folder.resolve() in seen:
            folders.clear()
        folders.sort()
        seen.add(folder.resolve())
    return found


def _is_run(path: Path) -> bool:
    """Tell a run's config from other software's file of the same name."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(content, dict) and isinstance(content.get("config"), dict)


def _rows(reader: RunReader) -> Rows:
    try:
        return reader.clients
    except ValueError as error:
        path = str(reader.directory / CLIENTS)
        raise FedhetError(_KEY, path, f"cannot be read ({error})") from error


def _partition(directory: Path) -> dict[str, Any]:
    path = directory / PARTITION
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise FedhetError(_KEY, str(path), f"cannot be read ({error})") from error

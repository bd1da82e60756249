"""The results of a suite: whose they are, how far each run has come, how to go on with it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedhet_app import checkpoint
from fedhet_app.config import DEFAULTS, Config
from fedhet_app.errors import FedhetError
from fedhet_app.results import (
    CONFIG,
    ROUNDS,
    SUMMARY,
    RunReader,
    check_free,
    locked,
    write_json,
)
from fedhet_app.suite_files import MANIFEST
from fedhet_app.suites import Suite, SuiteRun

LOG_FILE = "log.txt"

Stage = Literal["new", "begun", "finished"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that failed, or was not run because one that it needs did; why, in one line."""

    run: SuiteRun
    reason: str

    @property
    def log(self) -> str:
        """The file of its log, relative to the results; empty if it was not run."""
        file = self.run.directory / LOG_FILE
        return "/".join(file.parts[-3:]) if file.exists() else ""


@contextmanager
def claimed(results: Path) -> Iterator[None]:
    """Keep other sweeps out of a folder during the block; the claim dies with the process.

    Raises:
        FedhetError: Another sweep works there, the folder is a run, or it cannot be written to.
    """
    check_free(results)
    results.mkdir(parents=True, exist_ok=True)
    with locked(results, "--results", "another sweep is at work there; wait for its end"):
        yield


def write_manifest(suite: Suite) -> None:
    """Write ``suite.json``.

    Raises:
        FedhetError: The folder holds the results of a suite of another name.
    """
    file = suite.results / MANIFEST
    if file.exists():
        name = json.loads(file.read_text(encoding="utf-8"))["name"]
        if name != suite.name:
            remedy = f"holds the results of the suite {name}, not {suite.name}; name another folder"
            raise FedhetError("--results", str(suite.results), remedy)
    write_json(file, suite.manifest())


def stage_of(run: SuiteRun) -> Stage:
    """Return how far a run has come.

    Raises:
        FedhetError: Its directory holds a run of another configuration.
    """
    if not (run.directory / CONFIG).exists():
        return "new"
    reader = RunReader(run.directory)
    # An option that the run did not know yet counts as its default.
    before, now = {**DEFAULTS, **reader.config}, run.config.flat()
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if key not in checkpoint.FREE_TO_CHANGE and old != new and not _moved(run, old, new):
            remedy = (
                f"{run} was run with {old!r} in {run.directory}; name another --results, or "
                "remove that directory"
            )
            raise FedhetError(key, new, remedy)
    return "finished" if has_ended(run.config) else "begun"


def has_ended(config: Config) -> bool:
    """Whether a run has come to its end: its last round, or the divergence it was to show."""
    directory = Path(config.results_dir)
    if not (directory / SUMMARY).exists():
        return False
    status = RunReader(directory).summary["status"]
    return bool(status == "completed" or (status == "diverged" and config.may_diverge))


def _moved(run: SuiteRun, old: object, new: object) -> bool:
    """Whether both name the same run, and the folder of the results has moved since."""
    results = run.directory.parent.parent
    return (
        isinstance(old, str)
        and isinstance(new, str)
        and Path(new).is_relative_to(results)
        and Path(old).parts[-2:] == Path(new).parts[-2:]
    )


def rounds_done(run: SuiteRun) -> int:
    """Return how many rounds are written: cheap enough to ask every second."""
    file = run.directory / ROUNDS
    return file.read_bytes().count(b"\n") if file.exists() else 0


def to_go_on(run: SuiteRun) -> Config:
    """Return the configuration that starts a run, or continues it where it was stopped."""
    begun = (run.directory / CONFIG).exists()
    if begun and not (run.directory / checkpoint.FILE).exists() and not rounds_done(run):
        (run.directory / CONFIG).unlink()  # it died before its first checkpoint: nothing to keep
        begun = False
    return replace(run.config, resume=begun)

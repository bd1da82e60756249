"""The run directory: one writer, one reader.

``config.json``, ``partition.json``, ``rounds.jsonl``, ``clients.jsonl``, ``cost.json``,
``summary.json``, ``model.safetensors``, ``checkpoint/``, under dual heterogeneity
``shift.safetensors`` and, in a simulation of a method that keeps state on its clients,
``clients/``; text and safetensors only.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedhet_app.config import Config
from fedhet_app.errors import FedhetError

Row = Mapping[str, Any]

round_observer: ContextVar[Callable[[Row], None] | None] = ContextVar("observer", default=None)
"""Called with each row of ``rounds.jsonl`` as it is written (a progress display)."""

CONFIG, PARTITION, SUMMARY = "config.json", "partition.json", "summary.json"
ROUNDS, CLIENTS, MODEL = "rounds.jsonl", "clients.jsonl", "model.safetensors"
COST = "cost.json"
SHIFT = "shift.safetensors"

_UNWRITTEN = "cannot be written ({}); make room, or name a file in a folder that is there"


def write_json(path: Path, content: object, *, key: str = "file") -> None:
    """Write a JSON file in one step: readers see the old content or the new, never half of it.

    Args:
        path: Where.
        content: What JSON can hold.
        key: What names the file, for the error.

    Raises:
        FedhetError: It cannot be written.
    """
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise FedhetError(key, str(path), _UNWRITTEN.format(error.strerror)) from error


class RunWriter:
    """Writes one run directory.

    Args:
        directory: Where; made if it is not there.
        resume_at: Keep rows up to this round and append; ``None`` starts a run, which refuses a
            directory that already holds one.

    Raises:
        FedhetError: The directory is not writable, holds a run that is not to be resumed, or
            another process writes one there.
    """

    def __init__(self, directory: Path, *, resume_at: int | None = None) -> None:
        self.directory = directory
        if resume_at is None:
            check_free(directory)
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = locked(directory, "results-dir", "a run is writing there; stop it")
        if resume_at is not None:
            for name in (ROUNDS, CLIENTS):
                _truncate(directory / name, resume_at)
            (directory / SUMMARY).unlink(missing_ok=True)
        self._rounds = self._open(ROUNDS)
        self._clients = self._open(CLIENTS)

    def _open(self, name: str) -> TextIO:
        return (self.directory / name).open("a", encoding="utf-8")

    def write_config(
        self, config: Mapping[str, Any], versions: Mapping[str, str], data: Mapping[str, str]
    ) -> None:
        """Write the resolved configuration, what ran it, and the fingerprints of its data."""
        content = {"config": dict(config), "versions": dict(versions), "data": dict(data)}
        write_json(self.directory / CONFIG, content)

    def write_partition(self, description: Mapping[str, Any]) -> None:
        """Write who holds what."""
        write_json(self.directory / PARTITION, dict(description))

    def write_shift(self, example: NDArray[np.uint8]) -> None:
        """Write one image under every client's and component's shift, (m, 2, H, W, C)."""
        save_tensors(self.directory / SHIFT, {"example": example}, {})

    def write_round(self, row: Row, clients: Iterable[Row]) -> None:
        """Append one round and its clients, and tell the observer.

        Raises:
            FedhetError: They cannot be written.
        """
        try:
            for client in clients:
                self._clients.write(json.dumps(client) + "\n")
            self._rounds.write(json.dumps(row) + "\n")
            self._clients.flush()
            self._rounds.flush()
        except OSError as error:
            remedy = f"cannot be written to ({error}); make room, and continue with --resume"
            raise FedhetError("results-dir", str(self.directory), remedy) from error
        observer = round_observer.get()
        if observer is not None:
            observer(row)

    def write_cost(self, tiers: Iterable[Row]) -> None:
        """Write what each width costs."""
        write_json(self.directory / COST, [dict(tier) for tier in tiers])

    def write_model(self, tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> None:
        """Write the final model, one tensor per parameter, in torch's names and shapes."""
        save_tensors(self.directory / MODEL, tensors, metadata)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the closing summary; a run without one is not finished."""
        write_json(self.directory / SUMMARY, dict(summary))

    def close(self) -> None:
        """Close the row files; rows that a full disk did not take have been told of already."""
        for file in (self._rounds, self._clients):
            with suppress(OSError):
                file.close()
        self._lock.close()


def locked(directory: Path, key: str, why_not: str) -> ExitStack:
    """Return the lock of a directory, held until it is closed or the process ends.

    Args:
        directory: Which is there.
        key: The option that names it.
        why_not: What is so where another process holds it, and what to do.

    Raises:
        FedhetError: One does.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    lock = ExitStack()
    lock.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FedhetError(key, str(directory), f"{why_not}, or name another folder") from None
    return lock


def run_directory(config: Config) -> Path:
    """Return where a run's results go: what it names, or a new folder in ``./results``."""
    if not config.results_dir:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{config.dataset}-{config.strategy}-seed{config.seed}-{stamp}"
        return Path.cwd() / "results" / name.replace("/", "-").replace(":", "-")
    return Path(config.results_dir)


def check_free(directory: Path) -> None:
    """Make sure that a new run can be written to a directory, and leave nothing behind.

    Raises:
        FedhetError: It cannot be written to, or holds another run.
    """
    if (directory / CONFIG).exists():
        remedy = "already holds a run; name another directory, or continue it with resume=true"
        raise FedhetError("results-dir", str(directory), remedy)
    missing = _missing(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        remedy = f"cannot be written to ({error.strerror}); name another directory"
        raise FedhetError("results-dir", str(directory), remedy) from error
    finally:
        for path in missing:
            if path.is_dir():
                path.rmdir()


def _truncate(path: Path, last_round: int) -> None:
    kept = [row for row in read_rows(path) if row["round"] <= last_round]
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    partial.replace(path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a ``.jsonl`` file; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def save_tensors(
    path: Path,
    tensors: dict[str, NDArray[Any]],
    metadata: dict[str, str],
    *,
    durable: bool = False,
) -> None:
    """Write a safetensors file in one step, so that a full disk leaves the old one as it was.

    Args:
        path: Where.
        tensors: By name.
        metadata: Of the file.
        durable: Whether to wait for the disk, so that a power cut leaves the old or the new one.

    Raises:
        FedhetError: It cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:  # safetensors' own writer makes files only you can read
            file.write(save(tensors, metadata))
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # on a full disk it may hold the last free blocks
        raise FedhetError("file", str(path), _UNWRITTEN.format(error)) from error


def make_folder(folder: Path, *, durable: bool) -> None:
    """Make a folder and those above it; ``durable``: wait until their names are on the disk."""
    made = _missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in made if durable else ():
        _sync_folder(path.parent)


def _missing(folder: Path) -> list[Path]:
    """Return a folder and those above it that are not there, innermost first."""
    return list(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Raises:
        FedhetError: The file is not there or is not whole.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise FedhetError("file", str(path), f"cannot be read ({error})") from error


class RunReader:
    """Reads one run directory.

    Raises:
        FedhetError: The directory holds no run.
    """

    def __init__(self, directory: Path) -> None:
        if not (directory / CONFIG).exists():
            raise FedhetError("run directory", str(directory), f"holds no {CONFIG}: not a run")
        self.directory = directory

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, flat."""
        return dict(self._json(CONFIG)["config"])

    @property
    def data(self) -> dict[str, str]:
        """The fingerprints of data set and partition."""
        return dict(self._json(CONFIG)["data"])

    @property
    def partition(self) -> dict[str, Any]:
        """Who holds how much, and each client's capacity."""
        return self._json(PARTITION)

    @property
    def summary(self) -> dict[str, Any]:
        """The closing summary.

        Raises:
            FedhetError: The run has not finished.
        """
        if not (self.directory / SUMMARY).exists():
            remedy = "the run has not finished; continue it with --resume"
            raise FedhetError("run directory", str(self.directory), remedy)
        return self._json(SUMMARY)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rows of ``rounds.jsonl``."""
        return read_rows(self.directory / ROUNDS)

    @property
    def clients(self) -> list[dict[str, Any]]:
        """The rows of ``clients.jsonl``."""
        return read_rows(self.directory / CLIENTS)

    @property
    def cost(self) -> list[dict[str, Any]]:
        """What each tier's width costs, ascending; empty where the run has not come to its end."""
        path = self.directory / COST
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []

    def model(self) -> dict[str, NDArray[np.float32]]:
        """Return the final model in torch's names and shapes."""
        if not (self.directory / MODEL).exists():
            remedy = f"holds no {MODEL}: the run has not finished; continue it with --resume"
            raise FedhetError("run directory", str(self.directory), remedy)
        return load_tensors(self.directory / MODEL)[0]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.directory / name).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            path = str(self.directory / name)
            raise FedhetError("run directory", path, f"cannot be read ({error})") from error

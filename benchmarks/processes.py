"""Runs one command to its end: seconds from start to end, and peak memory while it ran."""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_INTERVAL = 0.25
_PROC = Path("/proc")
# Ray renames its workers; a forked worker keeps its parent's command line.
_RAY_WORKER, _FORKED_WORKER = "ray::", "bare_loop.py"


@dataclass(kw_only=True)
class Finished:
    """What a command printed and took.

    Attributes:
        output: Its standard output.
        seconds: From before its start to after its end.
        main_mib: Peak resident memory of the process itself, in MiB; pages of mapped files, which
            processes share, are counted. 0 where there is no ``/proc``.
        worker_mib: The same of its largest worker process; 0 if it has none.
    """

    output: str
    seconds: float
    main_mib: float
    worker_mib: float


@dataclass(kw_only=True)
class _Peaks:
    """Watches a process and its descendants until it is told to stop."""

    pid: int
    stop: threading.Event = field(default_factory=threading.Event)
    main: float = 0.0
    worker: float = 0.0

    def watch(self) -> None:
        """Take samples; the kernel keeps the peak of each process, so few will do."""
        while not self.stop.wait(_INTERVAL):
            self.main = max(self.main, _peak_mib(self.pid))
            workers = [_peak_mib(pid) for pid in _descendants(self.pid) if _is_worker(pid)]
            self.worker = max(self.worker, *workers, 0.0)


def finish(command: Sequence[str]) -> Finished:
    """Run a command in a fresh process and wait for its end.

    Raises:
        RuntimeError: The command failed; the text holds what it said last.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    peaks = _Peaks(pid=process.pid)
    watcher = threading.Thread(target=peaks.watch, daemon=True)
    watcher.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - began
    peaks.stop.set()
    watcher.join()
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: {process.returncode}\n{(output + errors)[-2000:]}"
        )
    return Finished(output=output, seconds=seconds, main_mib=peaks.main, worker_mib=peaks.worker)


def python(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter."""
    return [sys.executable, *arguments]


def _descendants(root: int) -> list[int]:
    parents = {int(path.name): _parent(path) for path in _PROC.glob("[0-9]*")}
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        children = [pid for pid, its in parents.items() if its == parent]
        found += children
        todo += children
    return found


def _parent(process: Path) -> int:
    # The command in parentheses may itself hold blanks and parentheses.
    fields = _read(process / "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _is_worker(pid: int) -> bool:
    line = _read(_PROC / str(pid) / "cmdline")
    return line.startswith(_RAY_WORKER) or _FORKED_WORKER in line


def _peak_mib(pid: int) -> float:
    for line in _read(_PROC / str(pid) / "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _read(path: Path) -> str:
    """Return a file of ``/proc``, or nothing once its process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

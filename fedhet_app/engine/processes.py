"""The processes that Ray starts below this one, and how they end for certain."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

GRACE_SECONDS = 0.5


Handler = Callable[[int, FrameType | None], Any] | int | None


def handle_sigterm(handler: Handler) -> None:
    """Put a program's handler of a TERM signal back in place of the one that Ray sets."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def descendants() -> list[psutil.Process]:
    """Return all processes below this one."""
    return psutil.Process().children(recursive=True)


def kill(processes: Iterable[psutil.Process], name: str = "") -> None:
    """Kill those of the processes that are still there and whose names start with ``name``."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith(name):
                process.kill()


def end_late(processes: Iterable[psutil.Process]) -> None:
    """Kill what a shutdown of Ray has left of these, and agents that they started meanwhile."""
    # Ray gives its daemon a second to end the others; a late one leaves them for a minute.
    kill(psutil.wait_procs(processes, timeout=GRACE_SECONDS)[1])
    kill(_orphans())


def _orphans() -> Iterator[psutil.Process]:
    """Yield agents of this process's group whose daemon is gone: they started after the count."""
    for process in psutil.process_iter(["name", "ppid", "cmdline"]):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            own_group = process.info["ppid"] == 1 and os.getpgid(process.pid) == os.getpgrp()
            if own_group and _is_agent(process.info["name"], process.info["cmdline"] or []):
                yield process


def _is_agent(name: str, command: list[str]) -> bool:
    """Tell one of Ray's agents, which takes its name some time after its start."""
    return name.startswith("ray::") or any(
        "ray" in Path(part).parts and Path(part).name in ("agent.py", "main.py") for part in command
    )

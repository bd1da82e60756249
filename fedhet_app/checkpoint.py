"""Save a run after a round and continue it bit for bit.

Every draw is named by its round (`seeding`), so the state of a run is what it has learnt: the
global vector, the policy's estimates and the counters of the summary.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedhet_app.config import DEFAULTS, Config
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader
from fedhet_app.sealed import DamagedError, load_sealed, save_sealed

FILE = Path("checkpoint") / "state.safetensors"

FREE_TO_CHANGE = (
    "checkpoint-every",
    "client-gpus",
    "data-dir",
    "node-timeout",
    "queries",
    "results-dir",
    "resume",
    "round-timeout",
)
"""Keys that do not touch what a run computes."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """State after ``server_round`` rounds: arrays by name, and JSON-ready counters."""

    server_round: int
    arrays: dict[str, NDArray[Any]]
    counters: dict[str, Any]


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint of the run in ``directory``; the old one stays until it is whole.

    Raises:
        FedhetError: It cannot be written.
    """
    path = directory / FILE
    path.parent.mkdir(exist_ok=True)
    state = {"round": checkpoint.server_round, "counters": checkpoint.counters}
    save_sealed(path, checkpoint.arrays, {"state": json.dumps(state)})


def load(directory: Path, config: Config, data: Mapping[str, str]) -> Checkpoint:
    """Return the checkpoint to continue from.

    Args:
        directory: The run directory.
        config: What is asked for now; it must be what the run was started with.
        data: Fingerprints of the data set and the partition; likewise.

    Raises:
        FedhetError: No run, no checkpoint or a damaged one, another configuration or other data.
    """
    reader = RunReader(directory)
    _check_same(reader.config, config)
    for name, fingerprint in data.items():
        if reader.data.get(name) != fingerprint:
            remedy = f"the run to resume was started with another {name}; give it the same data"
            raise FedhetError(name, fingerprint[:12], remedy)
    if not (directory / FILE).exists():
        remedy = "has no checkpoint to resume from; start the run again in another directory"
        raise FedhetError("results-dir", str(directory), remedy)
    try:
        arrays, metadata = load_sealed(directory / FILE)
    except DamagedError as error:
        remedy = f"{error.remedy}; start the run again in another directory"
        raise FedhetError("checkpoint", str(directory / FILE), remedy) from error
    state = json.loads(metadata["state"])
    return Checkpoint(server_round=state["round"], arrays=arrays, counters=state["counters"])


def _check_same(before: dict[str, Any], config: Config) -> None:
    before, now = {**DEFAULTS, **before}, config.flat()  # options may have come since
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old != new and key not in FREE_TO_CHANGE and not _extends(key, old, new, config):
            raise FedhetError(key, new, f"the run to resume has {old!r}; resume with that")


def _extends(key: str, old: object, new: object, config: Config) -> bool:
    """More rounds continue the same run unless the schedule depends on their number."""
    return (
        key == "num-server-rounds"
        and config.lr_schedule != "cosine"
        and isinstance(old, int)
        and isinstance(new, int)
        and new > old
    )

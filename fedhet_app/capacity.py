"""The capacity of a node: told by its node config, or measured against its budgets.

With ``capacity = "auto"`` the node takes the widest of the run's ``capacity-tiers`` whose local
step fits ``step-ms`` and ``memory-mb``. What is measured is a step of the run's own loop, network
and batch size at each width, on random examples, in a process that does nothing else
(``trial_step``); with FjORD's distillation the one that costs most. The node has ``node-timeout``
seconds for all of it.

Memory is the peak resident set of that process, interpreter, torch and this app included: it is
what the device must have free and what its kernel kills for. Python's tracemalloc does not see
torch's allocations, torch's profiler sees neither the libraries nor what its allocator keeps, and
the peak of a process that has done other things is theirs. On a GPU it is what torch reserved
there. What Flower's own process takes comes on top (30 to 180 MiB were seen), and the data, which
are mapped from disk, so that the kernel can let go of them.

Tiers are measured from the narrowest up, and no further than the first that does not fit: a wider
one could bring the device down. The peak of a tier is thus that of all up to it.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch

from fedhet_app.errors import FedhetError
from fedhet_app.options import Scalar
from fedhet_app.results import write_json
from fedhet_app.task import Task
from fedhet_app.versions import ROOT, code_fingerprint
from fedhet_app.wire import TierCost

AUTO = "auto"
BUDGETS = ("memory-mb", "step-ms")
FILE = "capacity.json"
_PATIENCE_SECONDS = 600


def capacity_of(
    task: Task, node_config: Mapping[str, Scalar], folder: Path | None
) -> tuple[float, tuple[TierCost, ...]]:
    """Return a node's capacity, 0.0 where its config names none; and what it was measured by.

    Args:
        task: What the node is to train.
        node_config: ``capacity``, and for ``auto`` at least one of ``memory-mb`` (MiB) and
            ``step-ms``.
        folder: The node's ``state-dir``, where a measurement is kept; ``None`` for none.

    Raises:
        FedhetError: A value is wrong, or not even the narrowest tier fits.
    """
    capacity = node_config.get("capacity", 0.0)
    if capacity == AUTO:
        return _measured(task, _budgets(node_config), folder)
    for key in BUDGETS:
        if key in node_config:
            raise FedhetError(key, node_config[key], f"has no effect without capacity = '{AUTO}'")
    if "capacity" not in node_config:
        return 0.0, ()
    if isinstance(capacity, bool | str) or not 0.0 < capacity <= 1.0:
        remedy = (
            f"the node config's capacity is a width, a number above 0 and at most 1, or '{AUTO}'"
        )
        raise FedhetError("capacity", capacity, remedy)
    return float(capacity), ()


def _budgets(node_config: Mapping[str, Scalar]) -> dict[str, float]:
    budgets = {key: node_config[key] for key in BUDGETS if key in node_config}
    if not budgets:
        remedy = f"needs what to fit in; set {' or '.join(BUDGETS)} in the node config, or both"
        raise FedhetError("capacity", AUTO, remedy)
    numbers = {}
    for key, value in budgets.items():
        if isinstance(value, bool | str) or not 0.0 < value < float("inf"):
            raise FedhetError(key, value, "must be a number above 0 in the node config")
        numbers[key] = float(value)
    return numbers


def widest_that_fits(tiers: tuple[TierCost, ...], budgets: Mapping[str, float]) -> float:
    """Return the widest tier that fits.

    Args:
        tiers: What each costs, ascending; at least one.
        budgets: ``memory-mb``, ``step-ms`` or both.

    Raises:
        FedhetError: None does.
    """
    fitting = [tier.width for tier in tiers if fits(tier, budgets)]
    if fitting:
        return max(fitting)
    least = tiers[0]
    needs = {"memory-mb": least.memory_mb, "step-ms": least.ms}
    key = next(key for key in budgets if needs[key] > budgets[key])
    remedy = (
        f"the narrowest tier, {least.width:g}, takes {least.memory_mb:.0f} MiB and"
        f" {least.ms:.3g} ms a step; raise the budget, or add a narrower one to capacity-tiers"
    )
    raise FedhetError(key, budgets[key], remedy)


def fits(tier: TierCost, budgets: Mapping[str, float]) -> bool:
    """Return whether a tier fits all budgets that are set."""
    unlimited = float("inf")
    return tier.ms <= budgets.get("step-ms", unlimited) and tier.memory_mb <= budgets.get(
        "memory-mb", unlimited
    )


def _measured(
    task: Task, budgets: dict[str, float], folder: Path | None
) -> tuple[float, tuple[TierCost, ...]]:
    key, order = _key(task, budgets), _order(task, budgets)
    tiers = _read(folder, key)
    if tiers is None:
        tiers = _measure(order)
        if folder is not None:
            write_json(folder / FILE, {"key": key, "tiers": [asdict(tier) for tier in tiers]})
    return widest_that_fits(tiers, budgets), tiers


def _order(task: Task, budgets: dict[str, float]) -> str:
    """Return what the measuring process is told, as JSON."""
    spec = asdict(task.spec)
    return json.dumps(
        {"run-config": task.config.flat(), "spec": spec, "budgets": budgets}, sort_keys=True
    )


def _key(task: Task, budgets: dict[str, float]) -> str:
    """Return a hash of all that a measurement depends on, as far as can be known."""
    config = task.config
    step = [config.batch_size, config.clip_norm, config.momentum, config.weight_decay]
    method = [config.strategy, config.fjord.draw, config.fjord.distillation, config.augment]
    network = [config.model, config.capacity_tiers, config.precision, config.client_cpus]
    machine = [task.device.type, os.cpu_count(), torch.__version__, code_fingerprint()]
    what = [network, step, method, asdict(task.spec), budgets, machine]
    identity = json.dumps(what, sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def _read(folder: Path | None, key: str) -> tuple[TierCost, ...] | None:
    """Return what was measured before; ``None`` where it was not, or of something else."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8")) if folder else {}
        same = content.get("key") == key
        return tuple(TierCost(**tier) for tier in content["tiers"]) if same else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # it is measured again


@lru_cache(maxsize=16)
def _measure(order: str) -> tuple[TierCost, ...]:
    """Measure in a process of its own; ``order`` is what it is told.

    Raises:
        FedhetError: It did not come to the end of the narrowest tier.
    """
    path = os.pathsep.join([str(ROOT), *(each for each in sys.path if each)])
    command = [sys.executable, "-P", "-m", "fedhet_app.trial_step"]
    try:
        done = subprocess.run(
            command,
            input=order,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
        said, complaint = done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        said, complaint = (late.stdout or b"").decode(), f"not within {_PATIENCE_SECONDS} s"
    tiers = [TierCost(**json.loads(line)) for line in said.splitlines() if line.endswith("}")]
    if not tiers:
        why = (complaint.strip().splitlines() or ["the process was killed: too little memory?"])[-1]
        remedy = f"a training step could not be measured ({why}); set the capacity to a number"
        raise FedhetError("capacity", AUTO, remedy)
    return tuple(tiers)

"""A process that takes the local step of a run at each tier, and says what it costs.

``python -m fedhet_app.trial_step`` reads one JSON object from its input (the run config, the
network's specification, the budgets) and writes one line a tier. It loads what a node's own process
has loaded, but no data: its examples are random, and what a step costs does not depend on them.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedhet_app.client_app  # noqa: F401 - its memory is a node's as well
from client_apps import fjord, local
from fedhet_app.capacity import fits
from fedhet_app.config import Config, parse
from fedhet_app.data import Dataset, Split
from fedhet_app.models import ModelSpec
from fedhet_app.task import Task
from fedhet_app.task_data import Division, blocks
from fedhet_app.training import cross_entropy_objective
from fedhet_app.wire import TierCost

WARM_UP, STEPS = 2, 5
_MIB = 2**20


def costs(config: Config, spec: ModelSpec) -> Iterator[TierCost]:
    """Yield what a step of each tier costs, ascending.

    Args:
        config: The run's.
        spec: What its network is built from.
    """
    rows = np.arange(config.batch_size)
    division = Division(
        dataset=random_dataset(spec, len(rows)), partition=blocks([rows]), test_owners=None
    )
    task = Task(config, division)
    once = replace(config, local_steps=1, local_epochs=Config.local_epochs)
    for width in config.tiers:
        model = task.module(width)
        ordered = config.strategy == "fjord"
        objective = fjord.costliest(task, width) if ordered else cross_entropy_objective
        durations = []
        for step in range(WARM_UP + STEPS):
            started = time.perf_counter()
            local.fit(task, 0, model, keys=(step,), config=once, lr=config.lr, objective=objective)
            durations.append(time.perf_counter() - started)
        median = statistics.median(durations[WARM_UP:])
        yield TierCost(width=width, ms=1000 * median, memory_mb=peak_bytes(task.device) / _MIB)


def random_dataset(spec: ModelSpec, count: int) -> Dataset:
    """Return a training set of so many examples as the network takes them."""
    rng = np.random.default_rng(0)
    channels, *sides = spec.input_shape
    inputs: NDArray[Any]
    if spec.vocabulary:
        inputs = rng.integers(spec.vocabulary, size=(count, channels), dtype=np.uint8)
    elif not sides:
        inputs = rng.standard_normal((count, channels), dtype=np.float32)
    else:
        inputs = rng.integers(256, size=(count, *sides, channels), dtype=np.uint8)
    train = Split(inputs=inputs, labels=rng.integers(spec.num_classes, size=count))
    level = np.full(channels if sides else 0, 127.5, dtype=np.float32)
    return Dataset(
        name="random",
        train=train,
        test=train,
        num_classes=spec.num_classes,
        class_names=None,
        vocabulary=spec.vocabulary,
        train_groups=None,
        mean=level,
        std=level,
        fingerprint="",
    )


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of this process so far: on the GPU, or its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count what the process was before it became this program.
        lines = status.read_text().splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(peak) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Measure from the narrowest tier to the first that does not fit, a line for each."""
    order: dict[str, Any] = json.load(sys.stdin)
    spec = order["spec"]
    spec["input_shape"] = tuple(spec["input_shape"])
    for cost in costs(parse(order["run-config"]), ModelSpec(**spec)):
        sys.stdout.write(json.dumps(asdict(cost)) + "\n")
        sys.stdout.flush()
        if not fits(cost, order["budgets"]):
            return


if __name__ == "__main__":
    main()

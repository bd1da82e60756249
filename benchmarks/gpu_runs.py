"""Whole runs of the app on two devices: the same seed gives the same cohorts, widths, batches."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Check = Callable[[str, float, float], None]

# Adaptive widths follow from the weights, which differ in their last digits.
WIDTH_TOLERANCE = {"fjord": 0.0, "has-fl": 0.01}
LOSS_TOLERANCE = 0.01
SETTINGS = (
    "dataset=digits num-clients=8 num-server-rounds=6 local-epochs=1 checkpoint-every=0 "
    "evaluate-every=0"
)
ADAPTING = {"has-fl": "has-fl.warmup=1 has-fl.adapt-every=2"}


def check(device: str, report: Check) -> None:
    """Run each strategy on the CPU and on the device, and compare the rows of the two runs.

    Args:
        device: The other device.
        report: Takes a name, a distance and its limit.
    """
    for strategy, tolerance in WIDTH_TOLERANCE.items():
        (rounds, clients), (other_rounds, other_clients) = (
            _run(strategy, where) for where in ("cpu", device)
        )
        name = f"{strategy} on {device} and CPU:"
        same = [_drawn(row) for row in clients] == [_drawn(row) for row in other_clients]
        report(f"{name} cohorts, examples, steps", 0.0 if same else 1.0, 0.0)
        report(f"{name} mean widths", _apart(rounds, other_rounds, "mean-width"), tolerance)
        report(f"{name} clients' widths", _apart(clients, other_clients, "width"), tolerance)
        # The same batches from the same weights: the losses of the first round are the same.
        first, other_first = (
            [row for row in rows if row["round"] == 1] for rows in (clients, other_clients)
        )
        report(f"{name} first losses", _apart(first, other_first, "loss"), LOSS_TOLERANCE)


def _run(strategy: str, device: str) -> tuple[list[Row], list[Row]]:
    """Return the rows of the rounds and of the clients that trained."""
    from fedhet_app.results import RunReader  # here: it needs more than PyTorch and NumPy

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedhet_app.cli", "run", "--engine", "inline"]
        settings = f"{SETTINGS} {ADAPTING.get(strategy, '')} strategy={strategy} device={device}"
        subprocess.run(
            [*command, "--results", folder, "--set", settings],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        reader = RunReader(Path(folder))
        return reader.rounds, [row for row in reader.clients if row["trained"]]


def _drawn(row: Row) -> tuple[int, ...]:
    return tuple(row[key] for key in ("round", "partition", "examples", "steps"))


def _apart(rows: list[Row], others: list[Row], key: str) -> float:
    pairs = zip(rows, others, strict=True)
    return max(abs(float(row[key]) - float(other[key])) for row, other in pairs)

"""Runs the app and the bare loop in turn, each as a fresh process, and compares the two."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from processes import Finished, finish, python
from workloads import as_pairs

from fedhet_app.config import parse
from fedhet_app.options import Scalar
from fedhet_app.results import RunReader
from fedhet_app.task import Task

Row = dict[str, Any]
Values = Mapping[str, Scalar]

FIRST_STEADY = 3


def prepare(values: Values) -> None:
    """Decode the data and draw the partition into the cache, so that no run pays for it."""
    Task(parse(values)).partition  # noqa: B018 - reading it fills the cache


def app_run(values: Values, engine: str) -> tuple[Finished, list[Row]]:
    """Run the app and return its rounds: seconds, local steps and clients."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--engine", engine, "--results", folder, "--set", as_pairs(values)]
        finished = finish(python("-m", "fedhet_app.cli", "run", *arguments))
        reader = RunReader(Path(folder))
        clients: dict[int, list[int]] = {}
        for row in reader.clients:
            clients.setdefault(row["round"], []).append(row["partition"])
        rounds = [_round(row, clients[row["round"]]) for row in reader.rounds]
    return finished, rounds


def _round(row: Row, clients: list[int]) -> Row:
    """Return one round of the app; the evaluation that ends a run is not part of its seconds."""
    evaluation = row["seconds-evaluation"] if "accuracy" in row else 0.0
    return {
        "seconds": row["seconds"] - evaluation,
        "local-steps": row["local-steps"],
        "clients": clients,
    }


def bare_run(values: Values, workers: int) -> tuple[Finished, list[Row]]:
    """Run the bare loop and return its rounds likewise."""
    script = Path(__file__).with_name("bare_loop.py")
    finished = finish(python(str(script), as_pairs(values), "--workers", str(workers)))
    return finished, json.loads(finished.output)


def ms_per_step(rounds: Sequence[Row]) -> float:
    """Return the median over steady rounds of milliseconds per local step."""
    steady = rounds[min(FIRST_STEADY, len(rounds)) - 1 :]
    return 1000 * float(median(row["seconds"] / row["local-steps"] for row in steady))


def compare(values: Values, *, engine: str, workers: int, pairs: int) -> Row:
    """Return the medians over pairs of runs, and least and greatest ratio.

    Args:
        values: The workload.
        engine: Of the app.
        workers: Processes of the loop.
        pairs: Runs of each, in turn.

    Raises:
        RuntimeError: App and loop did not do the same work, so comparing them means nothing.
    """
    prepare(values)
    measured = [_pair(values, engine, workers) for _ in range(pairs)]
    ratios = [pair["ratio"] for pair in measured]
    medians = {key: median(pair[key] for pair in measured) for key in measured[0]}
    return medians | {"ratio least": min(ratios), "ratio greatest": max(ratios)}


def _pair(values: Values, engine: str, workers: int) -> dict[str, float]:
    app, app_rounds = app_run(values, engine)
    loop, loop_rounds = bare_run(values, workers)
    for ours, theirs in zip(app_rounds, loop_rounds, strict=True):
        if any(ours[key] != theirs[key] for key in ("clients", "local-steps")):
            raise RuntimeError(f"not the same work: app {ours}, loop {theirs}")
    app_ms, loop_ms = ms_per_step(app_rounds), ms_per_step(loop_rounds)
    pair = {"app ms": app_ms, "loop ms": loop_ms, "ratio": app_ms / loop_ms}
    for name, run in (("app", app), ("loop", loop)):
        pair[f"{name} run s"] = run.seconds
        pair[f"{name} MiB"] = run.main_mib
        pair[f"{name} worker MiB"] = run.worker_mib
    return pair

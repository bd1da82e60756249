"""Studies whose runs have numbers that a test chooses."""

import json

import numpy as np

from fedhet_app.analysis.claims.claims import claims
from fedhet_app.analysis.study import LeftOut, Section, Study
from fedhet_app.analysis.study_run import Run, read_run
from fedhet_app.config import DEFAULTS

SEEDS = (42, 43, 44)
TIERS = [0.25, 0.5, 0.75, 1.0]
CAPACITY = np.array(TIERS)[np.arange(20) % 4]
HOLDS, FAILS = "holds", "does not hold"


def row(number=60, **columns):
    """An evaluated row of ``rounds.jsonl``."""
    usual = {"round": number, "replies": 2, "rejected": [], "local-steps": 20}
    usual |= {"accuracy": 0.5, "loss": 1.0, "mean-width": 0.5, "allocated-mean-width": 0.5}
    return usual | {key.replace("_", "-"): value for key, value in columns.items()}


def writer(tmp_path):
    """Return what writes and reads a run: label, seed, and what differs from an empty one."""

    def write(label, seed=42, *, final=0.5, best=None, strategy=None, **parts):
        directory = tmp_path / label / f"seed{seed}"
        directory.mkdir(parents=True)
        config = {"dataset": "cifar10", "strategy": strategy or label, "seed": seed}
        config |= {"local-epochs": 1, "batch-size": 64} | parts.get("config", {})
        summary = {"status": "completed", "final-accuracy": final, "best-accuracy": best or final}
        summary |= {"mean-width": 0.5, "rounds": 60, "upload-bytes": 1, "download-bytes": 1}
        partition = {"class-histograms": [[1] * 10], "sizes": [320] * 20}
        files = {
            "config.json": {"config": {**DEFAULTS, **config}},
            "summary.json": summary | parts.get("summary", {}),
            "partition.json": partition | parts.get("partition", {}),
            "cost.json": parts.get("cost", []),
        }
        for name, content in files.items():
            (directory / name).write_text(json.dumps(content))
        for name in ("rounds", "clients"):
            course = [row(56, accuracy=best or final), row(accuracy=final)]
            rows = parts.get(name, course if name == "rounds" else [])
            (directory / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        read = read_run(directory, label, seed)
        if not isinstance(read, Run):
            read = LeftOut(label=label, seed=seed, directory=directory, reason=read)
        return read

    return write


def study_of(*runs, dataset="cifar10"):
    finished = tuple(run for run in runs if isinstance(run, Run))
    left_out = tuple(run for run in runs if isinstance(run, LeftOut))
    section = Section(dataset=dataset, suite="", runs=finished)
    return Study(sections=(section,), left_out=left_out)


def judged(id, *runs, dataset="cifar10"):
    (found,) = [each for each in claims(study_of(*runs, dataset=dataset)) if each.id == id]
    return found


def finals(make, label, accuracies, **parts):
    """Runs of seeds 42, 43, ... with these final accuracies."""
    return [make(label, 42 + i, final=final, **parts) for i, final in enumerate(accuracies)]


def adaptation(number, estimate=1.0, width=0.5, capacity=CAPACITY):
    """Rows of all clients after an adaptation; scalars are the same for all."""
    columns = np.broadcast_arrays(capacity, estimate, width)
    names = ("capacity", "divergence", "allocated-width")
    return [
        {"round": number, "partition": i, "trained": False}
        | {name: float(column[i]) for name, column in zip(names, columns, strict=True)}
        for i in range(len(columns[0]))
    ]

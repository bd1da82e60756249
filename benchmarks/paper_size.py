"""What a run of Paper B at its own size takes on this machine's CPU, from a few of its steps.

    python benchmarks/paper_size.py [PRESET...] [--json FILE]

PRESET is a `configs/*/*-paper.toml` (default: all of Paper B). Each runs in a fresh process on the
in-process engine with one torch thread, for one round of two and one of four local steps per
client, on so much of the data that every client still fills a batch. The two give

- step: seconds of one local step of one client, of all models that the method trains in it;
- pass: milliseconds per training example of what a round does beside its steps (E-step, choice of a
  cluster, density ratio block);
- measuring: seconds of one evaluation, fine-tuning included, scaled to the whole data;
- MiB: peak resident memory of the longer run.

Hours are of a whole run on one core: rounds x (clients x local steps x step + examples x pass) and
its evaluations. Examples are those of the data set as it lies here. Prints markdown; `--json FILE`
keeps what is measured, and a later call goes on from there. Close whatever else uses the CPUs.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processes import finish, python
from workloads import as_pairs

from fedhet_app.config import Config, parse
from fedhet_app.config_files import load_toml
from fedhet_app.options import Scalar
from fedhet_app.results import RunReader
from fedhet_app.task import Task

Row = dict[str, Any]

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
FOLDERS = ("fashion-mnist-dual", "cifar10-dual", "cifar100-20-dual", "fed-isic2019")
SHORT, LONG = 2, 4
BATCHES = 3
"""Batches of training examples that a client has on average: enough that each fills one."""


def measure(preset: Path) -> Row:
    """Return what two short runs of a preset take, and what follows for the whole run."""
    values = load_toml(preset)
    whole = parse(values)
    examples = _examples(whole)
    pool = _pool(whole)
    one, _, _ = _run(preset, {**pool, "local-steps": SHORT})
    two, clients, mib = _run(preset, {**pool, "local-steps": LONG})
    if min(clients) < whole.batch_size:
        raise RuntimeError(f"{preset}: a client with {min(clients)} examples fills no batch")
    steps = len(clients) * (LONG - SHORT)
    step = (two["seconds-training"] - one["seconds-training"]) / steps
    beside = one["seconds-training"] - len(clients) * SHORT * step
    per_example = max(beside, 0.0) / sum(clients)
    measuring = two["seconds-evaluation"] * examples / sum(clients)
    evaluations = whole.num_server_rounds // whole.evaluate_every
    a_round = whole.num_clients * whole.local_steps * step + examples * per_example
    return {
        "preset": _name(preset),
        "examples": examples,
        "step": step,
        "pass": 1000 * per_example,
        "measuring": measuring,
        "mib": mib,
        "hours": (whole.num_server_rounds * a_round + evaluations * measuring) / 3600,
    }


def _name(preset: Path) -> str:
    return f"{preset.parent.name}/{preset.name}"


def _examples(config: Config) -> int:
    return int(sum(Task(config).partition.sizes))


def _pool(config: Config) -> Mapping[str, Scalar]:
    """Return the options that leave each client a few batches."""
    wanted = BATCHES * config.batch_size * config.num_clients
    if config.partition == "dual":
        return {"dual.examples": wanted}
    return {"max-train-examples": wanted}


def _run(preset: Path, values: Mapping[str, Scalar]) -> tuple[Row, list[int], float]:
    """Run one round; return its row, its clients' numbers of examples, and peak memory in MiB."""
    own = {"num-server-rounds": 1, "checkpoint-every": 0, "device": "cpu", **values}
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--engine", "inline", "--results", folder, "--set", as_pairs(own)]
        finished = finish(python("-m", "fedhet_app.cli", "run", str(preset), *arguments))
        reader = RunReader(Path(folder))
        (row,) = reader.rounds
        return row, [client["examples"] for client in reader.clients], finished.main_mib


def main() -> None:
    """Measure, and print a row for each preset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    presets = arguments.presets or [
        path for folder in FOLDERS for path in sorted((CONFIGS / folder).glob("*-paper.toml"))
    ]
    rows: list[Row] = []
    if arguments.json and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())
    known = {row["preset"] for row in rows}
    for preset in presets:
        if _name(preset) in known:
            continue
        rows.append(measure(preset))
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
    print("| preset | examples | step (s) | pass (ms) | measuring (s) | MiB | hours |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['preset']} | {row['examples']} | {row['step']:.2f} | {row['pass']:.1f} "
            f"| {row['measuring']:.0f} | {row['mib']:.0f} | {row['hours']:.1f} |"
        )


if __name__ == "__main__":
    main()

"""What a run of Paper B at its own size takes on this machine's CPU, from a few of its steps.

    python benchmarks/paper_size.py [PRESET...] [--json FILE]

PRESET is a `configs/*/*-paper.toml` (default: all of Paper B). Each runs three times for one round
in a fresh process, on the in-process engine with one torch thread: one local step per client on
three batches of examples per client, two steps on those, and one step on nine batches. They give

- step: seconds of one local step of one client, of all models that the method trains in it;
- pass: milliseconds per training example of what a round does beside its steps (E-step, choice of a
  cluster, density ratio block);
- measuring: seconds of one evaluation, fine-tuning included, scaled to the whole data;
- MiB: peak resident memory of the run of two steps.

A client that fills no batch is not counted, nor is the largest: its turn comes first, and it pays
for what a process does once. Hours are of a whole run on one core: rounds x (clients x (rest +
local steps x step) + examples x pass) and its evaluations, where rest is what neither more steps
nor more examples lengthen. Examples are those of the data set as it lies here. Prints markdown;
`--json FILE` keeps what is measured, and a later call goes on from there. Close whatever else uses
the CPUs.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
FEW, MANY = 3, 9
"""Batches of training examples that a client has on average."""


def measure(preset: Path) -> Row:
    """Return what three short runs of a preset take, and what follows for the whole run."""
    values = load_toml(preset)
    whole = parse(values)
    examples = sum(Task(whole).partition.sizes)
    one = _run(preset, {**_pool(whole, FEW), "local-steps": 1})
    two = _run(preset, {**_pool(whole, FEW), "local-steps": 2})
    large = _run(preset, {**_pool(whole, MANY), "local-steps": 1})
    first = min(one.examples, key=lambda i: (-one.examples[i], i))
    counted = [i for i, n in one.examples.items() if i != first and n >= whole.batch_size]
    clients, seconds = len(counted), one.seconds_of(counted)
    step = (two.seconds_of(counted) - seconds) / clients
    more = large.examples_of(counted) - one.examples_of(counted)
    per_example = max(large.seconds_of(counted) - seconds, 0.0) / more
    rest = max(seconds - one.examples_of(counted) * per_example - clients * step, 0.0) / clients
    measuring = large.measuring * examples / sum(large.examples.values())
    evaluations = whole.num_server_rounds // whole.evaluate_every
    a_client = rest + whole.local_steps * step
    a_round = whole.num_clients * a_client + examples * per_example
    return {
        "preset": _name(preset),
        "examples": examples,
        "step": step,
        "pass": 1000 * per_example,
        "rest": rest,
        "measuring": measuring,
        "mib": two.mib,
        "round": a_round,
        "hours": (whole.num_server_rounds * a_round + evaluations * measuring) / 3600,
    }


def _name(preset: Path) -> str:
    return f"{preset.parent.name}/{preset.name}"


def _pool(config: Config, batches: int) -> Mapping[str, Scalar]:
    """Return the options that leave each client that many batches."""
    wanted = batches * config.batch_size * config.num_clients
    if config.partition == "dual":
        return {"dual.examples": wanted}
    return {"max-train-examples": wanted}


@dataclass(frozen=True)
class Short:
    """One round: examples and seconds by client, of its evaluation, and the process's memory."""

    examples: dict[int, int]
    seconds: dict[int, float]
    measuring: float
    mib: float

    def examples_of(self, clients: Iterable[int]) -> int:
        """Return the examples of some clients together."""
        return sum(self.examples[i] for i in clients)

    def seconds_of(self, clients: Iterable[int]) -> float:
        """Return what some clients took together."""
        return sum(self.seconds[i] for i in clients)


def _run(preset: Path, values: Mapping[str, Scalar]) -> Short:
    own = {"num-server-rounds": 1, "checkpoint-every": 0, "device": "cpu", **values}
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--engine", "inline", "--results", folder, "--set", as_pairs(own)]
        finished = finish(python("-m", "fedhet_app.cli", "run", str(preset), *arguments))
        reader = RunReader(Path(folder))
        (row,) = reader.rounds
        clients = reader.clients
    return Short(
        examples={each["partition"]: each["examples"] for each in clients},
        seconds={
            each["partition"]: each["seconds"] + each.get("seconds-e-step", 0.0) for each in clients
        },
        measuring=row["seconds-evaluation"],
        mib=finished.main_mib,
    )


def _preset(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such preset: {text}")
    return path


def main() -> None:
    """Measure, and print a row for each preset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", type=_preset)
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
    print("| preset | examples | step (s) | pass (ms) | round (s) | measuring (s) | MiB | hours |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['preset']} | {row['examples']} | {row['step']:.2f} | {row['pass']:.2f} "
            f"| {row['round']:.0f} | {row['measuring']:.0f} | {row['mib']:.0f} "
            f"| {row['hours']:.1f} |"
        )


if __name__ == "__main__":
    main()

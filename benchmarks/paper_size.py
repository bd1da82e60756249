"""What a run of Paper B at its own size takes on this machine's CPU, from a few of its steps.

    python benchmarks/paper_size.py [PRESET...] [--json FILE]

PRESET is a `configs/*/*-paper.toml` (default: all of Paper B). Each is begun three times in a fresh
process, on the in-process engine with one torch thread, and stopped after its first round: one
local step per client on three batches of examples per client, two steps on those, and one step on
nine batches (Ditto, which deals its steps to two models: two, four and two). Under dual
heterogeneity three clients are enough: what a client does does not depend on how many there are.
They give

- step: seconds of one local step of one client, of all models that the method trains in it;
- pass: milliseconds per training example of what a round does beside its steps (E-step, choice of a
  cluster, density ratio block);
- MiB: peak resident memory of the run of two steps.

A client that fills no batch is not counted, nor is the largest: its turn comes first, and it pays
for what a process does once. Hours are of a whole run's training on one core, without evaluations:
rounds x (clients x (rest + local steps x step) + examples x pass), where rest is what neither more
steps nor more examples lengthen. Examples and natural clients are those of the data set as it lies
here. It prints markdown; `--json FILE` keeps what is measured, and a later call goes on from there.
Close whatever else uses the CPUs.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from processes import finish, python

from fedhet_app import engine
from fedhet_app.config import Config, parse
from fedhet_app.config_files import load_toml
from fedhet_app.options import Scalar
from fedhet_app.results import RunReader, round_observer
from fedhet_app.task import Task

Row = dict[str, Any]

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
FOLDERS = ("fashion-mnist-dual", "cifar10-dual", "cifar100-20-dual", "fed-isic2019")
FEW, MANY = 3, 9
"""Batches of training examples that a client has on average."""
CLIENTS = 3


def measure(preset: Path) -> Row:
    """Return what three short runs of a preset take, and what follows for the whole run."""
    whole = _with_clients_here(parse(load_toml(preset)))
    task = Task(whole)
    examples = int(sum(task.partition.sizes))
    few, many = (_pool(whole, batches) for batches in (FEW, MANY))
    models = 2 if whole.strategy == "ditto" else 1
    one = _begun(preset, {**few, "local-steps": models})
    two = _begun(preset, {**few, "local-steps": 2 * models})
    large = _begun(preset, {**many, "local-steps": models})
    first = {one.first, two.first, large.first}
    counted = [i for i, n in one.examples.items() if i not in first and n >= whole.batch_size]
    clients, seconds = len(counted), one.seconds_of(counted)
    step = (two.seconds_of(counted) - seconds) / (clients * models)
    more = large.examples_of(counted) - one.examples_of(counted)
    per_example = max(large.seconds_of(counted) - seconds, 0.0) / more
    beside = seconds - one.examples_of(counted) * per_example
    rest = max(beside / clients - models * step, 0.0)
    a_client = rest + whole.local_steps * step
    a_round = whole.num_clients * a_client + examples * per_example
    return {
        "preset": _name(preset),
        "examples": examples,
        "step": step,
        "pass": 1000 * per_example,
        "rest": rest,
        "mib": two.mib,
        "round": a_round,
        "hours": whole.num_server_rounds * a_round / 3600,
    }


def _with_clients_here(config: Config) -> Config:
    """Return a run with as many natural clients as the data set has here, where it has fewer."""
    if config.partition != "natural":
        return config
    owners = Task(config).dataset.train_groups
    assert owners is not None, "the partition is of these"
    return config.with_nodes(min(config.num_clients, len(np.unique(owners))))


def _name(preset: Path) -> str:
    return f"{preset.parent.name}/{preset.name}"


def _pool(config: Config, batches: int) -> Mapping[str, Scalar]:
    """Return the options that leave each client that many batches, and as few clients as serve."""
    wanted = batches * config.batch_size
    if config.partition == "dual":
        return {"dual.examples": wanted * CLIENTS, "num-clients": CLIENTS}
    return {"max-train-examples": wanted * config.num_clients, "num-clients": config.num_clients}


@dataclass(frozen=True)
class Short:
    """One round: examples and seconds by client, and the process's memory in MiB."""

    examples: dict[int, int]
    seconds: dict[int, float]
    mib: float

    @property
    def first(self) -> int:
        """The client whose turn comes first: the one with the most examples."""
        return min(self.examples, key=lambda i: (-self.examples[i], i))

    def examples_of(self, clients: Iterable[int]) -> int:
        """Return the examples of some clients together."""
        return sum(self.examples[i] for i in clients)

    def seconds_of(self, clients: Iterable[int]) -> float:
        """Return what some clients took together."""
        return sum(self.seconds[i] for i in clients)


class _Enough(Exception):  # noqa: N818 - what was to be measured is
    pass


def begin(preset: Path, values: Mapping[str, Scalar], directory: str) -> None:
    """Run a preset, with values of its own, for one round."""

    def stop(row: Mapping[str, Any]) -> None:
        raise _Enough

    round_observer.set(stop)
    own: dict[str, Scalar] = {"num-server-rounds": 2, "evaluate-every": 0, "device": "cpu"}
    own |= {**values, "checkpoint-every": 0, "results-dir": directory}
    config = parse({**load_toml(preset), **own})
    with suppress(_Enough):
        engine.run(config, engine="inline")


def _begun(preset: Path, values: Mapping[str, Scalar]) -> Short:
    with tempfile.TemporaryDirectory() as folder:
        asked = [str(preset), json.dumps(dict(values)), folder]
        finished = finish(python(__file__, "--begin", *asked))
        reader = RunReader(Path(folder))
        clients = reader.clients
    return Short(
        examples={each["partition"]: each["examples"] for each in clients},
        seconds={
            each["partition"]: each["seconds"] + each.get("seconds-e-step", 0.0) for each in clients
        },
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
    parser.add_argument("--begin", nargs=3, metavar=("PRESET", "VALUES", "DIR"))
    arguments = parser.parse_args()
    if arguments.begin:
        preset, values, directory = arguments.begin
        begin(Path(preset), json.loads(values), directory)
        return
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
    print("| preset | examples | step (s) | pass (ms) | round (s) | MiB | hours |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['preset']} | {row['examples']} | {row['step']:.2f} | {row['pass']:.2f} "
            f"| {row['round']:.0f} | {row['mib']:.0f} | {row['hours']:.1f} |"
        )


if __name__ == "__main__":
    main()

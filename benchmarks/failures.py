"""Runs a hundred rounds in which a fifth of all replies fail, beside the same without faults.

    python benchmarks/failures.py --results DIR [--strategies has-fl fedavg scaffold] [--jobs 1]

Of the failures half are clients that raise before they train, half are replies that never arrive
although the client has trained. Prints accuracy (mean of the last ten rounds, in percent), the
difference in points, and the resident memory of the process after rounds 20 and 100: server and
clients share it. Exits with status 1 where a run does not complete, accuracy falls by more than two
points, or memory grows by more than a tenth.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from flwr.app import Context, Message, RecordDict

from fedhet_app.config import parse
from fedhet_app.engine import InlineGrid, virtual_nodes
from fedhet_app.engine.inline import RUN_ID, SERVER_NODE
from fedhet_app.options import Scalar
from fedhet_app.results import SUMMARY, RunReader, round_observer
from fedhet_app.server_app import app as server_app

RATE, TAIL, EARLY = 0.2, 10, 20
POINTS, GROWTH = 2.0, 1.1
MEMORY = "memory.json"
PLAIN_SGD: dict[str, Scalar] = {"momentum": 0.0, "weight-decay": 0.0}


class FailingGrid(InlineGrid):
    """An in-process grid on which a share of the clients' training fails, drawn by a seed."""

    def __init__(self, config: dict[str, Scalar], clients: int, rate: float, seed: int) -> None:
        super().__init__(config, virtual_nodes(clients))
        self._rate, self._rng = rate, np.random.default_rng(seed)
        self._lost: set[str] = set()

    def _call(self, message: Message, context: Context) -> tuple[Message, Context]:
        draw = 1.0
        if message.metadata.message_type.startswith("train"):
            draw = self._rng.random()
        if draw < self._rate / 2:
            raise RuntimeError("the battery is empty")
        if draw < self._rate:
            self._lost.add(message.metadata.message_id)
        return super()._call(message, context)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run the messages; some replies are lost on their way."""
        replies = super().send_and_receive(messages, timeout=timeout)
        return [r for r in replies if r.metadata.reply_to_message_id not in self._lost]


@dataclass(frozen=True)
class Job:
    """One run."""

    strategy: str
    seed: int
    rate: float
    directory: Path

    def run(self, rounds: int) -> None:
        """Run it in this process, and leave its memory by round beside its results."""
        values = {
            "strategy": self.strategy,
            "seed": self.seed,
            "num-server-rounds": rounds,
            "device": "cpu",
            "results-dir": str(self.directory),
            **(PLAIN_SGD if self.strategy == "scaffold" else {}),
        }
        config = parse(values)
        grid = FailingGrid(config.flat(), config.num_clients, self.rate, self.seed)
        memory, process = {}, psutil.Process()

        def note(row: Mapping[str, Any]) -> None:
            memory[row["round"]] = process.memory_info().rss

        round_observer.set(note)
        server_app(grid, Context(RUN_ID, SERVER_NODE, {}, RecordDict(), config.flat()))
        (self.directory / MEMORY).write_text(json.dumps(memory), encoding="utf-8")

    def finish(self, rounds: int) -> None:
        """Run it in a process of its own, unless an earlier call has."""
        if (self.directory / SUMMARY).exists():
            return
        shown = f"{self.strategy} seed {self.seed} rate {self.rate:g}"
        print(shown, flush=True)
        asked = [self.strategy, str(self.seed), str(self.rate), str(self.directory)]
        command = [sys.executable, __file__, "--one", *asked, "--rounds", str(rounds)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            print(f"{shown}: status {done.returncode}\n{done.stderr[-2000:]}", flush=True)

    def numbers(self, rounds: int) -> dict[str, float] | None:
        """Return what the table shows of it; ``None`` where it did not complete."""
        if not (self.directory / SUMMARY).exists():
            return None
        reader = RunReader(self.directory)
        memory = json.loads((self.directory / MEMORY).read_text(encoding="utf-8"))
        rows, early = reader.rounds, str(min(EARLY, rounds))
        return {
            "accuracy": 100 * float(np.mean([row["accuracy"] for row in rows[-TAIL:]])),
            "asked": sum(row["replies"] for row in rows) + reader.summary["rejected"],
            "failed": reader.summary["rejected"],
            "early": memory[early] / 2**20,
            "late": memory[str(rounds)] / 2**20,
        }


def table(jobs: Sequence[Job], rounds: int) -> tuple[str, bool]:
    """Return the markdown table, and whether every strategy is within the bounds."""
    lines = [
        "| strategy | seed | without faults | with | difference | failed replies "
        f"| MiB at round {min(EARLY, rounds)} | at {rounds} | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    good, by_strategy = True, defaultdict[str, list[float]](list)
    found = {(job.strategy, job.seed, job.rate): job.numbers(rounds) for job in jobs}
    for strategy, seed in dict.fromkeys((job.strategy, job.seed) for job in jobs):
        clean, faulty = found[strategy, seed, 0.0], found[strategy, seed, RATE]
        if clean is None or faulty is None:
            lines.append(f"| {strategy} | {seed} | not completed | | | | | | |")
            good = False
            continue
        difference, ratio = faulty["accuracy"] - clean["accuracy"], faulty["late"] / faulty["early"]
        by_strategy[strategy].append(difference)
        good &= ratio <= GROWTH
        lines.append(
            f"| {strategy} | {seed} | {clean['accuracy']:.2f} | {faulty['accuracy']:.2f} "
            f"| {difference:+.2f} | {faulty['failed']:.0f} of {faulty['asked']:.0f} "
            f"| {faulty['early']:.0f} | {faulty['late']:.0f} | {ratio:.3f} |"
        )
    for strategy, differences in by_strategy.items():
        mean = float(np.mean(differences))
        good &= mean >= -POINTS
        lines.append(f"\n{strategy}: mean difference {mean:+.2f} points")
    return "\n".join(lines), good


def main() -> int:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--strategies", nargs="+", default=["has-fl", "fedavg", "scaffold"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--one", nargs=4, metavar=("STRATEGY", "SEED", "RATE", "DIR"))
    options = parser.parse_args()
    if options.one:
        strategy, seed, rate, directory = options.one
        Job(strategy, int(seed), float(rate), Path(directory)).run(options.rounds)
        return 0
    if options.results is None:
        parser.error("--results is needed")
    results = options.results.resolve()
    jobs = [
        Job(strategy, seed, rate, results / f"{strategy}-seed{seed}-rate{rate:g}")
        for strategy, seed, rate in product(options.strategies, options.seeds, (0.0, RATE))
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: job.finish(options.rounds), jobs))
    text, good = table(jobs, options.rounds)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

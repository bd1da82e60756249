"""How long an exchange of messages takes on devices: Flower's default polling, and the fastest.

    python tests/deploy/exchange_time.py [NODES]

A run of FedAvg on loopback whose clients do one step: a round is one exchange. Most of it is
polling, and starting a Python process with PyTorch for every message.
"""

import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from federation import FAST, federation

ROUNDS = 6
PATIENCE = 600
RUN = {
    "strategy": "fedavg",
    "max-train-examples": 300,
    "local-steps": 1,
    "batch-size": 16,
    "num-server-rounds": ROUNDS,
    "fraction-train": 1.0,
    "evaluate-every": 0,
    "device": "cpu",
}


def seconds_per_exchange(folder, nodes, environment):
    """Return the seconds of every round but the first."""
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    with federation(folder, configs, environment=environment) as opened:
        directory = folder / "results"
        run = opened.submit({**RUN, "num-clients": nodes, "results-dir": str(directory)})
        rows = opened.wait_for_round(directory, ROUNDS, PATIENCE)
        opened.wait_for_end(run, PATIENCE)
    return [row["seconds-training"] for row in rows[1:]]


def main():
    """Measure both and write the medians."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with TemporaryDirectory() as folder:
        for name, environment in (("default", {}), ("fast", FAST)):
            seconds = seconds_per_exchange(Path(folder) / name, nodes, environment)
            low, high, load = min(seconds), max(seconds), os.getloadavg()[0]
            sys.stdout.write(
                f"{name}: {median(seconds):.1f} s an exchange ({low:.1f} to {high:.1f}), "
                f"{nodes} nodes, load {load:.0f} on {os.cpu_count()} cores\n"
            )


if __name__ == "__main__":
    main()

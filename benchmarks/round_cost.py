"""Compares the app with a bare PyTorch loop that does the same local steps.

    python benchmarks/round_cost.py [--workload W1 W2 W3] [--engine ray inline] [--pairs 3]

App and loop run in turn (A B A B), each as a fresh process: `fedhet run` on the Ray engine beside
one loop process per CPU, the in-process engine beside one. Both train the same clients on the same
batches with one torch thread each; the loop averages nothing and sends nothing (`bare_loop`).

- ms per step: seconds of a whole round / its local steps, the median over rounds from the third on
  (the last, where a run is shorter). The evaluation that ends a run is taken off.
- ratio: app / loop; the median over the pairs, the least and the greatest.
- run: seconds from the start to the end of the process, imports included (the optimisers of PyTorch
  import its compiler, seconds that the app does without).
- MiB: peak resident memory of the main process / of the largest worker.

Instead of that, any of `--memory` (peak memory of the in-process engine by number of virtual
clients, the cohort being equal), `--widths` and `--precision` (seconds of one client's training)
and `--bytes` (size of one client's messages); they use the first workload. Prints markdown;
`--json FILE` writes the numbers. Close whatever else uses the CPUs.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import client_cost
from pairs import Row, Values, app_run, compare, prepare
from workloads import WORKLOADS

MEMORY_COHORT, MEMORY_ROUNDS = 100, 3


def rounds(arguments: argparse.Namespace) -> list[Row]:
    """Return a row for each workload and engine."""
    rows: list[Row] = []
    for name in arguments.workload:
        values = WORKLOADS[name]
        if arguments.rounds:
            values = values | {"num-server-rounds": arguments.rounds}
        for engine in arguments.engine:
            print(f"{name} on {engine} ...", file=sys.stderr)
            workers = (os.cpu_count() or 1) if engine == "ray" else 1
            row = compare(values, engine=engine, workers=workers, pairs=arguments.pairs)
            rows.append({"workload": name, "engine": engine, "loop processes": workers} | row)
    return rows


def shown(row: Row) -> Row:
    """Return a row of `rounds` the way it is printed."""
    return {
        "workload": row["workload"],
        "engine": row["engine"],
        "loop processes": row["loop processes"],
        "app ms per step": f"{row['app ms']:.3f}",
        "loop ms per step": f"{row['loop ms']:.3f}",
        "ratio": f"{row['ratio']:.3f} ({row['ratio least']:.3f} to {row['ratio greatest']:.3f})",
        "app run s": f"{row['app run s']:.1f}",
        "loop run s": f"{row['loop run s']:.1f}",
        "app MiB": f"{row['app MiB']:.0f} / {row['app worker MiB']:.0f}",
        "loop MiB": f"{row['loop MiB']:.0f} / {row['loop worker MiB']:.0f}",
    }


def memory(values: Values, clients: list[int]) -> list[Row]:
    """Return peak memory of the in-process engine by number of virtual clients."""
    rows: list[Row] = []
    for count in clients:
        cohort = min(MEMORY_COHORT, count)
        size = {"num-clients": count, "num-server-rounds": MEMORY_ROUNDS}
        run = {**values, **size, "fraction-train": cohort / count, "partition": "iid"}
        prepare(run)
        finished, _ = app_run(run, "inline")
        rows.append({"virtual clients": count, "cohort": cohort, "MiB": round(finished.main_mib)})
    return rows


def markdown(rows: list[Row]) -> str:
    """Return rows with equal keys as a table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(map(str, row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="The app beside a bare PyTorch loop.")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=["W1", "W2", "W3"])
    parser.add_argument("--engine", nargs="+", choices=["ray", "inline"], default=["ray", "inline"])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each, or client repeats")
    parser.add_argument("--rounds", type=int, help="instead of the workload's own number")
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1000], help="of --memory")
    for name in ("memory", "widths", "precision", "bytes"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    return parser.parse_args()


def main() -> None:
    """Measure what the command line asks for."""
    arguments = parsed()
    values = WORKLOADS[arguments.workload[0]]
    alternatives: dict[str, Callable[[], list[Row]]] = {
        "memory": lambda: memory(values, arguments.clients),
        "widths": lambda: client_cost.by_width(values, arguments.pairs),
        "precision": lambda: client_cost.by_precision(values, arguments.pairs),
        "bytes": client_cost.bytes_by_width,
    }
    chosen = {name: measure() for name, measure in alternatives.items() if vars(arguments)[name]}
    for rows in chosen.values():
        print(markdown(rows))
    if not chosen:
        chosen = {"rounds": rounds(arguments)}
        print(markdown([shown(row) for row in chosen["rounds"]]))
    if arguments.json:
        arguments.json.write_text(json.dumps(chosen, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

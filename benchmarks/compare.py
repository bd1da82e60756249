"""Runs every strategy's preset over several seeds, then writes README.md's table and figure.

    python benchmarks/compare.py fashion-mnist --results DIR [--seeds 42 43 44] [--jobs 2]

Runs are one-core, in process; what is finished in DIR is not run again. Random-budget matches the
mean width of the HAS-FL run of its seed, which therefore runs first.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from scipy.stats import pearsonr

from fedhet_app.results import SUMMARY, RunReader

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
ORDER = (
    "has-fl",
    "has-fl-off",
    "random-budget",
    "heterofl",
    "fjord",
    "uniform",
    "fedavg",
    "fedprox",
)
SETTINGS = {"has-fl-off": "has-fl.coverage=false"}


@dataclass(frozen=True)
class Job:
    """One run: a row of the table and a seed."""

    row: str
    seed: int
    directory: Path

    def command(self, dataset: str) -> list[str]:
        """Return the command line of this run."""
        preset = "has-fl" if self.row == "has-fl-off" else self.row
        settings = f"seed={self.seed} {SETTINGS.get(self.row, '')}"
        if self.row == "random-budget":
            settings += f" random-budget.match={self.directory.parent / f'has-fl-seed{self.seed}'}"
        return [
            *(sys.executable, "-m", "fedhet_app.cli", "run"),
            str(ROOT / "configs" / dataset / f"{preset}.toml"),
            *("--engine", "inline", "--set", settings, "--results", str(self.directory)),
        ]


def run_missing(jobs: Sequence[Job], dataset: str, parallel: int) -> None:
    """Run what is not finished, HAS-FL first."""
    missing = [job for job in jobs if not (job.directory / SUMMARY).exists()]

    def run(job: Job) -> None:
        print(f"{job.row} seed {job.seed}", flush=True)
        subprocess.run(job.command(dataset), check=True, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(parallel) as pool:
        first = [job for job in missing if job.row == "has-fl"]
        list(pool.map(run, first))
        list(pool.map(run, [job for job in missing if job not in first]))


def spread(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation in percent."""
    percent = 100 * np.array(values)
    return f"{percent.mean():.1f} ± {percent.std(ddof=1) if len(percent) > 1 else 0:.1f}"


def divergence_and_capacity(reader: RunReader) -> tuple[list[float], list[float]]:
    """Return each client's smoothed divergence after the last adaptation, and its capacity."""
    rows = [row for row in reader.clients if "allocated-width" in row]
    last = [row for row in rows if row["round"] == max(row["round"] for row in rows)]
    return [row["divergence"] for row in last], [row["capacity"] for row in last]


def table(jobs: Sequence[Job]) -> str:
    """Return the markdown table: accuracies in percent; seconds of the fastest seed's run."""
    lines = [
        "| strategy | final | best | half-width slice | mean width | never trained | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ORDER:
        readers = [RunReader(job.directory) for job in jobs if job.row == row]
        if not readers:
            continue
        sums = [reader.summary for reader in readers]
        halves = [reader.rounds[-1]["slice-accuracy"]["0.5"] for reader in readers]
        lines.append(
            f"| {row} | {spread([s['final-accuracy'] for s in sums])} "
            f"| {spread([s['best-accuracy'] for s in sums])} | {spread(halves)} "
            f"| {np.mean([s['mean-width'] for s in sums]):.3f} "
            f"| {100 * np.mean([s['never-trained'] for s in sums]):.0f} % "
            f"| {min(s['wall-seconds'] for s in sums):.0f} |"
        )
    for job in jobs:
        if job.row == "has-fl":
            r, _ = pearsonr(*divergence_and_capacity(RunReader(job.directory)))
            lines.append(f"\nr(divergence, capacity), HAS-FL, seed {job.seed}: {r:+.2f}")
    return "\n".join(lines)


def figure(jobs: Sequence[Job], path: Path) -> None:
    """Draw accuracy over rounds (mean over seeds) and HAS-FL's divergence against capacity."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2))
    for number, row in enumerate(ORDER):
        runs = [RunReader(job.directory).rounds for job in jobs if job.row == row]
        curves = [[r["accuracy"] for r in rounds if "accuracy" in r] for rounds in runs]
        if curves:
            at = [r["round"] for r in runs[0] if "accuracy" in r]
            left.plot(at, 100 * np.mean(curves, axis=0), label=row, color=f"C{number}", lw=1.5)
    left.set(xlabel="round", ylabel="test accuracy, full width (%)")
    left.legend(fontsize=8, ncols=2)
    for number, job in enumerate(job for job in jobs if job.row == "has-fl"):
        divergence, capacity = divergence_and_capacity(RunReader(job.directory))
        shifted = np.array(capacity) + 0.02 * (number - 1)
        right.scatter(shifted, divergence, s=18, label=f"seed {job.seed}", alpha=0.8)
    right.set(xlabel="capacity (largest width)", ylabel="smoothed divergence estimate")
    right.set_xticks([0.25, 0.5, 0.75, 1.0])
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)


def main() -> None:
    """Run, then write table and figure beside the runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=sorted(p.name for p in (ROOT / "configs").iterdir()))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", nargs="+", choices=ORDER, default=ORDER)
    options = parser.parse_args()
    results = options.results.resolve()
    jobs = [
        Job(row, seed, results / f"{row}-seed{seed}")
        for seed in options.seeds
        for row in options.rows
    ]
    run_missing(jobs, options.dataset, options.jobs)
    text = table(jobs)
    (results / "table.md").write_text(text + "\n", encoding="utf-8")
    figure(jobs, results / f"{options.dataset}.png")
    print(text)


if __name__ == "__main__":
    main()

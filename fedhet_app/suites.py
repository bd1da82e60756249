"""Suites: many runs written down in one YAML file, every one checked when the file is read.

::

    name: comparison
    base: {dataset: digits, num-server-rounds: 60}
    seeds: [42, 43, 44]
    runs:
      has-fl: {strategy: has-fl}
      random-budget: {strategy: random-budget, random-budget.match: "@has-fl"}
      loose: {strategy: has-fl, has-fl.gamma: 0.5, seeds: [42]}

``base`` and the runs hold run-config keys, flat or in tables, as presets do; options of a method in
``base`` are for the runs of that strategy. With ``extends: FILE`` the tables of another suite lie
below; a run of it that is ``null`` here is left out. ``"@name"`` is the run
directory of that run with the same seed, which runs first. Results: a folder with ``suite.json``
and a run directory ``<label>/seed<seed>`` for each run. Paper A's tables in a report take runs by
label: those of ``configs/suites/paper-a-*.yaml``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedhet_app.config import PATHS, Config, parse
from fedhet_app.errors import FedhetError
from fedhet_app.suite_files import Entry, check_known, is_reference, located, read_suite

Key = tuple[str, int]
"""Label and seed."""


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """One run of a suite.

    Attributes:
        label: Its name in the file, shared by its seeds.
        config: What to run; ``results-dir`` is absolute.
        needs: Labels of the runs, with the same seed, whose results it reads.
    """

    label: str
    config: Config
    needs: frozenset[str]

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.config.seed

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return self.label, self.seed

    @property
    def needed(self) -> set[Key]:
        """The keys of the runs that it needs."""
        return {(label, self.seed) for label in self.needs}

    @property
    def directory(self) -> Path:
        """Its run directory."""
        return Path(self.config.results_dir)

    def __str__(self) -> str:
        return f"{self.label} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A checked suite: all its runs, and the folder of their results."""

    name: str
    results: Path
    runs: tuple[SuiteRun, ...]

    def manifest(self) -> dict[str, Any]:
        """Return the content of ``suite.json``, from which reports take labels and places."""
        rows = [
            {
                "label": run.label,
                "seed": run.seed,
                "directory": run.directory.relative_to(self.results).as_posix(),
                "needs": sorted(run.needs),
                "config": run.config.flat(),
            }
            for run in self.runs
        ]
        return {"name": self.name, "runs": rows}

    def select(self, labels: Sequence[str], seeds: Sequence[int]) -> tuple[SuiteRun, ...]:
        """Return the runs with these labels and seeds (none: all), and those that they need.

        Raises:
            FedhetError: A label or a seed that no run has, or no run that has both.
        """
        for label in labels:
            check_known("--only", label, label, dict.fromkeys(run.label for run in self.runs))
        for seed in seeds:
            check_known("--seed", seed, str(seed), dict.fromkeys(str(r.seed) for r in self.runs))
        chosen = {
            run.key
            for run in self.runs
            if run.label in (labels or [run.label]) and run.seed in (seeds or [run.seed])
        }
        if not chosen:
            remedy = f"the runs named by --only, {', '.join(labels)}, do not have it"
            raise FedhetError("--seed", ", ".join(map(str, seeds)), remedy)
        by_key = {run.key: run for run in self.runs}
        todo = list(chosen)
        while todo:
            needed = by_key[todo.pop()].needed - chosen
            chosen |= needed
            todo += needed
        return tuple(run for run in self.runs if run.key in chosen)


def load_suite(file: Path, results: Path | None = None) -> Suite:
    """Read a suite and check every one of its runs.

    Args:
        file: The YAML file.
        results: Folder for the run directories; by default the suite's name in ``./results``.

    Raises:
        FedhetError: The file cannot be read, or anything in it is wrong; says in which run.
    """
    name, entries = read_suite(file)
    folder = (results or Path("results") / name).resolve()
    columns = [[(label, seed) for seed in entry.seeds] for label, entry in entries.items()]
    runs = []
    for turn in zip_longest(*columns):  # every label's first seed before any second one
        for label, seed in filter(None, turn):
            with located(f"run {label}, seed {seed}, of {file}"):
                config = _config(entries[label], seed, folder, folder / label / f"seed{seed}")
            runs.append(SuiteRun(label=label, config=config, needs=entries[label].needs))
    return Suite(name=name, results=folder, runs=tuple(runs))


def _config(entry: Entry, seed: int, folder: Path, directory: Path) -> Config:
    values = dict(entry.values)
    for key, value in values.items():
        if is_reference(value):
            values[key] = str(folder / str(value)[1:] / f"seed{seed}")
        elif key in PATHS and isinstance(value, str) and value:
            values[key] = str(Path(value).resolve())
    return parse({**values, "seed": seed, "results-dir": str(directory)})

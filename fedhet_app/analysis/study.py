"""The runs of a study by data set, label and seed, read from their directories alone.

A sweep's ``suite.json`` names its runs. Other runs are called after their strategy and those of its
options that are not at their default.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.audit.runs import find_runs
from fedhet_app.analysis.labels import distinguish, label_of
from fedhet_app.analysis.study_run import Run, read_object, read_run
from fedhet_app.errors import FedhetError
from fedhet_app.results import CONFIG
from fedhet_app.suite_files import MANIFEST

COST_ONLY = "paper-size"
"""The label of a run that is there for its cost alone, and too short for anything else."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that no table shows, and why."""

    label: str
    seed: int
    directory: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """The runs of one sweep, or of no sweep, on one data set, seeds ascending in each label.

    Under dual heterogeneity, made or natural, it is another data set: ``dual`` says so.
    """

    dataset: str
    suite: str
    runs: tuple[Run, ...]
    dual: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that occur."""
        return tuple(dict.fromkeys(run.label for run in self.runs))

    @property
    def trained(self) -> tuple[str, ...]:
        """The labels, without one of runs that are there for their cost alone."""
        return tuple(label for label in self.labels if label != COST_ONLY)

    def of(self, label: str) -> tuple[Run, ...]:
        """Return the runs of a label by seed; none where it does not occur."""
        return tuple(run for run in self.runs if run.label == label)

    def pairs(self, label: str, other: str) -> list[tuple[Run, Run]]:
        """Return the runs of two labels that share a seed, by seed."""
        others = {run.seed: run for run in self.of(other)}
        return [(run, others[run.seed]) for run in self.of(label) if run.seed in others]

    def comparable(self, labels: Iterable[str]) -> dict[str, tuple[Run, ...]]:
        """Return the runs of those labels that ran, on seeds that a third of them, or two, share.

        A mean over more seeds than the others have is of other partitions and capacities. A label
        that shares no seed keeps them all.
        """
        own = {label: self.of(label) for label in labels if self.of(label)}
        counts = Counter(run.seed for runs in own.values() for run in runs)
        enough = max(2, len(own) / 3)
        shared = {
            label: tuple(run for run in runs if counts[run.seed] >= enough)
            for label, runs in own.items()
        }
        return {label: shared[label] or own[label] for label in own}


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that was found."""

    sections: tuple[Section, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True)
class _Place:
    directory: Path
    label: str
    seed: int
    suite: str = ""


def load_study(directories: Sequence[Path]) -> Study:
    """Read all runs in and below directories.

    Args:
        directories: Run directories, results of sweeps, or folders that hold either anywhere below.

    Raises:
        FedhetError: A directory holds no run, a ``suite.json`` is damaged, or no run has finished.
    """
    places = _places(directories)
    found = [(place, read_run(place.directory, place.label, place.seed)) for place in places]
    left_out = [_left_out(place, run) for place, run in found if isinstance(run, str)]
    groups: dict[tuple[str, str, bool], list[Run]] = {}
    for place, run in found:
        if isinstance(run, Run):
            dual = paper_b.in_study(run.config)
            groups.setdefault((str(run.config["dataset"]), place.suite, dual), []).append(run)
    sections = []
    for (dataset, suite, dual), runs in sorted(groups.items()):
        kept, twins = _told_apart(runs)
        sections.append(Section(dataset=dataset, suite=suite, runs=kept, dual=dual))
        left_out += twins
    if not sections:
        reasons = "; ".join(f"{each.directory}: {each.reason}" for each in left_out[:3])
        raise FedhetError("DIR", str(directories[0]), f"holds no finished run ({reasons})")
    return Study(sections=tuple(sections), left_out=tuple(left_out))


def _places(directories: Sequence[Path]) -> list[_Place]:
    """Return where every run is, those of manifests first, each once."""
    named: list[_Place] = []
    searched = []
    for directory in directories:
        manifests = sorted(directory.rglob(MANIFEST))
        named += [place for path in manifests for place in _named(path)]
        # A sweep that has just begun has a manifest and no run yet; find_runs would call it empty.
        if not manifests or any(directory.rglob(CONFIG)):
            searched.append(directory)
    own = [_own_name(path) for path in find_runs(searched)]
    places: dict[Path, _Place] = {}
    for place in [*named, *own]:
        places.setdefault(place.directory.resolve(), place)
    return list(places.values())


def _named(manifest: Path) -> list[_Place]:
    try:
        content = read_object(manifest)
        suite = str(content["name"])
        return [
            _Place(
                directory=manifest.parent / str(row["directory"]),
                label=str(row["label"]),
                seed=int(row["seed"]),
                suite=suite,
            )
            for row in content["runs"]
        ]
    except (FedhetError, KeyError, TypeError, ValueError) as error:
        remedy = f"is damaged ({error}); run the sweep again, or remove the file"
        raise FedhetError(MANIFEST, str(manifest), remedy) from error


def _own_name(directory: Path) -> _Place:
    try:
        config: dict[str, Any] = read_object(directory / CONFIG)["config"]
        return _Place(directory=directory, label=label_of(config), seed=int(config["seed"]))
    except (KeyError, TypeError, ValueError) as error:
        remedy = f"its {CONFIG} is not that of a run ({error}); remove it"
        raise FedhetError("run directory", str(directory), remedy) from error


def _left_out(place: _Place, reason: str) -> LeftOut:
    return LeftOut(label=place.label, seed=place.seed, directory=place.directory, reason=reason)


def _told_apart(runs: Sequence[Run]) -> tuple[tuple[Run, ...], list[LeftOut]]:
    """Return runs under labels of one setting each, and those that are there twice."""
    labels = distinguish([run.config for run in runs], [run.label for run in runs])
    order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    kept: dict[tuple[int, int], Run] = {}
    twins = []
    for run, label in zip(runs, labels, strict=True):
        key = (order[label], run.seed)
        if key in kept:
            reason = f"same settings and seed as {kept[key].directory}"
            place = _Place(directory=run.directory, label=label, seed=run.seed)
            twins.append(_left_out(place, reason))
        else:
            kept[key] = replace(run, label=label)
    return tuple(kept[key] for key in sorted(kept)), twins

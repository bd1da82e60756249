"""Where the time of a round of FedSPM goes."""

import math

import numpy as np

from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Cell, Column, Spread, Table

_WORK = {
    "E-step": "seconds-e-step",
    "Supervised steps": "seconds-supervised",
    "Density ratio steps": "seconds-router",
}
_REST, _EVALUATION = "Flower and server", "Evaluation"
_NAMES = (*_WORK, _REST, _EVALUATION)
_NOTE = (
    "Seconds of a round on the clock, evaluation of an evaluated round; shares of the whole run, "
    "less the time in which bridge errors were measured. "
    "The first three are the clients' own seconds, divided by how many of them work at once: the "
    "least number with which their seconds fit into the exchange that they are spent in."
)


def duration_table(section: Section) -> Table | None:
    """Return the seconds and the share of each part of a round; ``None`` without such a run."""
    rows = []
    for label in section.labels:
        runs = [run for run in section.of(label) if _timed(run)]
        if not runs:
            continue
        parts = [_parts(run) for run in runs]
        wholes = [sum(total for _, total in part.values()) for part in parts]
        cells: list[Cell] = [label, len(runs), max(map(_at_once, runs))]
        for name in _NAMES:
            means, totals = zip(*(part[name] for part in parts), strict=True)
            shares = [100 * own / whole for own, whole in zip(totals, wholes, strict=True)]
            cells += [Spread.of(means), Spread.of(shares)]
        rows.append(tuple(cells))
    if not rows:
        return None
    columns = [Column(name="Label"), Column(name="n"), Column(name="Clients at once")]
    for name in _NAMES:
        columns += [Column(name=f"{name} (s)", form=".2f"), Column(name=f"{name} (%)")]
    return Table(
        name="durations",
        title="Time of a round",
        columns=tuple(columns),
        rows=tuple(rows),
        note=_NOTE,
    )


def _timed(run: Run) -> bool:
    return any(set(_WORK.values()) <= row.keys() for row in run.clients)


def _parts(run: Run) -> dict[str, tuple[float, float]]:
    """Return each part's mean seconds in the rounds that have it, and its seconds in all."""
    side_by_side = _at_once(run)
    work = {
        name: sum(float(row[key]) for row in run.clients if key in row) / side_by_side
        for name, key in _WORK.items()
    }
    evaluated = [row["seconds-evaluation"] for row in run.rounds if "accuracy" in row]
    evaluation = math.fsum(row["seconds-evaluation"] for row in run.rounds)
    whole = math.fsum(row["seconds"] - row.get("seconds-bridge", 0.0) for row in run.rounds)
    work[_REST] = whole - evaluation - sum(work.values())
    parts = {name: (total / len(run.rounds), total) for name, total in work.items()}
    parts[_EVALUATION] = (float(np.mean(evaluated)), evaluation)
    return parts


def _at_once(run: Run) -> int:
    """Return the least number of clients at once with which all exchanges last as they did."""
    spent: dict[int, list[float]] = {}
    for row in run.clients:
        own = spent.setdefault(row["round"], [0.0, 0.0])
        own[0] += row.get("seconds-e-step", 0.0)
        own[1] += row.get("seconds-supervised", 0.0) + row.get("seconds-router", 0.0)
    ratios = [
        own / row[lasted]
        for row in run.rounds
        for own, lasted in zip(
            spent.get(row["round"], ()), ("seconds-e-step", "seconds-training"), strict=False
        )
        if row[lasted] > 0
    ]
    return max(1, math.ceil(max(ratios, default=1.0)))

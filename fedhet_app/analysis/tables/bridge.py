"""The bridge errors of FedSPM's surrogate by momentum: the numbers under Paper B's Figure 2."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.analysis.tables.cells import Column, Spread, Table
from fedhet_app.mixture.bridge import Bridge, accumulation, bridge

VARIANTS = ("raw", "shifted")

_KEY = "bridge"
_MEASURED = {
    "gradient_norm2": "gradient-norm2",
    "surrogate_gradient_norm2": "surrogate-gradient-norm2",
    "f": "f",
    "f_next": "f-next",
    "surrogate": "surrogate",
    "surrogate_next": "surrogate-next",
}
_CURVES = ("gradient", "delta", "epsilon")
_COLUMNS = (
    Column(name="Label"),
    Column(name="mu", form="g"),
    Column(name="a_E"),
    Column(name="s_E"),
    Column(name="gamma"),
    Column(name="n"),
    Column(name="Rounds measured"),
    Column(name="Pairs left out"),
    Column(name="Infeasible (%)"),
    Column(name="Gamma2", form=".3g"),
    Column(name="Mean of ||grad F||^2", form=".2e"),
    Column(name="t^(-1/2) sum of delta", form=".2e"),
    Column(name="Mean of epsilon", form=".2e"),
    Column(name="Residual, median", form=".1e"),
    Column(name="Smallest weight", form=".2g"),
)
_NOTE = (
    "Raw takes gamma as it is trained, shifted adds the constant with which the surrogate's "
    "weights sum to one: f depends on it, its surrogate does not. In an infeasible round the "
    "system (6) has no solution with positive weights; it is left out of the columns right of its "
    "share, which are of the last feasible round. Pairs of client and component that explain less "
    "than one example have no constraint; theirs is the mean number over the rounds. Residual and "
    "smallest weight are of all measured rounds. a_E and s_E are those of Theorem 1 for the steps "
    "of the density ratio block."
)


@dataclass(frozen=True, kw_only=True)
class Course:
    """What was measured in one run, gamma raw or shifted.

    Attributes:
        rounds: The feasible rounds, shape ``(R,)``.
        estimates: Curves over those, and the share of the others.
        measured: The number of rounds measured.
        empty: How many pairs of client and component had no constraint, mean over those.
        residual: Median residual of the system (6) over those; infinite where it has no number.
        smallest_weight: The smallest weight of an example in any of those.
    """

    rounds: NDArray[np.int64]
    estimates: Bridge
    measured: int
    empty: float
    residual: float
    smallest_weight: float


def bridged(section: Section) -> tuple[str, ...]:
    """Return the labels with a run whose bridge errors were measured, by momentum."""
    labels = [label for label in section.labels if any(map(_rows, section.of(label)))]
    return tuple(sorted(labels, key=lambda label: momentum_of(section.of(label)[0])))


def momentum_of(run: Run) -> float:
    """Return the momentum of a run's density ratio block."""
    return float(run.config["routing.momentum"])


def courses(runs: Sequence[Run], variant: str) -> list[Course]:
    """Return what was measured in each run that was."""
    return [_course(_rows(run), variant) for run in runs if _rows(run)]


def usual_variant(section: Section) -> str:
    """Return the variant that is feasible in more rounds; raw where both are in as many."""
    runs = [run for label in bridged(section) for run in section.of(label)]
    feasible = {
        variant: sum(len(course.rounds) for course in courses(runs, variant))
        for variant in VARIANTS
    }
    return max(VARIANTS, key=lambda variant: feasible[variant])


def bridge_table(section: Section) -> Table | None:
    """Return the bridge errors by label and variant; ``None`` where none were measured."""
    rows = []
    for label in bridged(section):
        runs = section.of(label)
        momentum, steps = momentum_of(runs[0]), int(runs[0].config["routing.steps"])
        theory = (momentum, *accumulation(momentum, steps))
        for variant in VARIANTS:
            own = courses(runs, variant)
            estimates = [course.estimates for course in own]
            values = (
                [course.empty for course in own],
                [100 * each.infeasible for each in estimates],
                [each.gamma2 for each in estimates],
                *([_last(getattr(each, key)) for each in estimates] for key in _CURVES),
                [course.residual for course in own],
                [course.smallest_weight for course in own],
            )
            measured = sum(course.measured for course in own)
            rows.append((label, *theory, variant, len(own), measured, *map(_spread, values)))
    if not rows:
        return None
    return Table(
        name="bridge",
        title="Bridge errors between the DRM objective and its surrogate",
        columns=_COLUMNS,
        rows=tuple(rows),
        note=_NOTE,
    )


def _rows(run: Run) -> list[tuple[int, Mapping[str, Any]]]:
    return [(row["round"], row[_KEY]) for row in run.rounds if row.get(_KEY)]


def _course(rows: Sequence[tuple[int, Mapping[str, Any]]], variant: str) -> Course:
    points = [point[variant] for _, point in rows]
    feasible = np.array([bool(point["feasible"]) for point in points])
    estimates = bridge(
        feasible=feasible,
        **{name: _numbers(points, key) for name, key in _MEASURED.items()},
    )
    residuals, weights = (_numbers(points, key) for key in ("residual", "smallest-weight"))
    return Course(
        rounds=np.array([number for number, _ in rows], dtype=np.int64)[feasible],
        estimates=estimates,
        measured=len(points),
        empty=float(_numbers(points, "empty-pairs").mean()),
        residual=float(np.median(np.where(np.isnan(residuals), np.inf, residuals))),
        smallest_weight=float(np.fmin.reduce(weights)),
    )


def _numbers(points: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    """Return a number of every round; NaN for one that was not finite."""
    return np.array([math.nan if point[key] is None else point[key] for point in points])


def _last(curve: NDArray[np.float64]) -> float:
    return float(curve[-1]) if len(curve) else math.nan


def _spread(values: Sequence[float]) -> Spread | None:
    """Return the spread over the seeds that have a value."""
    return Spread.of([value for value in values if not math.isnan(value)])

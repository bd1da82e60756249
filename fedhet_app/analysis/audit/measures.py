"""The correlations an audit takes of one run."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedhet_app.analysis.audit.columns import CAPACITY, ESTIMATE, EXAMPLES, TV, WIDTH
from fedhet_app.analysis.audit.runs import AuditedRun
from fedhet_app.analysis.correlation import (
    Correlation,
    partial,
    pearson,
    undefined,
    within_tiers,
)

LABELS: Mapping[str, str] = {
    "estimate-tv": "r(estimate, TV)",
    "estimate-capacity": "r(estimate, capacity)",
    "estimate-tv-given-capacity": "r(estimate, TV | capacity)",
    "estimate-tv-given-capacity-examples": "r(estimate, TV | capacity, examples)",
    "width-tv-given-capacity": "r(width, TV | capacity)",
    "tv-capacity": "r(TV, capacity)",
    "estimate-tv-within-tiers": "r(estimate, TV) within tiers",
    "width-tv-within-tiers": "r(width, TV) within tiers",
}
"""What is computed, by the key it has in results."""
TIERED = ("estimate-tv-within-tiers", "width-tv-within-tiers")


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """One run: its correlations by the keys of ``LABELS``.

    ``read_at`` is the round the estimate is of, 0 where it is each client's mean over rounds;
    ``notes`` say of estimate and width which values stood in for some that are not finite.
    """

    directory: str
    seed: int
    finished: bool
    clients: int
    adaptations: int
    read_at: int
    notes: tuple[str, ...]
    correlations: Mapping[str, Correlation]


def audit_run(run: AuditedRun, column: str) -> RunAudit:
    """Return every correlation of one run; ``column`` is what its estimate is called."""
    return RunAudit(
        directory=str(run.directory),
        seed=run.seed,
        finished=bool(run.summary),
        clients=len(run.variables[TV].values),
        adaptations=run.adaptations,
        read_at=run.variables[ESTIMATE].server_round,
        notes=tuple(filter(None, (run.variables[key].note for key in (ESTIMATE, WIDTH)))),
        correlations={
            "estimate-tv": _correlate(run, column, ESTIMATE, TV),
            "estimate-capacity": _correlate(run, column, ESTIMATE, CAPACITY),
            "estimate-tv-given-capacity": _correlate(run, column, ESTIMATE, TV, CAPACITY),
            "estimate-tv-given-capacity-examples": _correlate(
                run, column, ESTIMATE, TV, CAPACITY, EXAMPLES
            ),
            "width-tv-given-capacity": _correlate(run, column, WIDTH, TV, CAPACITY),
            "tv-capacity": _correlate(run, column, TV, CAPACITY),
            "estimate-tv-within-tiers": _correlate(run, column, ESTIMATE, TV, CAPACITY, tiers=True),
            "width-tv-within-tiers": _correlate(run, column, WIDTH, TV, CAPACITY, tiers=True),
        },
    )


def _correlate(run: AuditedRun, column: str, *variables: str, tiers: bool = False) -> Correlation:
    """Correlate the first two variables, the others held fixed, over clients that have them all."""
    for variable in variables:
        missing = run.variables[variable].missing
        if missing:
            return undefined(missing)
    names = [column if variable == ESTIMATE else variable for variable in variables]
    table = np.stack([run.variables[variable].values for variable in variables])
    known = table[:, np.isfinite(table).all(axis=0)]
    if len(variables) == 2:
        return pearson(known[0], known[1], names)
    if tiers:
        return within_tiers(known[0], known[1], known[2], names)
    return partial(known[0], known[1], known[2:].T, names)

"""Claim B14: the case study on Fed-ISIC2019 (Paper B, Section 4 and Figure 4)."""

from collections.abc import Mapping

import numpy as np

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.claims.base import MIN_SEEDS, ROUNDING, Claim, judge
from fedhet_app.analysis.claims.between import (
    FEDDRM,
    FEDGMM,
    METRICS,
    PER_COMPONENT,
    SHARED,
    Bound,
    between,
    unmeasured,
)
from fedhet_app.analysis.paper_b_labels import by_row
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.mixture import AVERAGE, ROUTING, SYSTEM

_OURS = (SHARED, PER_COMPONENT)
_ABOVE = Bound(above=0.0)


def b14(section: Section) -> list[Claim]:
    """FedSPM is best by every metric, with encoders of their own; Gaussians route worse."""
    return [
        *(
            _best(section, f"B14 ({part})", key)
            for part, key in zip("abc", (SYSTEM, AVERAGE, ROUTING), strict=True)
        ),
        between(
            section,
            "B14 (d)",
            "An encoder for each component does better than one for all.",
            more=PER_COMPONENT,
            less=SHARED,
            key=SYSTEM,
            bound=_ABOVE,
        ),
        between(
            section,
            "B14 (e)",
            "FedGMM routes worse than FedSPM.",
            more=SHARED,
            less=FEDGMM,
            key=ROUTING,
            bound=_ABOVE,
        ),
    ]


def _best(section: Section, id: str, key: str) -> Claim:
    rows = by_row(section)
    labels = [
        label for label in rows.values() if not unmeasured(section, label, key=key, seeds=MIN_SEEDS)
    ]
    seeds = [{run.seed for run in section.of(label)} for label in labels]
    shared = set.intersection(*seeds) if seeds else set()
    values = {
        label: {run.seed: run.percent(key) for run in section.of(label) if run.seed in shared}
        for label in labels
    }
    means = {label: float(np.mean(list(own.values()))) for label, own in values.items() if own}
    ours = max((label for label in means if label in _OURS), key=means.__getitem__, default="")
    rival = max((label for label in means if label not in _OURS), key=means.__getitem__, default="")
    both = bool(ours and rival)
    return judge(
        section,
        id,
        f"FedSPM, the better of its two variants, has the best {METRICS[key]} accuracy.",
        statistic=f"mean {METRICS[key]} accuracy of the better variant, and of the best of "
        f"{', '.join(label for label in means if label not in _OURS) or 'the others'}",
        threshold="above that of every other method",
        per_seed={
            seed: f"{values[ours][seed]:.1f}, {values[rival][seed]:.1f}" for seed in sorted(shared)
        }
        if both
        else {},
        measured=f"{means[ours]:.1f} ({ours}) against {means[rival]:.1f} ({rival})" if both else "",
        holds=both and means[ours] > means[rival] + ROUNDING,
        missing=unmeasured(section, *_asked(rows, key), key=key),
    )


def _asked(rows: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the labels whose accuracy it takes: those that route, or the whole of Table 1."""
    if key == ROUTING:
        return (FEDGMM, FEDDRM, *_OURS)
    others = (row for row in paper_b.METHODS if not row.startswith(SHARED))
    return (*(rows.get(row, row) for row in others), *_OURS)

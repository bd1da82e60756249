"""Claims B1, B3, B4 and B9: methods whose queries nobody routes (Paper B, Section 3.2)."""

import math
from collections.abc import Sequence

import numpy as np

from fedhet_app.analysis.claims.base import MIN_SEEDS, ROUNDING, Claim, judge, points
from fedhet_app.analysis.claims.between import (
    CLUSTERED,
    DITTO,
    FEDAVG,
    FEDEM,
    FEDGMM,
    FEDPROX,
    FINE_TUNED,
    NAMES,
    Bound,
    between,
    gaps,
    mean_gap,
    unmeasured,
)
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.mixture import AVERAGE, SYSTEM

SAME_POINTS = 0.3
AVERAGE_GAIN, SYSTEM_LOSS = 3.0, 1.0
WEIGHTS_POINTS = 4.0
PROXIMAL_POINTS, STANDARD_ERRORS = 1.0, 2.0


def b1(section: Section) -> list[Claim]:
    """One model for all votes as it predicts."""
    own = {run.seed: run.percent(SYSTEM) - run.percent(AVERAGE) for run in section.of(FEDAVG)}
    largest = max(map(abs, own.values()), default=math.nan)
    return [
        judge(
            section,
            "B1",
            "FedAvg's system accuracy is its average accuracy: all clients have one model.",
            statistic="system minus average accuracy of fedavg, in points",
            threshold=f"at most {SAME_POINTS:g} apart on every seed",
            per_seed=own,
            measured=f"at most {largest:.2f} apart" if own else "",
            holds=largest <= SAME_POINTS + ROUNDING,
            missing=unmeasured(section, FEDAVG) or unmeasured(section, FEDAVG, key=AVERAGE),
        )
    ]


def b3(section: Section) -> list[Claim]:
    """Personal models without routing trade system accuracy for average accuracy."""
    return [
        _drift(section, f"B3 ({part})", label)
        for part, label in zip("abc", (FINE_TUNED, DITTO, CLUSTERED), strict=True)
    ]


def b4(section: Section) -> list[Claim]:
    """Weights of one's own over shared models are not enough."""
    return [
        between(
            section,
            "B4 (a)",
            "Mixing weights of its own leave FedEM's average accuracy at about FedAvg's.",
            more=FEDEM,
            less=FEDAVG,
            key=AVERAGE,
            bound=Bound(low=-WEIGHTS_POINTS, high=WEIGHTS_POINTS),
        ),
        *(
            between(
                section,
                f"B4 ({part})",
                f"{NAMES[label]}'s system accuracy is not above FedAvg's.",
                more=label,
                less=FEDAVG,
                key=SYSTEM,
                bound=Bound(high=0.0),
            )
            for part, label in (("b", FEDEM), ("c", FEDGMM))
        ),
    ]


def b9(section: Section) -> list[Claim]:
    """A small proximal term changes next to nothing."""
    difference = mean_gap(section, FEDPROX, FEDAVG, SYSTEM)
    error = difference.sd / math.sqrt(difference.n) if difference.n > 1 else 0.0
    bound = max(PROXIMAL_POINTS, STANDARD_ERRORS * error)
    mus = {float(run.config["fedprox.mu"]) for run in section.of(FEDPROX)}
    return [
        judge(
            section,
            "B9",
            f"FedProx with mu = {_listed(sorted(mus))} ends where FedAvg does.",
            statistic="system accuracy of fedprox minus that of fedavg, paired by seed, in points",
            threshold=f"|mean| <= {PROXIMAL_POINTS:g} or {STANDARD_ERRORS:g} standard errors of "
            "the paired difference, whichever is larger",
            per_seed=gaps(section, FEDPROX, FEDAVG, SYSTEM),
            measured=f"{points(difference)}; bound {bound:.2f}" if difference.n else "",
            holds=abs(difference.mean) <= bound + ROUNDING,
            missing=unmeasured(section, FEDPROX, FEDAVG),
        )
    ]


def _drift(section: Section, id: str, label: str) -> Claim:
    own = [gaps(section, label, FEDAVG, key) for key in (AVERAGE, SYSTEM)]
    average, system = (float(np.mean(list(each.values()))) if each else np.nan for each in own)
    return judge(
        section,
        id,
        f"{NAMES[label]} gains average accuracy on FedAvg and loses system accuracy.",
        statistic=f"average and system accuracy of {label} minus those of fedavg, paired by seed, "
        "in points",
        threshold=f"mean average >= +{AVERAGE_GAIN:g}, mean system <= -{SYSTEM_LOSS:g}, over "
        f"{MIN_SEEDS} seeds or more",
        per_seed={seed: f"{own[0][seed]:+.1f}, {own[1][seed]:+.1f}" for seed in own[0]},
        measured=f"average {average:+.1f}, system {system:+.1f}" if own[0] else "",
        holds=average >= AVERAGE_GAIN - ROUNDING and system <= -SYSTEM_LOSS + ROUNDING,
        missing=unmeasured(section, label, FEDAVG)
        or unmeasured(section, label, FEDAVG, key=AVERAGE),
    )


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers) or "0.01"

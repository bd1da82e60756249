"""Claim A10: SCAFFOLD diverges under momentum and does well without (Paper A, Section 4.5)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedhet_app.analysis.claims.base import (
    MIN_SEEDS,
    ROUNDING,
    Claim,
    contrast,
    judge,
    num_classes,
)
from fedhet_app.analysis.study import LeftOut, Section
from fedhet_app.analysis.study_run import Run
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader

CHANCE_FACTOR = 1.5
MIN_STEPS = 5
WITHIN_POINTS = 3.0
MOMENTUM = "scaffold-momentum"
DIVERGED = "diverged"
"""How ``summary.json`` calls the end of a run in which no reply was finite any more."""


def a10(section: Section, left_out: Sequence[LeftOut]) -> list[Claim]:
    """Momentum breaks the control variates; without it SCAFFOLD keeps up with FedAvg.

    Args:
        section: The finished runs.
        left_out: Those of the study that have not finished: divergence may have ended one.
    """
    vanilla = contrast(
        section,
        "A10 (b)",
        f"Without momentum SCAFFOLD ends within {WITHIN_POINTS:g} points of FedAvg without "
        "momentum, or above it.",
        more="scaffold",
        less="fedavg-plain",
        at_least=-WITHIN_POINTS,
    )
    return [_diverges(section, left_out), vanilla]


def _diverges(section: Section, left_out: Sequence[LeftOut]) -> Claim:
    classes = num_classes(section)
    bound = 100 * CHANCE_FACTOR / classes if classes else math.nan
    runs = [*section.of(MOMENTUM), *_ended_by_divergence(section, left_out)]
    ends = {run.seed: how_it_ended(run, bound) for run in runs}
    steps = min((steps_per_client(run) for run in runs), default=0.0)
    missing = ""
    if len(ends) < MIN_SEEDS:
        missing = f"{MIN_SEEDS} seeds of {MOMENTUM} (ended: {_listed(ends)})"
    elif steps < MIN_STEPS - ROUNDING:
        missing = f"{MOMENTUM} of at least {MIN_STEPS} local steps a client"
    diverged = sum(each for each, _ in ends.values())
    return judge(
        section,
        "A10 (a)",
        "With momentum .9 SCAFFOLD diverges.",
        statistic="loss, replies, and final accuracy in percent",
        threshold="on every seed a loss not finite, no finite reply any more, or accuracy <= "
        f"{bound:.1f} ({CHANCE_FACTOR:g} x chance)",
        per_seed={seed: text for seed, (_, text) in sorted(ends.items())},
        measured=f"{diverged} of {len(ends)} diverged, at least {steps:.0f} local steps a client"
        if ends
        else "",
        holds=diverged == len(ends),
        missing=missing,
    )


def how_it_ended(run: Run, bound: float) -> tuple[bool, str]:
    """Return whether a run diverged, and how it ended.

    Args:
        run: Finished, or ended by divergence.
        bound: Accuracy up to which a model is as good as chance, in percent.
    """
    infinite = [number for number, loss in run.curve("loss").items() if not math.isfinite(loss)]
    if infinite:
        return True, f"loss not finite in round {infinite[0]}"
    if run.summary["status"] == DIVERGED:
        return True, f"no finite reply up to round {run.summary['rounds']}, which ended it"
    return run.final <= bound + ROUNDING, f"{run.final:.1f}"


def steps_per_client(run: Run) -> float:
    """Return the mean number of local steps a client takes in a round."""
    if run.config["local-steps"]:
        return float(run.config["local-steps"])
    batches = np.ceil(np.array(run.partition.get("sizes", [0])) / run.config["batch-size"])
    return float(run.config["local-epochs"] * batches.mean())


def _ended_by_divergence(section: Section, left_out: Sequence[LeftOut]) -> list[Run]:
    """Return the runs with momentum, of the section's own sweep, that no table shows for that."""
    folders = {run.directory.parent.parent for run in section.runs}
    found = []
    for each in left_out:
        if each.label != MOMENTUM or each.directory.parent.parent not in folders:
            continue
        try:
            reader = RunReader(each.directory)
            config, summary, rounds = reader.config, reader.summary, reader.rounds
        except (FedhetError, KeyError, TypeError, ValueError):
            continue  # one that has not begun, or not ended
        if config.get("dataset") == section.dataset and summary.get("status") == DIVERGED:
            found.append(
                Run(
                    label=each.label,
                    seed=each.seed,
                    directory=each.directory,
                    config=config,
                    summary=summary,
                    rounds=rounds,
                )
            )
    return found


def _listed(ends: Mapping[int, object]) -> str:
    return ", ".join(map(str, sorted(ends))) or "none"

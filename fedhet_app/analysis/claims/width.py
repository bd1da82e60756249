"""Claim A13: widths follow their closed forms (Paper A, Sections 3.2 and 4.1).

One finished run of a method is enough.
"""

import math

import numpy as np

from fedhet_app.analysis.claims.base import HAS_FL, ROUNDING, Claim, judge, lacks
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run

STANDARD_ERRORS = 3.0
CLOSED_FORM_TOLERANCE = 1e-6  # the guard against division by 0 is left out of the formula


def a13(section: Section) -> list[Claim]:
    """FjORD's mean width, and HAS-FL's allocation (Eq. 6)."""
    return [_fjord_mean(section), _closed_form(section)]


def _fjord_mean(section: Section) -> Claim:
    runs = [run for run in section.of("fjord") if run.config.get("fjord.draw") != "batch"]
    drawn = {
        run.seed: (run.width, *expected_width(run)) for run in runs if "capacities" in run.partition
    }
    errors = [abs(mean - expected) / error for mean, expected, error in drawn.values() if error]
    by_round = "" if drawn else "fjord that draws by round and records capacities"
    return judge(
        section,
        "A13 (a)",
        "FjORD's mean width is that of uniform draws from the tiers up to each capacity, "
        ".125 + .5 x the mean capacity for tiers of a quarter.",
        statistic="mean width of the sampled clients against its expectation",
        threshold=f"within {STANDARD_ERRORS:g} standard errors of the draw on every seed",
        per_seed={
            seed: f"{mean:.4f} against {expected:.4f} ± {error:.4f}"
            for seed, (mean, expected, error) in drawn.items()
        },
        measured=f"at most {max(errors):.1f} standard errors" if errors else "",
        holds=all(
            abs(mean - expected) <= STANDARD_ERRORS * error + ROUNDING
            for mean, expected, error in drawn.values()
        ),
        missing=lacks(section, "fjord", seeds=1) or by_round,
    )


def expected_width(run: Run) -> tuple[float, float]:
    """Return the mean width of FjORD's draws and its standard error over a run.

    Each round samples S of N clients without replacement; each draws a tier up to its capacity,
    independently. A round's mean width has variance (mean_i v_i + (1 - S/N) s^2) / S, v_i being
    the variance of client i's draw and s^2 that of the expected draws over all N clients.
    """
    capacities = np.array(run.partition["capacities"])
    tiers = np.array([float(tier) for tier in run.config["capacity-tiers"].split(",")])
    within = [tiers[tiers <= capacity] for capacity in capacities]
    means = np.array([own.mean() for own in within])
    sampled = run.rounds[0]["replies"] + len(run.rounds[0]["rejected"])
    between = (1 - sampled / len(means)) * means.var(ddof=1) if sampled < len(means) else 0.0
    variance = (np.mean([own.var() for own in within]) + between) / sampled
    return float(means.mean()), math.sqrt(variance / len(run.rounds))


def _closed_form(section: Section) -> Claim:
    runs = section.of(HAS_FL)
    gaps = {run.seed: farthest_from_closed_form(run) for run in runs}
    return judge(
        section,
        "A13 (b)",
        "HAS-FL allots min(capacity, p_min + gamma H / mean H), and full capacity to the largest.",
        statistic="largest distance of an allotted width from the formula at the logged estimates",
        threshold=f"<= {CLOSED_FORM_TOLERANCE:g}",
        per_seed=gaps,
        measured=f"{max(gaps.values()):.1g}" if gaps else "",
        holds=all(gap <= CLOSED_FORM_TOLERANCE for gap in gaps.values()),
        missing=lacks(section, HAS_FL, seeds=1)
        or ("" if all(map(math.isfinite, gaps.values())) else f"{HAS_FL} runs that adapt"),
    )


def farthest_from_closed_form(run: Run) -> float:
    """Return the largest error of Eq. 6 over all clients and adaptations, NaN without any."""
    config = run.config
    estimates, caps = run.adaptations("divergence"), run.adaptations("capacity")
    largest = math.nan
    for number, allotted in run.adaptations("allocated-width").items():
        share, cap = estimates[number] / estimates[number].mean(), caps[number]
        formula = np.minimum(cap, config["has-fl.p-min"] + config["has-fl.gamma"] * share)
        if config["has-fl.coverage"]:
            formula[cap == cap.max()] = cap.max()
        largest = float(np.fmax(largest, np.abs(allotted - formula).max()))
    return largest

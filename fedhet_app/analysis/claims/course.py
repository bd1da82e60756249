"""Claims A16 and A17: how a HAS-FL run unfolds (Paper A, Figures 4 and 8)."""

from itertools import pairwise

import numpy as np

from fedhet_app.analysis.claims.base import HAS_FL, ROUNDING, Claim, judge, lacks
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run

RESET = 1.0
RESET_TOLERANCE = 0.05
PEAKS = (1.6, 2.2)  # what still reads as "about 1.8-2"
WIDTHS = (0.45, 0.55)  # what still reads as "near .5"
LOSS_DRIFT = 0.05  # of the minimum: more than evaluation noise
FLAT_POINTS = 3.0
AT_THE_END = 5


def a16(section: Section) -> list[Claim]:
    """The mean estimate rises between normalisations, and mean widths stay near one half."""
    teeth = {run.seed: sawtooth(run) for run in section.of(HAS_FL)}
    whole = {seed: each for seed, each in teeth.items() if each is not None}
    none = [str(seed) for seed in teeth if seed not in whole]
    low, peak = np.mean(list(whole.values()), axis=0) if whole else (np.nan, np.nan)
    resets = all(abs(each - RESET) <= RESET_TOLERANCE for each, _ in whole.values())
    widths = {run.seed: _adapted_width(run) for run in section.of(HAS_FL)}
    width = float(np.mean(list(widths.values()))) if widths else np.nan
    missing = lacks(section, HAS_FL)
    period = f"two normalisations with an adaptation between them, seed {', '.join(none)}"
    return [
        judge(
            section,
            "A16 (a)",
            "HAS-FL's mean estimate is a sawtooth between 1 and about 1.8 to 2.",
            statistic="mean estimate over clients: after normalisations, and at the last "
            "adaptation before each",
            threshold=f"{RESET:g} within {RESET_TOLERANCE:g} on every seed; mean peak in "
            f"[{PEAKS[0]:g}, {PEAKS[1]:g}]",
            per_seed={seed: f"{down:.2f} to {up:.2f}" for seed, (down, up) in whole.items()},
            measured=f"{low:.2f} to {peak:.2f}" if whole else "",
            holds=resets and bool(PEAKS[0] <= peak <= PEAKS[1]),
            missing=missing or (period if none else ""),
        ),
        judge(
            section,
            "A16 (b)",
            "HAS-FL's mean allotted width stays near one half.",
            statistic="mean width allotted to all clients, over the rounds after the first "
            "adaptation",
            threshold=f"mean over seeds in [{WIDTHS[0]:g}, {WIDTHS[1]:g}]",
            per_seed=widths,
            measured=f"{width:.3f}" if widths else "",
            holds=WIDTHS[0] <= width <= WIDTHS[1],
            missing=missing or ("" if np.isfinite(width) else f"{HAS_FL} runs that adapt"),
        ),
    ]


def a17(section: Section) -> list[Claim]:
    """HAS-FL grows surer than it is right."""
    runs = section.of(HAS_FL)
    drifts = {run.seed: drift(run) for run in runs if len(run.comparable("loss")) > AT_THE_END}
    short = [str(run.seed) for run in runs if run.seed not in drifts]
    few = f"{HAS_FL} with more than {AT_THE_END} evaluations, seed {', '.join(short)}"
    loss, accuracy = np.mean(list(drifts.values()), axis=0) if drifts else (np.nan, np.nan)
    return [
        judge(
            section,
            "A17",
            "HAS-FL's test loss drifts up after its minimum while its accuracy stays flat.",
            statistic=f"mean of the last {AT_THE_END} evaluations against the evaluation of lowest "
            "loss: change of loss in percent, of accuracy in points",
            threshold=f"mean loss up by >= {100 * LOSS_DRIFT:g} %, mean accuracy not down by more "
            f"than {FLAT_POINTS:g} points",
            per_seed={seed: f"{100 * up:+.1f} %, {by:+.1f}" for seed, (up, by) in drifts.items()},
            measured=f"{100 * loss:+.1f} %, {accuracy:+.1f} points" if drifts else "",
            holds=bool(loss >= LOSS_DRIFT - ROUNDING and accuracy >= -FLAT_POINTS - ROUNDING),
            missing=lacks(section, HAS_FL) or (few if short else ""),
        )
    ]


def sawtooth(run: Run) -> tuple[float, float] | None:
    """Return the mean estimate after normalisations, and its mean peak before them.

    Rows hold the estimate after an adaptation; a normalisation is part of one, so that a peak is
    that of the last adaptation before. ``None`` where no two normalisations have one between them.
    """
    every = int(run.config["has-fl.normalise-every"])
    means = {number: float(own.mean()) for number, own in run.adaptations("divergence").items()}
    resets = [number for number in means if number % every == 0]
    peaks = [
        max(own)
        for before, after in pairwise(resets)
        if (own := [mean for number, mean in means.items() if before < number < after])
    ]
    if not peaks:
        return None
    return float(np.mean([means[number] for number in resets])), float(np.mean(peaks))


def drift(run: Run) -> tuple[float, float]:
    """Return relative change of loss, and points of accuracy, from the lowest loss to the end."""
    loss, accuracy = (run.comparable(column) for column in ("loss", "accuracy"))
    lowest = int(np.argmin(np.where(np.isnan(loss), np.inf, loss)))
    up = loss[-AT_THE_END:].mean() / loss[lowest] - 1
    return float(up), 100 * float(accuracy[-AT_THE_END:].mean() - accuracy[lowest])


def _adapted_width(run: Run) -> float:
    first = min(run.adaptations("allocated-width"), default=np.inf)
    widths = [width for at, width in run.curve("allocated-mean-width").items() if at > first]
    return float(np.mean(widths)) if widths else np.nan

"""Claims A8, A9 and A11: final accuracy between methods (Paper A, Sections 4.4 and 4.5)."""

from collections.abc import Sequence

import numpy as np

from fedhet_app.analysis.claims.base import (
    HAS_FL,
    ROUNDING,
    Claim,
    contrast,
    differences,
    judge,
    lacks,
    num_classes,
    points,
)
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run

EQUAL_POINTS = 1.0
BUDGET_GAP = 0.03
FULL_MODEL_POINTS = 3.0
PROXIMAL_POINTS = 5.0
FEW_CLASSES = 10


def a8(section: Section) -> list[Claim]:
    """A random allocation of the same budget does as well."""
    return [
        _as_good_as(section, "A8", "random-budget", "drawn at random"),
        _as_good_as(section, "A8, permuted", "random-budget-permute", "dealt out anew"),
    ]


def a9(section: Section) -> list[Claim]:
    """Sub-model training costs accuracy."""
    statement = "FedAvg, which trains the full model everywhere, ends above HAS-FL."
    return [
        contrast(section, "A9", statement, more="fedavg", less=HAS_FL, at_least=FULL_MODEL_POINTS)
    ]


def a11(section: Section) -> list[Claim]:
    """FedProx is slow under the skew of ten classes, and its loss falls to the end."""
    statement = "FedProx with mu = 1 ends below FedAvg where the skew is over ten classes."
    gap = contrast(
        section, "A11 (a)", statement, more="fedavg", less="fedprox", at_least=PROXIMAL_POINTS
    )
    counted = {run.seed: rises(run) for run in section.of("fedprox")}
    up = sum(each for each, _ in counted.values())
    monotone = judge(
        section,
        "A11 (c)",
        "FedProx's test loss never rises from one evaluation to the next.",
        statistic="evaluations whose test loss is above that of the one before, or not finite",
        threshold="none on any seed",
        per_seed={seed: f"{each} of {steps}" for seed, (each, steps) in counted.items()},
        measured=f"{up} of {sum(steps for _, steps in counted.values())}" if counted else "",
        holds=up == 0,
        missing=lacks(section, "fedprox"),
    )
    return [gap, monotone] if num_classes(section) == FEW_CLASSES else [monotone]


def a11_across(section: Section, sections: Sequence[Section]) -> list[Claim]:
    """FedProx's gap to FedAvg is smaller on a data set of many classes than on each of ten."""
    if num_classes(section) <= FEW_CLASSES:
        return []
    few = [each for each in sections if num_classes(each) == FEW_CLASSES]
    missing = "; ".join(filter(None, (_no_gap(each) for each in (section, *few))))
    here, elsewhere = _gap(section), {each.dataset: _gap(each) for each in few}
    listed = ", ".join(f"{gap:+.1f} on {dataset}" for dataset, gap in elsewhere.items())
    return [
        judge(
            section,
            "A11 (b)",
            "FedProx falls less far behind FedAvg where there are many classes.",
            statistic="mean final accuracy of fedavg minus that of fedprox, in points",
            threshold="below the same on every data set of ten classes in the study",
            per_seed={a.seed: a.final - b.final for a, b in section.pairs("fedavg", "fedprox")},
            measured="" if np.isnan(here) else f"{here:+.1f}; {listed or 'none of ten classes'}",
            holds=all(here < gap for gap in elsewhere.values()),
            missing=missing or ("" if few else "a data set of ten classes"),
        )
    ]


def rises(run: Run) -> tuple[int, int]:
    """Return how many evaluations do not keep or lower the loss of the one before, out of all."""
    steps = np.diff(run.comparable("loss"))
    return int(np.count_nonzero(~(steps <= 0))), len(steps)


def _as_good_as(section: Section, id: str, control: str, how: str) -> Claim:
    pairs = section.pairs(HAS_FL, control)
    difference = differences([(ours.final, theirs.final) for ours, theirs in pairs])
    spread = float(np.std([ours.final for ours, _ in pairs], ddof=1)) if len(pairs) > 1 else 0.0
    bound = max(EQUAL_POINTS, spread)
    gaps = {ours.seed: abs(_budget(ours) - _budget(theirs)) for ours, theirs in pairs}
    wide = [
        f"{gap:.3f} on seed {seed}" for seed, gap in gaps.items() if gap > BUDGET_GAP + ROUNDING
    ]
    unmatched = f"{control} within {BUDGET_GAP:g} of HAS-FL's mean width ({', '.join(wide)})"
    return judge(
        section,
        id,
        f"Widths {how} within the same budget do as well as HAS-FL's.",
        statistic=f"final accuracy of {HAS_FL} minus that of {control}, paired by seed, in points",
        threshold=f"|mean| <= {EQUAL_POINTS:g} or one standard deviation of {HAS_FL} over seeds, "
        f"whichever is larger; mean widths within {BUDGET_GAP:g}",
        per_seed={
            ours.seed: f"{ours.final - theirs.final:+.1f} (widths {gaps[ours.seed]:.3f} apart)"
            for ours, theirs in pairs
        },
        measured=f"{points(difference)}; bound {bound:.1f}" if pairs else "",
        holds=abs(difference.mean) <= bound + ROUNDING,
        missing=lacks(section, HAS_FL, control) or (unmatched if wide else ""),
    )


def _budget(run: Run) -> float:
    """Return the mean width over all clients and rounds."""
    return float(np.mean(list(run.curve("allocated-mean-width").values())))


def _gap(section: Section) -> float:
    pairs = section.pairs("fedavg", "fedprox")
    return differences([(ours.final, theirs.final) for ours, theirs in pairs]).mean


def _no_gap(section: Section) -> str:
    missing = lacks(section, "fedavg", "fedprox")
    return f"{missing} on {section.dataset}" if missing else ""

"""Claims A6, A7 and A18: what parameters that nobody trains do (Paper A, Sections 4.2 and 4.3).

A6, A7 and A18 are judged on the runs of the paper's setting and, where there are any, on those of
the collapse preset (no norm, larger initial weights), which provokes the damage in small runs.
"""

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from fedhet_app.analysis.audit.verdict import counted
from fedhet_app.analysis.claims.base import (
    COLLAPSE,
    COLLAPSE_PRESET,
    HAS_FL,
    OFF,
    ROUNDING,
    Claim,
    contrast,
    differences,
    judge,
    lacks,
    no_fall,
    points,
)
from fedhet_app.analysis.correlation import LEVEL
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run

GUARANTEE_POINTS = 5.0
DROP_RATIO = 2.0
UNIFORM_POINTS = 3.0
SPREAD_RATIO = 1.5  # what still reads as "about twice"


def a6(section: Section) -> list[Claim]:
    """Stale parameters corrupt inference; the guarantee prevents it."""
    claims = [
        _slice_is_better(section, f"A6 ({part})", prefix, label)
        for part, label in (("a", "uniform"), ("b", OFF))
        for prefix in ("", COLLAPSE)
    ]
    for prefix, suffix in _settings(section, HAS_FL, OFF):
        claims.append(
            contrast(
                section,
                f"A6 (c){suffix}",
                "Without the coverage guarantee HAS-FL ends lower.",
                more=prefix + HAS_FL,
                less=prefix + OFF,
                at_least=GUARANTEE_POINTS,
            )
        )
        claims.append(_drop(section, prefix, suffix))
    return claims


def a7(section: Section) -> list[Claim]:
    """Uniform ends below HeteroFL."""
    return [
        contrast(
            section,
            f"A7{suffix}",
            "Uniform, which strands parameters, ends below HeteroFL.",
            more=f"{prefix}heterofl",
            less=f"{prefix}uniform",
            at_least=UNIFORM_POINTS,
        )
        for prefix, suffix in _settings(section, "heterofl", "uniform")
    ]


def a18(section: Section) -> list[Claim]:
    """Without the guarantee, seeds differ more."""
    return [_spread(section, *setting) for setting in _settings(section, HAS_FL, OFF)]


def _settings(section: Section, *labels: str) -> Iterator[tuple[str, str]]:
    """Yield label prefix and claim suffix of the paper's setting and of one that has runs."""
    yield "", ""
    if any(section.of(COLLAPSE + label) for label in labels):
        yield COLLAPSE, COLLAPSE_PRESET


def _slice_is_better(section: Section, id: str, prefix: str, method: str) -> Claim:
    label = prefix + method
    runs = {run.seed: _slice_and_whole(run) for run in section.of(label)}
    known = {seed: pair for seed, pair in runs.items() if pair is not None}
    unknown = [str(seed) for seed in runs if seed not in known]
    no_slice = f"the accuracy of the trained slice of {label}, seed {', '.join(unknown)}"
    return judge(
        section,
        id + (COLLAPSE_PRESET if prefix else ""),
        f"The trained slice of {label} does better alone than with the stale parameters around it.",
        statistic="final accuracy of the slice at the largest trained width minus that of the "
        "whole network, in points",
        threshold="above 0 on every seed",
        per_seed={seed: part - whole for seed, (part, whole) in known.items()},
        measured=points(differences(list(known.values()))),
        holds=all(part > whole for part, whole in known.values()),
        missing=lacks(section, label) or (no_slice if unknown else ""),
    )


def _slice_and_whole(run: Run) -> tuple[float, float] | None:
    """Return final accuracies at the largest trained width and at full width, in percent."""
    stale = run.summary.get("stale")
    if stale:
        return 100 * stale["slice"], 100 * stale["as-is"]
    last = run.rounds[-1]
    trained = last.get("slice-accuracy", {}).get(f"{run.config.get('uniform.width', 0):g}")
    if run.config["strategy"] != "uniform" or trained is None:
        return None
    return 100 * trained, 100 * last["accuracy"]


def _drop(section: Section, prefix: str, suffix: str) -> Claim:
    pairs = section.pairs(prefix + HAS_FL, prefix + OFF)
    drops = {on.seed: (on.fall, off.fall) for on, off in pairs}
    on, off = np.mean(list(drops.values()), axis=0) if drops else (math.nan, math.nan)
    return judge(
        section,
        f"A6 (d){suffix}",
        "Without the guarantee accuracy falls much further from its peak.",
        statistic="highest minus last accuracy of the evaluations on the same examples, without "
        "and with the guarantee, in points",
        threshold=f"mean without >= {DROP_RATIO:g} x mean with, and above 0",
        per_seed={
            seed: f"{without:.1f} against {kept:.1f}" for seed, (kept, without) in drops.items()
        },
        measured=f"{off:.1f} against {on:.1f} points, {counted(len(drops), 'seed')}"
        if drops
        else "",
        holds=bool(off > 0 and off >= DROP_RATIO * on - ROUNDING),
        missing=lacks(section, prefix + HAS_FL, prefix + OFF)
        or no_fall(section, prefix + HAS_FL, prefix + OFF),
    )


def _spread(section: Section, prefix: str, suffix: str) -> Claim:
    pairs = section.pairs(prefix + HAS_FL, prefix + OFF)
    missing = lacks(section, prefix + HAS_FL, prefix + OFF)
    final = np.array([(on.final, off.final) for on, off in pairs]).reshape(-1, 2)
    on, off = final.std(axis=0, ddof=1) if len(pairs) > 1 else (math.nan, math.nan)
    if on == 0:
        missing = missing or f"{prefix + HAS_FL} runs that differ between seeds"
    ratio = off / on if on > 0 else math.nan
    # The ratio of two normal samples' variances follows F; at 3 seeds it says little.
    freedom = max(len(pairs) - 1, 1)
    half = math.sqrt(stats.f.ppf((1 + LEVEL) / 2, freedom, freedom))
    between = f"95 % interval [{ratio / half:.1f}, {ratio * half:.1f}]"
    return judge(
        section,
        f"A18{suffix}",
        "Seeds spread about twice as far without the guarantee.",
        statistic="standard deviation of final accuracy over seeds without the guarantee over that "
        "with it",
        threshold=f"ratio >= {SPREAD_RATIO:g}",
        per_seed={a.seed: f"{b.final:.1f} against {a.final:.1f}" for a, b in pairs},
        measured=f"{off:.1f} / {on:.1f} = {ratio:.1f}, {between}" if ratio >= 0 else "",
        holds=ratio >= SPREAD_RATIO - ROUNDING,
        missing=missing,
    )

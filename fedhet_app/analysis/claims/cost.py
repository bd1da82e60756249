"""Claims A12 and A15: what a width costs, and what HAS-FL saves (Paper A, Sections 3.4 and 4.5)."""

import math

import numpy as np

from fedhet_app.analysis.audit.verdict import counted
from fedhet_app.analysis.claims.base import HAS_FL, ROUNDING, Claim, judge, lacks
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run

QUARTER = (0.06, 0.073)
HALF = (0.25, 0.263)
FLOAT_BYTES = 4
HEADER_BYTES = 512  # a round trip carries about 405 bytes of names and shapes
THREEFOLD = (2.5, 3.5)
PAPER_SIZE = "paper"
_SLICED = (HAS_FL, "heterofl", "fjord", "uniform", "fedavg")


def a12(section: Section) -> list[Claim]:
    """Cost is nearly quadratic in width, and only slices travel."""
    return [_tiers(section), _bytes(section)]


def a15(section: Section) -> list[Claim]:
    """The full model costs about three times what HAS-FL costs."""
    pairs = section.pairs("fedavg", HAS_FL)
    bytes_ratio = {full.seed: traffic(full) / traffic(ours) for full, ours in pairs}
    runs = section.of(HAS_FL)
    macs = {run.seed: 1 / relative_macs(run) for run in runs if _is_counted(run)}
    uncounted = [str(run.seed) for run in runs if run.seed not in macs]
    no_cost = f"cost.json up to width 1 of {HAS_FL}, seed {', '.join(uncounted)}"
    return [
        _threefold(
            section,
            "A15 (a)",
            "traffic",
            "bytes up and down of fedavg over those of has-fl",
            bytes_ratio,
            lacks(section, "fedavg", HAS_FL),
        ),
        _threefold(
            section,
            "A15 (b)",
            "computation",
            "multiply-accumulates of an example at full width over their mean at has-fl's widths",
            macs,
            lacks(section, HAS_FL) or (no_cost if uncounted else ""),
        ),
    ]


def traffic(run: Run) -> float:
    """Return all bytes up and down."""
    return float(run.summary["upload-bytes"] + run.summary["download-bytes"])


def relative_macs(run: Run) -> float:
    """Return the mean cost of an example at the widths trained, of that at full width.

    Widths between tiers are interpolated in p^2, in which cost is nearly linear.
    """
    squares = [row["width"] ** 2 for row in run.cost]
    macs = [row["macs"] for row in run.cost]
    widths = np.array([row["width"] for row in run.clients if row["trained"]])
    return float(np.interp(widths**2, squares, macs).mean()) / float(macs[-1])


def overhead(run: Run) -> tuple[float, int]:
    """Return bytes per round trip beyond the slices themselves, and the round trips counted.

    Rounds in which a reply was dropped are left out: its bytes are in the row, its slice is not.
    """
    floats: dict[int, list[int]] = {}
    for row in run.clients:
        if row["trained"]:
            floats.setdefault(row["round"], []).append(row["floats"])
    rows = [row for row in run.rounds if row["round"] in floats and not row["rejected"]]
    trips = sum(len(floats[row["round"]]) for row in rows)
    sent = sum(row["upload-bytes"] + row["download-bytes"] for row in rows)
    slices = 2 * FLOAT_BYTES * sum(sum(floats[row["round"]]) for row in rows)
    return (sent - slices) / trips if trips else math.nan, trips


def _tiers(section: Section) -> Claim:
    costed = [run for run in section.runs if run.cost]
    of_paper_size = [run for run in costed if run.config.get("model-preset") == PAPER_SIZE]
    run = next(iter(of_paper_size or costed), None)
    ratios = {} if run is None else _ratios(run)
    return judge(
        section,
        "A12 (a)",
        "A quarter of the width costs 6 to 7 %, and half of it about 25 %, of the paper-size "
        "network.",
        statistic="parameters at widths .25 and .5, of those at full width",
        threshold=f"in [{100 * QUARTER[0]:g}, {100 * QUARTER[1]:g}] % and "
        f"[{100 * HALF[0]:g}, {100 * HALF[1]:g}] %, for the paper-size network",
        per_seed={},
        measured=f"{100 * ratios[0.25]:.1f} % and {100 * ratios[0.5]:.1f} % "
        f"({run.config['model']}, preset {run.config['model-preset']})"
        if run and ratios
        else "",
        holds=bool(ratios)
        and QUARTER[0] <= ratios[0.25] <= QUARTER[1]
        and HALF[0] <= ratios[0.5] <= HALF[1],
        missing=""
        if of_paper_size and ratios
        else f"a run with model-preset = {PAPER_SIZE} and cost.json for widths .25, .5 and 1",
    )


def _ratios(run: Run) -> dict[float, float]:
    """Return the parameters of the tiers the claim is about, empty where one was not counted."""
    params = {float(row["width"]): row["params"] for row in run.cost}
    if not {0.25, 0.5, 1.0} <= set(params):
        return {}
    return {width: params[width] / params[1.0] for width in (0.25, 0.5)}


def _bytes(section: Section) -> Claim:
    runs = [run for label in _SLICED for run in section.of(label)]
    complete = [
        run for run in runs if all("floats" in row for row in run.clients if row["trained"])
    ]
    found = [(run.seed, *overhead(run)) for run in complete]
    known = [(seed, each) for seed, each, trips in found if trips]
    extra = [each for _, each in known]
    by_seed = {seed: [each for own, each in known if own == seed] for seed, _ in known}
    return judge(
        section,
        "A12 (b)",
        "Only slices travel: the bytes measured are those of 2 d sum(rho) floats, and headers.",
        statistic="bytes up and down beyond 8 x the floats of the slices, per round trip, of "
        f"{', '.join(_SLICED)}",
        threshold=f"from 0 to {HEADER_BYTES}, headers",
        per_seed={seed: f"{min(own):.0f} to {max(own):.0f}" for seed, own in by_seed.items()},
        measured=f"{min(extra):.0f} to {max(extra):.0f} in {counted(len(extra), 'run')}"
        if extra
        else "",
        holds=all(0 <= each <= HEADER_BYTES for each in extra),
        missing="" if extra else f"runs of {', '.join(_SLICED)} that record floats",
    )


def _is_counted(run: Run) -> bool:
    up_to_full_width = bool(run.cost) and run.cost[-1]["width"] == 1
    return up_to_full_width and any(row["trained"] for row in run.clients)


def _threefold(
    section: Section, id: str, what: str, statistic: str, ratios: dict[int, float], missing: str
) -> Claim:
    mean = float(np.mean(list(ratios.values()))) if ratios else math.nan
    low, high = THREEFOLD
    return judge(
        section,
        id,
        f"The full model costs about three times the {what} of HAS-FL.",
        statistic=statistic,
        threshold=f"mean in [{low:g}, {high:g}]",
        per_seed=ratios,
        measured=f"{mean:.2f}" if ratios else "",
        holds=low - ROUNDING <= mean <= high + ROUNDING,
        missing=missing,
    )

"""Claim A5: coverage to the bit (Paper A, Section 3.3 and Proposition 3).

In every round the server counts the coordinates that nobody trained in it and whose bits changed
all the same. Where that is none in every round, whatever is never trained keeps its initial value,
and whatever is trained until the first adaptation only keeps the value it had there.

One finished run of a method is enough.
"""

from fedhet_app.analysis.claims.base import HAS_FL, OFF, ROUNDING, Claim, judge, lacks
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Run

COVERED_BY = 20
MAX_UNMOVED = 1e-3
"""What may equal its initial value though it was trained: where a unit is dead and the value is 0,
as that of a norm's bias is at first, neither gradient nor weight decay moves it."""
_CHANGED, _NEVER, _UNMOVED = "untrained-changed", "never-trained", "unmoved"


def a5(section: Section) -> list[Claim]:
    """Nobody touches what nobody trains, and the guarantee leaves nothing untrained."""
    return [
        _untouched(
            section,
            "A5 (a)",
            "Under Uniform the coordinates that no client trains keep their initial bits.",
            label="uniform",
            stranded=_NEVER,
        ),
        _untouched(
            section,
            "A5 (b)",
            "Without the guarantee the coordinates beyond every allotted width keep the bits they "
            "had at the first adaptation.",
            label=OFF,
            stranded="uncovered",
        ),
        _covered(section),
    ]


def _untouched(section: Section, id: str, statement: str, *, label: str, stranded: str) -> Claim:
    runs = [run for run in section.of(label) if _counts_bits(run)]
    changed = {run.seed: sum(row[_CHANGED] for row in run.rounds) for run in runs}
    left = {run.seed: run.rounds[-1][stranded] for run in runs}
    kept = all(run.rounds[-1][_UNMOVED] >= run.rounds[-1][_NEVER] - ROUNDING for run in runs)
    whole = [str(seed) for seed, fraction in left.items() if not fraction]
    untrained = f"parameters that {label} leaves untrained, seed {', '.join(whole)}"
    return judge(
        section,
        id,
        statement,
        statistic=f"coordinates changed in rounds in which nobody trained them ({stranded} "
        "fraction at the end)",
        threshold="0, and no fewer parameters equal to their initial values than never trained",
        per_seed={seed: f"{each} ({100 * left[seed]:.1f} %)" for seed, each in changed.items()},
        measured=f"{sum(changed.values())} in {sum(len(run.rounds) for run in runs)} rounds"
        if runs
        else "",
        holds=not any(changed.values()) and kept,
        missing=_unrecorded(section, label) or (untrained if whole else ""),
    )


def _covered(section: Section) -> Claim:
    rows = {run.seed: _first_late_row(run) for run in section.of(HAS_FL) if _counts_bits(run)}
    late = {seed: row for seed, row in rows.items() if row}
    short = [str(seed) for seed in rows if seed not in late]
    evaluated = f"{HAS_FL} evaluated in round {COVERED_BY} or later, seed {', '.join(short)}"
    never, unmoved = (
        max((row[key] for row in late.values()), default=0.0) for key in (_NEVER, _UNMOVED)
    )
    return judge(
        section,
        "A5 (c)",
        "With the guarantee every coordinate has been trained, and has changed, after about 20 "
        "rounds.",
        statistic="parameters never trained, and parameters equal to their initial value",
        threshold=f"0 and at most {100 * MAX_UNMOVED:g} % (zeros of dead units do not move), at "
        f"the first evaluation from round {COVERED_BY} on",
        per_seed={
            seed: f"{100 * row[_NEVER]:.2g} %, {100 * row[_UNMOVED]:.2g} % in round {row['round']}"
            for seed, row in late.items()
        },
        measured=f"at most {100 * never:.2g} %, {100 * unmoved:.2g} %" if late else "",
        holds=never == 0 and unmoved <= MAX_UNMOVED,
        missing=_unrecorded(section, HAS_FL) or (evaluated if short else ""),
    )


def _counts_bits(run: Run) -> bool:
    return all(_CHANGED in row for row in run.rounds) and _UNMOVED in run.rounds[-1]


def _unrecorded(section: Section, label: str) -> str:
    silent = [str(run.seed) for run in section.of(label) if not _counts_bits(run)]
    unrecorded = f"{_CHANGED} and {_UNMOVED} of {label}, seed {', '.join(silent)}"
    return lacks(section, label, seeds=1) or (unrecorded if silent else "")


def _first_late_row(run: Run) -> dict[str, float]:
    late = (row for row in run.rounds if row["round"] >= COVERED_BY and _UNMOVED in row)
    return dict(next(late, {}))

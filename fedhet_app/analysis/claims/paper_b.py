"""What Paper B reports on each claim: from its tables where they have it, else in its words."""

from collections.abc import Callable, Mapping
from itertools import pairwise

from fedhet_app.analysis.paper_b import ACCURACIES, INTENSITIES, NATURAL, Published

Rows = Mapping[str, Published]

_FASHION = "fashion-mnist"
_NO_NUMBERS = "stated with a figure, no numbers"
_IN_FIGURES = ("B6", "B10 (a)", "B10 (b)", "B10 (c)")


def _over(more: str, less: str, metric: str) -> Callable[[Rows], str]:
    return lambda rows: f"{_mean(rows, more, metric) - _mean(rows, less, metric):+.2f}"


def _routed(row: str) -> Callable[[Rows], str]:
    return lambda rows: (
        f"routing is not reported; {_mean(rows, row, 'system') - _mean(rows, row, 'average'):+.2f}"
    )


def _drift(row: str) -> Callable[[Rows], str]:
    average, system = (_over(row, "fedavg", metric) for metric in ("average", "system"))
    return lambda rows: f"average {average(rows)}, system {system(rows)}"


def _mean(rows: Rows, row: str, metric: str) -> float:
    value: float = getattr(rows[row], metric).mean
    return value


def _gap(row: str) -> Callable[[Rows], str]:
    return lambda rows: f"{_mean(rows, row, 'system') - _mean(rows, row, 'average'):+.2f}"


_SPM, _CX = "fedspm-shared", "fedspm-per-component"
REPORTED: Mapping[str, Callable[[Rows], str]] = {
    "B1": _gap("fedavg"),
    "B2 (a)": _routed("feddrm"),
    "B2 (b)": _routed(_SPM),
    "B2 (c)": _routed(_CX),
    "B3 (a)": _drift("fedavg-ft"),
    "B3 (b)": _drift("ditto"),
    "B3 (c)": _drift("ifca"),
    "B4 (a)": _over("fedem", "fedavg", "average"),
    "B4 (b)": _over("fedem", "fedavg", "system"),
    "B4 (c)": _over("fedgmm", "fedavg", "system"),
    "B5 (a)": _over(_SPM, "feddrm", "system"),
    "B5 (b)": _over(_SPM, "feddrm", "average"),
    "B8 (a)": _over(_SPM, _CX, "system"),
    "B8 (b)": _over(_SPM, _CX, "average"),
    "B9": _over("fedprox", "fedavg", "system"),
}
"""By claim, from the rows of Table 1 on a data set."""


def reported(claim: str, dataset: str) -> str:
    """Return the paper's value of a claim on a data set, or that there is none."""
    if claim.startswith("B14") and dataset in NATURAL:
        return _NO_NUMBERS
    if claim in _IN_FIGURES and dataset == _FASHION:
        return _NO_NUMBERS
    if claim == "B7" and dataset == _FASHION:
        falls = _falls()
        return f"{sum(falls)} of {len(falls)} ({sum(falls) / len(falls):.0%})"
    rows = ACCURACIES.get(dataset)
    return REPORTED[claim](rows) if rows and claim in REPORTED else "not reported"


def _falls() -> list[bool]:
    """Return whether accuracy falls at each step of alpha-inter in each row of Table 2."""
    columns = [INTENSITIES[inter, 2.0] for inter in (0.5, 1.0, 2.0)]
    return [
        _mean(after, row, metric) < _mean(before, row, metric)
        for metric in ("system", "average")
        for before, after in pairwise(columns)
        for row in before
    ]

"""The paper's open question: does any estimate from updates recover the data's skew?

Paper A, Section 5. Where the interval of an estimate holds 0, its conclusion says how large a
correlation would have had to be to show. The oracle beside them has the true label distance in the
place of the estimate: it is 1 by construction, a check of the pipeline and no evidence of power.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedhet_app.analysis.audit.verdict import counted, power
from fedhet_app.analysis.claims.estimate import (
    ESTIMATORS,
    ORACLE,
    TO_CAPACITY,
    TO_SKEW,
    audited,
    correlations,
)
from fedhet_app.analysis.correlation import Correlation, pooled
from fedhet_app.analysis.study import Section, Study

ENOUGH_SEEDS = 5
ORACLE_NAME = "oracle-tv"
_LABELS: Mapping[str, tuple[str, str]] = {**ESTIMATORS, ORACLE_NAME: (ORACLE, "")}
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one estimator shows on one data set.

    Attributes:
        dataset: The data set.
        suite: The sweep, empty for runs of none.
        estimator: ``has-fl.estimator``.
        seeds: Seeds of the runs on skewed data.
        iid_seeds: Seeds of the runs on an IID partition.
        skew: r(estimate, TV | capacity) on skewed data, pooled over seeds.
        capacity: r(estimate, capacity) on skewed data, pooled.
        iid_capacity: r(estimate, capacity) on an IID partition, pooled.
        conclusion: What the evidence supports, in one sentence.
    """

    dataset: str
    suite: str
    estimator: str
    seeds: tuple[int, ...]
    iid_seeds: tuple[int, ...]
    skew: Correlation
    capacity: Correlation
    iid_capacity: Correlation
    conclusion: str


def open_question(study: Study) -> list[Answer]:
    """Return one row for each estimator on each data set that has a run of any estimator."""
    labels = {label for pair in _LABELS.values() for label in pair}
    return [
        answer
        for section in study.sections
        if labels & set(section.labels)
        for answer in _answers(section)
    ]


def _answers(section: Section) -> list[Answer]:
    return [_answer(section, name, *labels) for name, labels in _LABELS.items()]


def _answer(section: Section, name: str, label: str, iid: str) -> Answer:
    skewed, identical = audited(section, label), audited(section, iid)
    skew, capacity, iid_capacity = (
        pooled(list(correlations(runs, key).values()))
        for runs, key in ((skewed, TO_SKEW), (skewed, TO_CAPACITY), (identical, TO_CAPACITY))
    )
    return Answer(
        dataset=section.dataset,
        suite=section.suite,
        estimator=name,
        seeds=tuple(sorted(skewed)),
        iid_seeds=tuple(sorted(identical)),
        skew=skew,
        capacity=capacity,
        iid_capacity=iid_capacity,
        conclusion=_of_the_oracle(skew)
        if name == ORACLE_NAME
        else _conclusion(name, skew) + _caution(section, label),
    )


def _of_the_oracle(skew: Correlation) -> str:
    if skew.reason:
        return _not_measured(skew)
    if skew.r >= 1 - _ROUNDING:
        return "1 by construction: runs and audit pass the true distance on unharmed."
    return f"By construction 1, but {skew.r:+.2f}: something between runs and audit is wrong."


def _conclusion(name: str, skew: Correlation) -> str:
    """Return what the whole interval supports."""
    if skew.reason:
        return _not_measured(skew)
    within = f"[{skew.low:+.2f}, {skew.high:+.2f}]"
    if skew.sign > 0:
        return (
            f"The whole interval {within} lies above 0: with capacity held fixed the {name} "
            "estimate carries information about label skew."
        )
    if skew.sign < 0:
        return (
            f"The whole interval {within} lies below 0: with capacity held fixed the {name} "
            "estimate falls where labels are more skewed, against what the method assumes."
        )
    return (
        f"The interval {within} holds 0: no evidence that the {name} estimate recovers label "
        f"skew beyond capacity ({power(skew)})."
    )


def _not_measured(skew: Correlation) -> str:
    return f"Not measured: {skew.reason if skew.left_out else 'no run of this estimator'}."


def _caution(section: Section, label: str) -> str:
    """Return what weakens the pooled interval, as a sentence to append."""
    runs = section.of(label)
    skews = {tuple(run.partition.get("total-variation", ())) for run in runs}
    found = []
    if 0 < len(runs) < ENOUGH_SEEDS:
        found.append(f"{counted(len(runs), 'seed')}, fewer than {ENOUGH_SEEDS}")
    if len(skews) < len(runs):
        found.append("one partition for all seeds, which are not independent")
    return f" ({'; '.join(found)})" if found else ""

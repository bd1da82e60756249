"""The paper's open question: does any estimate from updates recover the data's skew?

Paper A, Section 5. Beside each estimate stands the oracle, the true label distance in its place:
where the same test misses the oracle, its silence on an estimate means nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
_LABELS: Mapping[str, tuple[str, str]] = {**ESTIMATORS, "oracle-tv": (ORACLE, "")}


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
    oracle = pooled(list(correlations(audited(section, ORACLE), TO_SKEW).values()))
    return [_answer(section, name, *labels, oracle) for name, labels in _LABELS.items()]


def _answer(section: Section, name: str, label: str, iid: str, oracle: Correlation) -> Answer:
    skewed, identical = audited(section, label), audited(section, iid)
    skew, capacity, iid_capacity = (
        pooled(list(correlations(runs, key).values()))
        for runs, key in ((skewed, TO_SKEW), (skewed, TO_CAPACITY), (identical, TO_CAPACITY))
    )
    missed = oracle if name != "oracle-tv" and oracle.sign <= 0 else None
    return Answer(
        dataset=section.dataset,
        suite=section.suite,
        estimator=name,
        seeds=tuple(sorted(skewed)),
        iid_seeds=tuple(sorted(identical)),
        skew=skew,
        capacity=capacity,
        iid_capacity=iid_capacity,
        conclusion=_conclusion(name, skew, missed) + _caution(section, label),
    )


def _conclusion(name: str, skew: Correlation, missed: Correlation | None) -> str:
    """Return what the whole interval supports; ``missed`` is an oracle that was not found."""
    if skew.reason:
        return f"Not measured: {skew.reason if skew.left_out else 'no run of this estimator'}."
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
    power = (
        f"; that decides nothing, because {_no_power(missed)}"
        if missed
        else f", and a correlation of more than {skew.high:.2f} is ruled out"
    )
    return (
        f"The interval {within} holds 0: no evidence that the {name} estimate recovers label "
        f"skew beyond capacity{power}."
    )


def _no_power(oracle: Correlation) -> str:
    if not oracle.parts:
        return "there is no run of the oracle to show that the test finds anything"
    return f"the test does not find the oracle either ([{oracle.low:+.2f}, {oracle.high:+.2f}])"


def _caution(section: Section, label: str) -> str:
    """Return what weakens the pooled interval, as a sentence to append."""
    runs = section.of(label)
    skews = {tuple(run.partition.get("total-variation", ())) for run in runs}
    few = [f"{len(runs)} seeds, fewer than {ENOUGH_SEEDS}"] if 0 < len(runs) < ENOUGH_SEEDS else []
    same = (
        ["one partition for all seeds, which are not independent"] if len(skews) < len(runs) else []
    )
    return f" ({'; '.join([*few, *same])})" if few or same else ""

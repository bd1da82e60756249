"""The judged claims and the paper's open question as tables."""

from collections import Counter

from fedhet_app.analysis import paper_a, paper_b
from fedhet_app.analysis.claims.base import FAILS, HOLDS, PerSeed
from fedhet_app.analysis.claims.claims import claims
from fedhet_app.analysis.claims.open_question import open_question
from fedhet_app.analysis.study import Study
from fedhet_app.analysis.tables.cells import Column, Estimate, Table


def claims_table(study: Study) -> Table | None:
    """Return every claim on every data set with its verdict."""
    judged = claims(study)
    if not judged:
        return None
    rows = [
        (
            claim.id,
            _place(claim.dataset, claim.suite),
            claim.statement,
            claim.statistic,
            claim.threshold,
            claim.paper,
            _by_seed(claim.per_seed),
            claim.measured,
            claim.verdict,
        )
        for claim in judged
    ]
    names = (
        *("Claim", "Data set", "What is claimed", "Statistic", "Holds if"),
        *("paper", "By seed", "Measured", "Verdict"),
    )
    counts = Counter(claim.verdict for claim in judged)
    rest = len(judged) - counts[HOLDS] - counts[FAILS]
    note = f"{counts[HOLDS]} hold, {counts[FAILS]} do not hold, {rest} not measured."
    columns = tuple(Column(name=name) for name in names)
    return Table(name="claims", title="Claims", columns=columns, rows=tuple(rows), note=note)


def open_question_table(study: Study) -> Table | None:
    """Return what each estimator recovers of the data's skew; ``None`` without its runs."""
    rows = [
        (
            answer.estimator,
            _place(answer.dataset, answer.suite),
            len(answer.seeds),
            Estimate.of(answer.skew),
            Estimate.of(answer.capacity),
            len(answer.iid_seeds),
            Estimate.of(answer.iid_capacity),
            answer.conclusion,
        )
        for answer in open_question(study)
    ]
    if not rows:
        return None
    columns = (
        Column(name="Estimator"),
        Column(name="Data set"),
        Column(name="n"),
        Column(name="r(estimate, TV | capacity)", form="+.2f"),
        Column(name="r(estimate, capacity)", form="+.2f"),
        Column(name="n, IID"),
        Column(name="r(estimate, capacity), IID", form="+.2f"),
        Column(name="What the evidence supports"),
    )
    return Table(
        name="open-question",
        title="Does an estimate from updates recover the data's skew?",
        columns=columns,
        rows=tuple(rows),
        note="Pooled over n seeds, 95 % intervals; oracle-tv is given the true distance, "
        "which checks the pipeline.",
    )


def _place(dataset: str, suite: str) -> str:
    name = paper_a.NAMES.get(dataset) or paper_b.NAMES.get(dataset, dataset)
    return f"{name} ({suite})" if suite else name


def _by_seed(values: PerSeed) -> str:
    return "; ".join(
        f"{seed}: {value}" if isinstance(value, str) else f"{seed}: {value:.3g}"
        for seed, value in values.items()
    )

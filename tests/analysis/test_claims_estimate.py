"""What the estimates measure: claims A1 to A4, and the open question."""

import math

import numpy as np
import pytest
from claim_runs import CAPACITY, FAILS, HOLDS, SEEDS, adaptation, judged, study_of, writer
from scipy import stats

from fedhet_app.analysis.claims.open_question import open_question


@pytest.fixture
def make(tmp_path):
    return writer(tmp_path)


def estimated(make, label, seed, estimate, *, skew=None, width=None, times=10):
    """A run that adapted some times to one estimate."""
    skew = np.linspace(0.2, 0.8, 20) if skew is None else skew
    width = np.minimum(CAPACITY, 0.5) + 0.01 * np.sin(np.arange(20)) if width is None else width
    rows = [r for t in range(times) for r in adaptation(15 + 5 * t, estimate, width)]
    partition = {"total-variation": np.asarray(skew).tolist(), "capacities": CAPACITY.tolist()}
    return make(label, seed, clients=rows, partition=partition, strategy="has-fl")


def noise(seed, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal(20)


def given_capacity(a, b):
    """The correlation of what lines over capacity leave of a and b."""
    fit = np.column_stack([np.ones(20), CAPACITY])
    left = [each - fit @ np.linalg.lstsq(fit, each)[0] for each in (a, b)]
    return stats.pearsonr(*left).statistic


def fisher_mean(values):
    return np.tanh(np.mean(np.arctanh(values)))


@pytest.mark.parametrize(
    ("slopes", "scale", "verdict"),
    [
        ((-1, -1, -1), 0.2, HOLDS),
        ((-1, -1, 1), 0.2, FAILS),
        ((-0.1, -0.1, -0.1), 0.5, FAILS),  # all below 0, but not far enough
    ],
)
@pytest.mark.parametrize(
    ("id", "label"), [("A1", "has-fl"), ("A4, common-core", "iid-common-core")]
)
def test_the_estimate_falls_with_capacity(make, id, label, slopes, scale, verdict):
    residual = noise(0, scale)
    residual -= np.polyval(np.polyfit(CAPACITY, residual, 1), CAPACITY)
    estimates = [3 + slope * CAPACITY + residual for slope in slopes]
    runs = [estimated(make, label, seed, each) for seed, each in zip(SEEDS, estimates, strict=True)]
    claim = judged(id, *runs)
    r = [stats.pearsonr(each, CAPACITY).statistic for each in estimates]
    assert dict(claim.per_seed) == pytest.approx(dict(zip(SEEDS, r, strict=True)))
    assert f"pooled r {fisher_mean(r):+.2f}" in claim.measured
    assert claim.verdict == verdict


def test_confounded_estimates_that_were_not_measured(make):
    runs = [estimated(make, "has-fl", seed, noise(seed), times=9) for seed in SEEDS]
    expected = "not measured: has-fl with 10 adaptation rounds (one has 9)"
    assert judged("A1", *runs).verdict == expected
    runs = [estimated(make, "iid-paper", seed, 1.0) for seed in SEEDS]
    claim = judged("A4, paper", *runs)
    assert "undefined" in claim.verdict and claim.verdict.startswith("not measured: ")
    assert claim.per_seed[42] == "divergence is constant"
    assert judged("A4, leave-one-out", *runs).verdict == "not measured: iid-leave-one-out"


@pytest.mark.parametrize(
    ("strength", "verdict", "control"),
    [(0.0, HOLDS, FAILS), (-3.0, HOLDS, FAILS), (5.0, FAILS, HOLDS)],
)
def test_the_estimate_carries_no_skew_and_the_oracle_does(make, strength, verdict, control):
    skews = [np.random.default_rng(7 + seed).uniform(0.2, 0.8, 20) for seed in SEEDS]
    estimates = [
        2 - CAPACITY + strength * skew + noise(seed, 0.3)
        for seed, skew in zip(SEEDS, skews, strict=True)
    ]
    for id, label, expected in (
        ("A2", "has-fl", verdict),
        ("A2, positive control", "estimator-oracle-tv", control),
    ):
        runs = [
            estimated(make, label, *each[:2], skew=each[2])
            for each in zip(SEEDS, estimates, skews, strict=True)
        ]
        claim = judged(id, *runs)
        r = [given_capacity(*pair) for pair in zip(estimates, skews, strict=True)]
        assert dict(claim.per_seed) == pytest.approx(dict(zip(SEEDS, r, strict=True)))
        # The weights of 3 seeds of 20 clients, one variable held fixed: 3 (20 - 3 - 1).
        ends = np.tanh(np.arctanh(fisher_mean(r)) + 1.959964 / math.sqrt(48) * np.array([-1, 1]))
        assert f"[{ends[0]:+.2f}, {ends[1]:+.2f}], 3 seeds" in claim.measured
        assert claim.verdict == expected
    assert judged("A2", make("fedavg")).verdict == "not measured: has-fl"


@pytest.mark.parametrize(("strength", "verdict"), [(0.0, HOLDS), (1.0, FAILS)])
def test_the_widths_do_not_follow_the_skew(make, strength, verdict):
    skew = np.linspace(0.2, 0.8, 20)
    widths = [
        0.3 + 0.1 * CAPACITY + strength * 0.1 * skew + noise(seed, 0.01) * (1 - 0.5 * strength)
        for seed in SEEDS
    ]
    runs = [
        estimated(make, "has-fl", seed, noise(seed), width=width)
        for seed, width in zip(SEEDS, widths, strict=True)
    ]
    claim = judged("A3", *runs)
    r = [given_capacity(width, skew) for width in widths]
    assert f"mean {np.mean(r):+.2f}; " in claim.measured
    assert claim.verdict == verdict == (HOLDS if np.mean(r) <= 0.2 else FAILS)
    assert judged("A3", *runs[:2]).verdict == "not measured: 3 seeds of has-fl (finished: 42, 43)"


def answers(*runs):
    return {answer.estimator: answer for answer in open_question(study_of(*runs))}


def oracle_runs(make, harm=0.0):
    """Runs whose estimate is the true distance, or one that something has changed."""
    skews = {seed: np.random.default_rng(seed).uniform(0.2, 0.8, 20) for seed in SEEDS}
    return [
        estimated(make, "estimator-oracle-tv", seed, skew + noise(seed, harm), skew=skew)
        for seed, skew in skews.items()
    ]


def estimator_runs(make, label, strength, seeds=(42, 43, 44, 45, 46), same=False):
    runs = []
    for seed in seeds:
        skew = np.random.default_rng(0 if same else seed).uniform(0.2, 0.8, 20)
        estimate = 2 - CAPACITY + strength * skew + noise(seed, 0.3)
        runs.append(estimated(make, label, seed, estimate, skew=skew))
    return runs


def test_each_estimator_is_answered_beside_the_oracle(make):
    runs = [
        *estimator_runs(make, "has-fl", 0.0),
        *estimator_runs(make, "estimator-leave-one-out", -4.0),
        *estimator_runs(make, "estimator-common-core", 4.0),
        *oracle_runs(make),
        *estimator_runs(make, "iid-paper", 0.0, seeds=SEEDS),
    ]
    found = answers(*runs)
    signs = {name: answer.skew.sign for name, answer in found.items()}
    assert signs == {"paper": 0, "leave-one-out": -1, "common-core": 1, "oracle-tv": 1}
    assert "no evidence that the paper estimate recovers" in found["paper"].conclusion
    # By pencil: tanh(1.96 / sqrt(5 (20 - 3 - 1))).
    power = "100 clients in 5 runs; only a correlation beyond 0.22 in size can be told from 0"
    assert found["paper"].conclusion.endswith(f"beyond capacity ({power}).")
    assert "can be told" not in found["common-core"].conclusion
    assert found["oracle-tv"].conclusion.startswith("1 by construction: ")
    assert "lies below 0" in found["leave-one-out"].conclusion
    assert "carries information about label skew" in found["common-core"].conclusion
    assert (found["paper"].seeds, found["paper"].iid_seeds) == ((42, 43, 44, 45, 46), SEEDS)
    assert found["paper"].capacity.sign == found["paper"].iid_capacity.sign == -1
    assert found["oracle-tv"].iid_capacity.reason


def test_an_answer_says_what_weakens_it(make):
    few = estimator_runs(make, "has-fl", 0.0, seeds=SEEDS, same=True)
    alone = answers(*few)["paper"].conclusion
    assert "60 clients in 3 runs; only a correlation beyond 0.28 in size" in alone
    assert "(3 seeds, fewer than 5; one partition for all seeds" in alone
    one = estimator_runs(make, "estimator-leave-one-out", 9.0, seeds=(42,))
    assert "(1 seed, fewer than 5)" in answers(*one)["leave-one-out"].conclusion
    assert answers(*few)["common-core"].conclusion == "Not measured: no run of this estimator."


def test_an_oracle_that_is_not_1_points_at_the_pipeline(make):
    harmed = answers(*oracle_runs(make, harm=0.05))["oracle-tv"]
    assert harmed.conclusion.startswith(f"By construction 1, but {harmed.skew.r:+.2f}: something")
    assert answers(make("has-fl"))["oracle-tv"].conclusion == (
        "Not measured: no run of this estimator."
    )


def test_a_constant_estimate_is_no_answer(make):
    runs = [estimated(make, "has-fl", seed, 1.0) for seed in SEEDS]
    assert "Not measured: divergence is constant." in answers(*runs)["paper"].conclusion
    assert open_question(study_of(make("fedavg"))) == []

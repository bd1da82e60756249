"""Claims A5 and A6: what nobody trains."""

import pytest
from claim_runs import FAILS, HOLDS, SEEDS, judged, row, writer


@pytest.fixture
def make(tmp_path):
    return writer(tmp_path)


def stale(whole, part, width=0.5):
    return {"stale": {"width": width, "as-is": whole, "classifier-zeroed": whole, "slice": part}}


@pytest.mark.parametrize(
    ("id", "label", "strategy"),
    [
        ("A6 (a)", "uniform", "uniform"),
        ("A6 (a), collapse preset", "collapse-uniform", "uniform"),
        ("A6 (b)", "has-fl-off", "has-fl"),
        ("A6 (b), collapse preset", "collapse-has-fl-off", "has-fl"),
    ],
)
@pytest.mark.parametrize(("last", "verdict"), [(0.52, HOLDS), (0.5, FAILS), (0.4, FAILS)])
def test_the_trained_slice_does_better_alone_on_every_seed(
    make, id, label, strategy, last, verdict
):
    parts = {42: 0.6, 43: 0.7, 44: last}
    runs = [
        make(label, seed, strategy=strategy, summary=stale(0.5, part))
        for seed, part in parts.items()
    ]
    claim = judged(id, *runs)
    assert claim.verdict == verdict
    gains = {42: 10.0, 43: 20.0, 44: 100 * last - 50}
    assert dict(claim.per_seed) == pytest.approx(gains)
    assert judged(id, *runs[:2]).verdict.startswith("not measured: 3 seeds of")


def test_a_slice_that_was_measured_every_round_stands_in_for_the_closing_one(make):
    """Uniform's slice is a tier; that of a run without the guarantee is not."""
    rounds = [row(accuracy=0.5, slice_accuracy={"0.5": 0.53, "1": 0.5})]
    runs = [make("uniform", seed, rounds=rounds) for seed in SEEDS]
    off = [make("has-fl-off", seed, rounds=rounds, strategy="has-fl") for seed in SEEDS]
    claim = judged("A6 (a)", *runs)
    assert claim.verdict == HOLDS
    assert dict(claim.per_seed) == pytest.approx(dict.fromkeys(SEEDS, 3.0))
    expected = "not measured: the accuracy of the trained slice of has-fl-off, seed 42, 43, 44"
    assert judged("A6 (b)", *off).verdict == expected


def bits(changed=0, never=0.75, unmoved=0.75, number=60):
    counts = {"untrained-changed": changed, "never-trained": never, "unmoved": unmoved}
    return row(number, uncovered=never) | counts


@pytest.mark.parametrize(
    ("id", "label", "strategy"),
    [("A5 (a)", "uniform", "uniform"), ("A5 (b)", "has-fl-off", "has-fl")],
)
@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([bits(number=1), bits()], HOLDS),
        ([bits(unmoved=0.8)], HOLDS),  # a gradient of 0 moves nothing
        ([bits(changed=1, number=1), bits()], FAILS),
        ([bits(unmoved=0.7)], FAILS),
        ([bits(never=0.0)], "not measured: parameters that {} leaves untrained, seed 42"),
        ([row()], "not measured: untrained-changed and unmoved of {}, seed 42"),
    ],
)
def test_what_nobody_trains_keeps_its_bits(make, id, label, strategy, rounds, verdict):
    run = make(label, rounds=rounds, strategy=strategy)
    assert judged(id, run).verdict == verdict.format(label)
    assert judged(id, make("fedavg")).verdict == f"not measured: {label}"


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([bits(0, 0.2, 0.2, 10), bits(0, 0.0, 0.0, 20), bits(0, 0.0, 0.1, 30)], HOLDS),
        ([bits(0, 0.0, 0.001, 20)], HOLDS),  # zeros of dead units
        ([bits(0, 0.0, 0.0, 10), bits(0, 0.0, 0.0011, 25)], FAILS),
        ([bits(0, 1e-6, 0.0, 20)], FAILS),
        ([bits(0, 0.0, 0.0, 19)], "not measured: has-fl evaluated in round 20 or later, seed 42"),
        ([row()], "not measured: untrained-changed and unmoved of has-fl, seed 42"),
    ],
)
def test_with_the_guarantee_every_coordinate_changes(make, rounds, verdict):
    assert judged("A5 (c)", make("has-fl", rounds=rounds)).verdict == verdict
    assert judged("A5 (c)", make("fedavg")).verdict == "not measured: has-fl"

"""How runs unfold, what they cost and how wide they are: claims A12, A13, A15 to A17."""

import math

import numpy as np
import pytest
from claim_runs import FAILS, HOLDS, SEEDS, TIERS, adaptation, judged, row, writer

from fedhet_app.analysis.claims.cost import overhead
from fedhet_app.analysis.claims.course import drift
from fedhet_app.analysis.claims.width import expected_width


@pytest.fixture
def make(tmp_path):
    return writer(tmp_path)


def course(losses, accuracies=None):
    accuracies = accuracies or [0.5] * len(losses)
    pairs = enumerate(zip(losses, accuracies, strict=True), 1)
    return [row(at, loss=loss, accuracy=accuracy) for at, (loss, accuracy) in pairs]


@pytest.mark.parametrize(
    ("losses", "examples", "verdict", "counted"),
    [
        ([3.0, 2.0, 2.0, 1.0], 0, HOLDS, "0 of 3"),
        ([3.0, 2.0, 2.5, 1.0], 0, FAILS, "1 of 3"),
        ([3.0, None, 2.0, 1.0], 0, FAILS, "2 of 3"),
        ([3.0, 2.0, 1.0, 1.5], 500, HOLDS, "0 of 2"),  # the last loss is of the whole test set
    ],
)
def test_the_loss_of_fedprox_never_rises(make, losses, examples, verdict, counted):
    config = {"evaluate-examples": examples}
    runs = [make("fedprox", seed, rounds=course(losses), config=config) for seed in SEEDS]
    claim = judged("A11 (c)", *runs)
    assert (claim.verdict, claim.per_seed[43]) == (verdict, counted)
    assert judged("A11 (c)", make("fedavg")).verdict == "not measured: fedprox"


@pytest.mark.parametrize(
    ("late", "accuracy", "verdict"),
    [
        (1.05, 0.47, HOLDS),
        (1.04, 0.5, FAILS),
        (1.5, 0.46, FAILS),
    ],
)
def test_the_loss_drifts_up_while_accuracy_stays_flat(make, late, accuracy, verdict):
    rounds = course([2.0, 1.0, *[late] * 5], [0.3, 0.5, *[accuracy] * 5])
    runs = [make("has-fl", seed, rounds=rounds) for seed in SEEDS]
    claim = judged("A17", *runs)
    assert claim.verdict == verdict
    assert claim.measured == f"{100 * (late - 1):+.1f} %, {100 * (accuracy - 0.5):+.1f} points"
    short = make("has-fl", 45, rounds=course([2.0, 1.0, 1.1, 1.1, 1.1]))
    expected = "not measured: has-fl with more than 5 evaluations, seed 45"
    assert judged("A17", *runs, short).verdict == expected


@pytest.mark.parametrize(
    ("means", "verdict", "seen"),
    [
        ({20: 1, 25: 1.5, 35: 1.9, 40: 1, 55: 2.1, 60: 1, 75: 9}, HOLDS, "1.00 to 2.00"),
        ({20: 1, 25: 1.1, 35: 1.2, 40: 1, 55: 1.2, 60: 1}, FAILS, "1.00 to 1.20"),
        ({20: 1.1, 25: 1.5, 40: 1.1, 55: 2.1, 60: 1.1}, FAILS, "1.10 to 1.80"),
        (
            {15: 1.8, 20: 1, 35: 2},
            "not measured: two normalisations with an adaptation between them, seed 42, 43, 44",
            None,
        ),
    ],
)
def test_the_mean_estimate_is_a_sawtooth(make, means, verdict, seen):
    rows = [each for number, mean in means.items() for each in adaptation(number, mean)]
    runs = [make("has-fl", seed, clients=rows) for seed in SEEDS]
    claim = judged("A16 (a)", *runs)
    assert (claim.verdict, claim.per_seed.get(42)) == (verdict, seen)


@pytest.mark.parametrize(("width", "verdict"), [(0.55, HOLDS), (0.56, FAILS), (0.44, FAILS)])
def test_the_mean_width_after_the_first_adaptation_is_near_one_half(make, width, verdict):
    rounds = [row(15, allocated_mean_width=0.9), row(16, allocated_mean_width=width)]
    runs = [make("has-fl", seed, rounds=rounds, clients=adaptation(15)) for seed in SEEDS]
    claim = judged("A16 (b)", *runs)
    assert (claim.verdict, claim.per_seed[44]) == (verdict, width)
    never = [make("has-fl", seed) for seed in (45, 46, 47)]
    assert judged("A16 (b)", *never).verdict == "not measured: has-fl runs that adapt"


def test_the_drift_of_a_loss_that_overflowed_is_taken_from_the_finite_ones(make):
    run = make("has-fl", rounds=course([None, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]))
    assert drift(run) == pytest.approx((1.0, 0.0))


def fjord(make, mean, **config):
    """Capacities .25, .5, .75, 1, two of four clients a round, 100 rounds."""
    rounds = [row(number) for number in range(1, 101)]
    partition = {"capacities": TIERS}
    return make(
        "fjord", rounds=rounds, partition=partition, summary={"mean-width": mean}, config=config
    )


def test_the_error_of_fjords_mean_width(make):
    """By pencil: draws have means .25, .375, .5, .625 and variances 0, 1/64, 1/24, 5/64."""
    expected, error = expected_width(fjord(make, 0.4375))
    assert expected == pytest.approx(0.125 + 0.5 * np.mean(TIERS))
    within, between = np.mean([0, 1 / 64, 1 / 24, 5 / 64]), (1 - 2 / 4) * 5 / 192
    assert error == pytest.approx(math.sqrt((within + between) / 2 / 100))
    rng = np.random.default_rng(3)
    cohorts = rng.permuted(np.tile(np.arange(4), (100_000, 1)), axis=1)[:, :2]
    drawn = 0.25 * rng.integers(1, cohorts + 2)
    assert drawn.mean(axis=1).std() / 10 == pytest.approx(error, rel=0.01)


@pytest.mark.parametrize(
    ("errors", "verdict"), [(0, HOLDS), (2.99, HOLDS), (-2.99, HOLDS), (3.01, FAILS), (-4, FAILS)]
)
def test_fjords_mean_width_is_within_three_standard_errors(make, errors, verdict):
    claim = judged("A13 (a)", fjord(make, 0.4375 + errors * 0.0153093))
    assert claim.verdict == verdict
    assert claim.measured == f"at most {abs(errors):.1f} standard errors"


def test_fjords_mean_width_that_was_not_measured(make):
    by_batch = fjord(make, 0.9, **{"fjord.draw": "batch"})
    expected = "not measured: fjord that draws by round and records capacities"
    assert judged("A13 (a)", by_batch).verdict == expected
    assert judged("A13 (a)", make("fedavg")).verdict == "not measured: fjord"


@pytest.mark.parametrize(
    ("allotted", "coverage", "verdict", "gap"),
    [
        ([0.25, 0.5, 0.6, 1.0], True, HOLDS, 0.0),
        ([0.25, 0.5, 0.6, 0.7], False, HOLDS, 0.0),
        ([0.25, 0.5, 0.6, 0.7], True, FAILS, 0.3),
        ([0.25, 0.5, 0.61, 1.0], True, FAILS, 0.01),
    ],
)
def test_has_fls_widths_follow_the_formula(make, allotted, coverage, verdict, gap):
    """By pencil: the estimates have mean 1, and min(cap, .4 + .25 H) is .25, .5, .6, .7."""
    rows = adaptation(15, [1.2, 0.8, 0.8, 1.2], allotted, TIERS)
    run = make("has-fl", clients=rows, config={"has-fl.coverage": coverage})
    claim = judged("A13 (b)", run)
    assert claim.verdict == verdict
    assert claim.per_seed[42] == pytest.approx(gap, abs=1e-9)
    assert judged("A13 (b)", make("has-fl", 43)).verdict == "not measured: has-fl runs that adapt"


def tiers(*params, scale=1):
    return [
        {"width": width, "params": count, "macs": scale * count, "bytes": 4 * count}
        for width, count in zip(TIERS, params, strict=True)
    ]


@pytest.mark.parametrize(
    ("params", "preset", "verdict"),
    [
        ((64, 252, 565, 1000), "paper", HOLDS),
        ((79, 271, 580, 1000), "paper", FAILS),
        ((64, 271, 565, 1000), "paper", FAILS),
        ((64, 252, 565, 1000), "small", "not measured: a run with model-preset = paper"),
    ],
)
def test_the_cost_of_a_quarter_and_of_half_the_width(make, params, preset, verdict):
    run = make("has-fl", cost=tiers(*params), config={"model-preset": preset})
    claim = judged("A12 (a)", run)
    assert claim.verdict.startswith(verdict)
    assert claim.measured.startswith(f"{params[0] / 10:.1f} % and {params[1] / 10:.1f} % (cnn,")
    assert judged("A12 (a)", make("fedavg")).verdict.startswith("not measured: a run with")


def test_the_cost_of_the_paper_size_network_is_found_beside_small_ones(make):
    small = make("has-fl", cost=tiers(79, 271, 580, 1000), config={"model-preset": "small"})
    large = make(
        "paper-size",
        strategy="heterofl",
        cost=tiers(64, 252, 565, 1000),
        config={"model-preset": "paper"},
    )
    claim = judged("A12 (a)", small, large)
    assert (claim.verdict, claim.measured) == (HOLDS, "6.4 % and 25.2 % (cnn, preset paper)")
    assert judged("A7", small, large).verdict == "not measured: heterofl and uniform"


def sent(number, *floats):
    return [
        {"round": number, "partition": i, "trained": True, "width": 0.5, "floats": each}
        for i, each in enumerate(floats)
    ]


@pytest.mark.parametrize(
    ("extra", "verdict"), [(0, HOLDS), (405, HOLDS), (513, FAILS), (-1, FAILS)]
)
def test_only_slices_travel(make, extra, verdict):
    """Two round trips of 100 and 300 floats are 8 x 400 bytes; a dropped reply is not counted."""
    rows = [
        row(1, upload_bytes=1600 + extra, download_bytes=1600 + extra),
        row(2, upload_bytes=9999, download_bytes=9999, rejected=[{"partition": 1}]),
    ]
    run = make("heterofl", rounds=rows, clients=[*sent(1, 100, 300), *sent(2, 100)])
    assert overhead(run) == (extra, 2)
    assert judged("A12 (b)", run).verdict == verdict
    unrecorded = [{"round": 1, "partition": 0, "trained": True, "width": 0.5}]
    old = make("has-fl", rounds=rows, clients=unrecorded)
    assert judged("A12 (b)", old).verdict.startswith("not measured: runs of has-fl, heterofl")


@pytest.mark.parametrize(
    ("total", "verdict"), [(250, HOLDS), (350, HOLDS), (249, FAILS), (351, FAILS)]
)
def test_the_full_model_costs_about_three_times_the_traffic(make, total, verdict):
    full = {"upload-bytes": total - 100, "download-bytes": 100}
    ours = {"upload-bytes": 60, "download-bytes": 40}
    runs = [make("fedavg", seed, summary=full) for seed in SEEDS]
    runs += [make("has-fl", seed, summary=ours) for seed in SEEDS]
    claim = judged("A15 (a)", *runs)
    assert (claim.verdict, claim.measured) == (verdict, f"{total / 100:.2f}")
    assert judged("A15 (a)", *runs[1:]).verdict.startswith("not measured: 3 seeds of fedavg")


@pytest.mark.parametrize(
    ("widths", "ratio", "verdict"),
    [
        ((0.25, 0.5, 0.75), 100 / ((10 + 30 + 60) / 3), HOLDS),
        ((0.25, 0.5), 5.0, FAILS),
        ((0.5, 1.0), 100 / 65, FAILS),
        # .625^2 lies at 9/20 between .5^2 and .75^2
        ((0.625,), 100 / (30 + 30 * 9 / 20), FAILS),
    ],
)
def test_the_full_model_costs_about_three_times_the_computation(make, widths, ratio, verdict):
    rows = [{"round": 1, "partition": 0, "trained": True, "width": width} for width in widths]
    rows.append({"round": 1, "partition": 9, "trained": False})
    parts = {"clients": rows, "cost": tiers(1, 3, 6, 10, scale=10)}
    runs = [make("has-fl", seed, **parts) for seed in SEEDS]
    claim = judged("A15 (b)", *runs)
    assert claim.per_seed[42] == pytest.approx(ratio)
    assert claim.verdict == verdict
    uncounted = make("has-fl", 45, clients=rows)
    expected = "not measured: cost.json up to width 1 of has-fl, seed 45"
    assert judged("A15 (b)", *runs, uncounted).verdict == expected

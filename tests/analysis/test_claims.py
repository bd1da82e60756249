"""Every claim is driven to each verdict by runs whose numbers are chosen here."""

import json
import math

import numpy as np
import pytest
from claim_runs import (
    FAILS,
    HOLDS,
    SEEDS,
    finals,
    judged,
    row,
    study_of,
    writer,
)

from fedhet_app.analysis.claims import scaffold
from fedhet_app.analysis.claims.claims import claims
from fedhet_app.analysis.claims.paper import REPORTED, reported
from fedhet_app.analysis.study import Section, Study, load_study
from fedhet_app.analysis.study_run import Run


@pytest.fixture
def make(tmp_path):
    return writer(tmp_path)


CONTRASTS = [
    ("A6 (c)", "has-fl", "has-fl-off", 5),
    ("A6 (c), collapse preset", "collapse-has-fl", "collapse-has-fl-off", 5),
    ("A7", "heterofl", "uniform", 3),
    ("A7, collapse preset", "collapse-heterofl", "collapse-uniform", 3),
    ("A9", "fedavg", "has-fl", 3),
    ("A10 (b)", "scaffold", "fedavg-plain", -3),
    ("A11 (a)", "fedavg", "fedprox", 5),
]


@pytest.mark.parametrize(("id", "more", "less", "bound"), CONTRASTS)
@pytest.mark.parametrize(("above", "verdict"), [(0.0, HOLDS), (-0.1, FAILS)])
def test_a_mean_paired_difference_meets_its_threshold_or_not(
    make, id, more, less, bound, above, verdict
):
    mean = bound + above
    lower, gaps = np.array([0.5, 0.6, 0.4]), np.array([mean - 2, mean + 3, mean - 1])
    runs = [*finals(make, less, lower), *finals(make, more, lower + gaps / 100)]
    claim = judged(id, *runs)
    assert claim.verdict == verdict
    assert dict(claim.per_seed) == pytest.approx(dict(zip(SEEDS, gaps, strict=True)))
    # 4.303 is the 97.5 % point of Student's t with two degrees of freedom; the squares sum to 14.
    half = 4.303 * math.sqrt(14 / 2 / 3)
    assert f"{mean:+.1f} ± 2.6 points" in claim.measured
    assert f"[{mean - half:+.1f}, {mean + half:+.1f}], 3 seeds" in claim.measured


@pytest.mark.parametrize(
    ("mine", "theirs", "missing"),
    [
        ([], [0.5, 0.5, 0.5], "fedavg"),
        ([0.6, 0.6], [0.5, 0.5, 0.5], "3 seeds of fedavg and has-fl (finished: 42, 43)"),
        ([], [], "fedavg and has-fl"),
    ],
)
def test_a_comparison_without_its_runs_says_which_are_missing(make, mine, theirs, missing):
    runs = [*finals(make, "fedavg", mine), *finals(make, "has-fl", theirs), make("uniform")]
    assert judged("A9", *runs).verdict == f"not measured: {missing}"


@pytest.mark.parametrize(
    ("control", "gap", "width", "verdict"),
    [
        ([0.45, 0.55, 0.65], 0, 0.53, HOLDS),
        ([0.45, 0.55, 0.65], 5, 0.53, HOLDS),
        ([0.45, 0.55, 0.65], 11, 0.5, FAILS),  # one standard deviation of has-fl is 10
        ([0.45, 0.55, 0.65], -11, 0.5, FAILS),
        ([0.55, 0.55, 0.55], 0.9, 0.5, HOLDS),
        ([0.55, 0.55, 0.55], 1.1, 0.5, FAILS),
        ([0.55, 0.55, 0.55], 0, 0.54, "not measured: random-budget within 0.03"),
    ],
)
def test_random_widths_of_one_budget_do_as_well(make, control, gap, width, verdict):
    ours = finals(make, "has-fl", np.array(control) + gap / 100)
    theirs = finals(
        make, "random-budget", control, rounds=[row(allocated_mean_width=w) for w in (width, width)]
    )
    assert judged("A8", *ours, *theirs).verdict.startswith(verdict)
    assert judged("A8, permuted", *ours, *theirs).verdict == "not measured: random-budget-permute"


@pytest.mark.parametrize(
    ("uniform", "fjord", "ours", "best", "order", "drop"),
    [
        (0.34, 0.34, 0.25, 0.30, HOLDS, HOLDS),
        (0.33, 0.34, 0.25, 0.26, FAILS, FAILS),
        (0.34, 0.34, 0.34, 0.40, FAILS, HOLDS),
    ],
)
def test_on_text_the_order_is_turned_round(make, uniform, fjord, ours, best, order, drop):
    runs = [
        *finals(make, "uniform", [uniform] * 3),
        *finals(make, "fjord", [fjord] * 3, best=fjord + 0.01),
        *finals(make, "has-fl", [ours] * 3, best=best),
    ]
    assert judged("A14 (a)", *runs, dataset="shakespeare").verdict == order
    found = judged("A14 (b)", *runs, dataset="shakespeare")
    assert found.verdict == drop
    assert found.measured == f"0.0, 1.0, {100 * (best - ours):.1f}"
    runs = [run for run in runs if run.label != "fjord"]
    assert judged("A14 (b)", *runs, dataset="shakespeare").verdict == "not measured: fjord"


@pytest.mark.parametrize(
    ("on", "off", "verdict"),
    [(0.52, 0.54, HOLDS), (0.52, 0.53, FAILS), (0.5, 0.5, FAILS)],
)
def test_the_drop_without_the_guarantee_is_twice_that_with_it(make, on, off, verdict):
    runs = [
        *finals(make, "has-fl", [0.5] * 3, best=on),
        *finals(make, "has-fl-off", [0.5] * 3, best=off, strategy="has-fl"),
    ]
    claim = judged("A6 (d)", *runs)
    assert claim.verdict == verdict
    assert claim.per_seed[42] == f"{100 * off - 50:.1f} against {100 * on - 50:.1f}"
    assert judged("A6 (d)", *runs[:5]).verdict.startswith("not measured: 3 seeds of has-fl and")


def part_of_the_test_set(*accuracies):
    """A run measured on 500 examples, but for the last round, which is on all of them."""
    rounds = [row(20 * at, accuracy=each) for at, each in enumerate(accuracies, 1)]
    final, best = accuracies[-1], max(accuracies)
    return {
        "rounds": rounds,
        "final": final,
        "best": best,
        "config": {"evaluate-examples": 500},
    }


@pytest.mark.parametrize(
    ("id", "labels", "dataset", "measured"),
    [
        ("A6 (d)", ("has-fl", "has-fl-off"), "cifar10", "5.0 against 5.0 points, 3 seeds"),
        ("A14 (b)", ("uniform", "fjord", "has-fl"), "shakespeare", "5.0, 5.0, 5.0"),
    ],
)
def test_a_fall_is_between_evaluations_on_the_same_examples(make, id, labels, dataset, measured):
    """From .60 to .55 on a part; to .30 on the whole set is another measurement."""
    parts = part_of_the_test_set(0.5, 0.6, 0.55, 0.3)
    runs = [make(label, seed, **parts) for label in labels for seed in SEEDS]
    assert judged(id, *runs, dataset=dataset).measured == measured
    short = make(labels[-1], 45, **part_of_the_test_set(0.3))
    expected = f"not measured: an evaluation before the last round of {labels[-1]} seed 45"
    assert judged(id, *runs, short, dataset=dataset).verdict == expected


def test_one_seed_is_not_several(make):
    pair = (make("has-fl", best=0.6), make("has-fl-off", best=0.6, strategy="has-fl"))
    assert judged("A6 (d)", *pair).measured == "10.0 against 10.0 points, 1 seed"


@pytest.mark.parametrize(
    ("on", "factor", "verdict"),
    [
        ([0.5, 0.52, 0.54], 1.5, HOLDS),
        ([0.5, 0.52, 0.54], 1.4, FAILS),
        ([0.5, 0.5, 0.5], 1.5, "not measured: has-fl runs that differ between seeds"),
    ],
)
def test_the_spread_without_the_guarantee_is_about_twice_that_with_it(make, on, factor, verdict):
    off = 0.4 + factor * (np.array(on) - 0.5)
    runs = [*finals(make, "has-fl", on), *finals(make, "has-fl-off", off, strategy="has-fl")]
    claim = judged("A18", *runs)
    assert claim.verdict == verdict
    if verdict != HOLDS:
        return
    # With three seeds each F's 97.5 % point is 39 = 0.975 / 0.025, so the ratio is off by sqrt 39.
    ends = f"[{1.5 / math.sqrt(39):.1f}, {1.5 * math.sqrt(39):.1f}]"
    assert claim.measured == f"3.0 / 2.0 = 1.5, 95 % interval {ends}"


def test_the_gap_of_fedprox_is_smaller_where_there_are_many_classes(make):
    """One of ten classes and one of 62 in a study: 22 points against 1.6, or against 30."""

    def section(dataset, classes, prefix, gap):
        partition = {"class-histograms": [[1] * classes]}
        runs = [
            make(f"{prefix}{label}", seed, final=final, partition=partition)
            for label, final in (("fedavg", 0.8), ("fedprox", 0.8 - gap))
            for seed in SEEDS
        ]
        named = [Run(**{**vars(run), "label": run.label.removeprefix(prefix)}) for run in runs]
        return Section(dataset=dataset, suite="", runs=tuple(named))

    ten = section("cifar10", 10, "ten-", 0.22)
    near, far = section("femnist", 62, "near-", 0.016), section("emnist", 62, "far-", 0.3)
    study = Study(sections=(ten, near, far), left_out=())
    found = {c.dataset: c for c in claims(study) if c.id == "A11 (b)"}
    assert {dataset: each.verdict for dataset, each in found.items()} == {
        "femnist": HOLDS,
        "emnist": FAILS,
    }
    assert found["femnist"].measured == "+1.6; +22.0 on cifar10"
    (alone,) = [c for c in claims(Study(sections=(near,), left_out=())) if c.id == "A11 (b)"]
    assert alone.verdict == "not measured: a data set of ten classes"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"final": 0.15}, "15.0"),
        ({"rounds": [row(10, loss=None), row(20)]}, "loss not finite in round 10"),
        (
            {"summary": {"status": "diverged", "rounds": 7}},
            "no finite reply up to round 7, which ended it",
        ),
    ],
)
def test_momentum_makes_scaffold_diverge(make, parts, text):
    """Chance is 10 %; each of 20 clients takes ceil(320 / 64) = 5 local steps."""
    others = [make("scaffold-momentum", seed, final=0.1) for seed in (43, 44)]
    others.append(make("fedavg"))
    claim = judged("A10 (a)", *others, make("scaffold-momentum", **parts))
    assert (claim.verdict, claim.per_seed[42]) == (HOLDS, text)
    assert claim.measured == "3 of 3 diverged, at least 5 local steps a client"
    well = judged("A10 (a)", *others, make("scaffold-momentum", 45, final=0.16))
    assert (well.verdict, well.per_seed[45]) == (FAILS, "16.0")


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ({"summary": {"status": "failed"}}, "3 seeds of scaffold-momentum (ended: 43, 44)"),
        ({"final": 0.1, "config": {"local-steps": 4}}, "scaffold-momentum of at least 5 local"),
        ({"final": 0.1, "partition": {"sizes": [256] * 20}}, "scaffold-momentum of at least 5"),
        ({"config": {"dataset": "digits"}, "summary": {"status": "diverged"}}, "3 seeds of"),
    ],
)
def test_divergence_that_was_not_measured(make, parts, missing):
    others = [make("scaffold-momentum", seed, final=0.1) for seed in (43, 44)]
    claim = judged("A10 (a)", *others, make("scaffold-momentum", **parts))
    assert claim.verdict.startswith(f"not measured: {missing}")


def test_local_steps_are_counted_over_epochs(make):
    config = {"local-epochs": 3, "batch-size": 10}
    run = make("scaffold", config=config, partition={"sizes": [10, 11, 35]})
    assert scaffold.steps_per_client(run) == pytest.approx(3 * (1 + 2 + 4) / 3)


def test_every_claim_is_there_and_nothing_is_measured_without_runs(make):
    image = claims(study_of(make("fedrolex")))
    text = claims(study_of(make("heterofl"), dataset="shakespeare"))
    numbers = {int(claim.id[1:].split()[0].rstrip(",")) for claim in (*image, *text)}
    assert numbers == set(range(1, 19))
    assert all(claim.verdict.startswith("not measured: ") for claim in (*image, *text))
    assert all(claim.verdict != "not measured: " for claim in (*image, *text))
    assert len({claim.id for claim in image}) == len(image)
    order = [int(claim.id[1:].split()[0].rstrip(",")) for claim in image]
    assert order == sorted(order)


def test_claims_of_images_are_not_asked_of_text_nor_the_other_way_round(make):
    runs = [make("has-fl")]
    image = {claim.id for claim in claims(study_of(*runs))}
    text = {claim.id for claim in claims(study_of(*runs, dataset="shakespeare"))}
    assert {"A1", "A7", "A10 (a)", "A11 (a)"} <= image - text
    assert text - image == {"A14 (a)", "A14 (b)"}
    assert {"A2", "A3", "A8"} <= image & text


def test_two_sweeps_are_judged_apart(make):
    sections = [
        Section(dataset="cifar10", suite=suite, runs=tuple(finals(make, f"{suite}x", [0.5])))
        for suite in ("one", "two")
    ]
    found = claims(Study(sections=tuple(sections), left_out=()))
    assert {claim.suite for claim in found} == {"one", "two"}
    assert len([claim for claim in found if claim.id == "A9"]) == 2


def test_the_papers_values():
    assert reported("A1", "cifar10") == "-.72, -.72, -.84"
    assert reported("A18", "femnist") == "EMNIST: 9.4 / 4.6 = 2.0"
    assert reported("A14 (a)", "shakespeare") == "34.4, 32.6, 25.5"
    assert reported("A1", "digits") == reported("A4", "cifar10") == "not reported"


def test_every_value_of_the_paper_belongs_to_a_claim(make):
    studies = (study_of(make("has-fl")), study_of(make("uniform"), dataset="shakespeare"))
    ids = {claim.id for study in studies for claim in claims(study)}
    assert set(REPORTED) - ids == {"A11 (b)"}  # asked of data sets with more than ten classes


def test_a_sweep_on_disk_is_judged_under_the_labels_of_its_manifest(make, tmp_path):
    off = finals(make, "has-fl-off", [0.5, 0.4, 0.3], strategy="has-fl")
    on = finals(make, "has-fl", [0.6, 0.6, 0.6])
    rows = [
        {
            "label": run.label,
            "seed": run.seed,
            "directory": str(run.directory.relative_to(tmp_path)),
        }
        for run in (*on, *off)
    ]
    (tmp_path / "suite.json").write_text(json.dumps({"name": "a", "runs": rows}))
    found = {claim.id: claim for claim in claims(load_study([tmp_path]))}
    assert found["A6 (c)"].verdict == HOLDS
    assert dict(found["A6 (c)"].per_seed) == pytest.approx({42: 10, 43: 20, 44: 30})
    assert found["A6 (c)"].suite == "a"

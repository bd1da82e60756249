import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_runs import adaptation, write_run, write_suite

from fedhet_app.analysis.claims.routing import TRAINED_FEATURES
from fedhet_app.analysis.labels import distinguish, label_of, settings
from fedhet_app.analysis.paper_b_labels import by_row
from fedhet_app.analysis.study import load_study
from fedhet_app.config import DEFAULTS
from fedhet_app.errors import FedhetError


def config(**options):
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    return {**DEFAULTS, **keys}


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"strategy": "fjord"}, "fjord"),
        ({"strategy": "fedavg", "lr": 0.5, "norm": "none"}, "fedavg"),
        ({"strategy": "fedavg", "has_fl__gamma": 0.5}, "fedavg"),
        ({"strategy": "has-fl", "has_fl__gamma": 0.5}, "has-fl has-fl.gamma=0.5"),
        ({"strategy": "has-fl", "has_fl__coverage": False}, "has-fl-off"),
        ({"strategy": "random-budget", "random_budget__match": "/some/run"}, "random-budget"),
        (
            {"strategy": "random-budget", "random_budget__mode": "permute"},
            "random-budget-permute",
        ),
    ],
)
def test_a_run_is_called_after_its_method_and_what_is_special_of_it(options, label):
    assert label_of(config(**options)) == label


def test_a_suite_names_its_runs_whatever_they_are(tmp_path):
    suite = tmp_path / "results"
    write_suite(suite, "study", [("loose", 43), ("loose", 42), ("avg", 42)])
    write_run(suite / "loose" / "seed43", seed=43)
    write_run(suite / "loose" / "seed42", seed=42)
    write_run(suite / "avg" / "seed42", strategy="fedavg")
    write_run(tmp_path / "own", strategy="fjord")
    study = load_study([tmp_path])
    of_suite = next(section for section in study.sections if section.suite == "study")
    assert of_suite.dataset == "cifar10"
    assert [(run.label, run.seed) for run in of_suite.runs] == [
        ("loose", 42),
        ("loose", 43),
        ("avg", 42),
    ]
    (other,) = (section for section in study.sections if section.suite == "")
    assert other.labels == ("fjord",)
    assert study.left_out == ()


def test_runs_that_no_table_can_show_are_listed_with_the_reason(tmp_path):
    labels = ["good", "absent", "cut", "failed", "blind", "bare", "broken"]
    write_suite(tmp_path, "study", [(label, 42) for label in labels])
    write_run(tmp_path / "good" / "seed42")
    write_run(tmp_path / "cut" / "seed42", status="", num_server_rounds=9)
    write_run(tmp_path / "failed" / "seed42", status="failed")
    write_run(tmp_path / "blind" / "seed42", accuracies=())
    write_run(tmp_path / "bare" / "seed42")
    (tmp_path / "bare" / "seed42" / "summary.json").write_text('{"status": "completed"}')
    write_run(tmp_path / "broken" / "seed42")
    (tmp_path / "broken" / "seed42" / "rounds.jsonl").write_text("{no json}\n")
    study = load_study([tmp_path])
    assert [section.labels for section in study.sections] == [("good",)]
    reasons = {each.label: each.reason for each in study.left_out}
    assert set(reasons) == set(labels) - {"good"}
    assert reasons["absent"] == "not started"
    assert reasons["cut"] == "unfinished: 3 of 9 rounds; continue it with --resume"
    assert reasons["failed"] == "ended as 'failed'"
    assert reasons["blind"] == "rounds.jsonl has no evaluated round"
    assert reasons["bare"].startswith("summary.json lacks best-accuracy, final-accuracy")
    assert reasons["broken"].startswith("cannot be read: ")


def test_runs_of_two_settings_do_not_share_a_label_and_the_usual_one_keeps_it(tmp_path):
    write_run(tmp_path / "a", precision="bf16")
    for seed in (42, 43):
        write_run(tmp_path / f"b{seed}", seed=seed, evaluate_every=seed)
    (section,) = load_study([tmp_path]).sections
    assert {label: [run.seed for run in section.of(label)] for label in section.labels} == {
        "has-fl precision=bf16": [42],
        "has-fl": [42, 43],
    }


def test_a_copy_is_counted_once(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    study = load_study([tmp_path / "a", tmp_path, tmp_path / "a"])
    assert [run.directory.name for run in study.sections[0].runs] == ["a"]
    (twin,) = study.left_out
    assert twin.directory.name == "b"
    assert twin.reason == f"same settings and seed as {tmp_path / 'a'}"


settings_of_runs = st.lists(
    st.fixed_dictionaries(
        {
            "lr": st.sampled_from([0.1, 0.2]),
            "has-fl.gamma": st.sampled_from([0.25, 0.5]),
            "seed": st.integers(0, 3),
        }
    ),
    min_size=1,
    max_size=8,
)


@given(settings_of_runs)
def test_runs_share_a_label_exactly_where_they_share_their_settings(options):
    configs = [{**DEFAULTS, **own} for own in options]
    labels = distinguish(configs, ["has-fl"] * len(configs))
    for one, label in zip(configs, labels, strict=True):
        for other, its_label in zip(configs, labels, strict=True):
            assert (label == its_label) == (settings(one) == settings(other))


def test_runs_over_the_features_of_other_runs_are_one_method(tmp_path):
    """Each seed names a run of its own; the claims know the label."""
    for seed in (42, 43):
        features = {"fedgmm__features": f"/runs/fedspm/seed{seed}", "partition": "dual"}
        write_run(tmp_path / f"trained{seed}", strategy="fedgmm", seed=seed, **features)
    write_run(tmp_path / "drawn", strategy="fedgmm", seed=42, partition="dual")
    (section,) = load_study([tmp_path]).sections
    assert set(section.labels) == {"fedgmm", TRAINED_FEATURES}
    assert [run.seed for run in section.of(TRAINED_FEATURES)] == [42, 43]
    assert by_row(section) == {"fedgmm": "fedgmm"}


def test_data_sets_have_sections_of_their_own(tmp_path):
    for dataset in ("emnist", "cifar10"):
        write_run(tmp_path / dataset, dataset=dataset)
    assert [each.dataset for each in load_study([tmp_path]).sections] == ["cifar10", "emnist"]


def test_pairs_share_a_seed(tmp_path):
    for seed in (42, 43):
        write_run(tmp_path / f"has-fl{seed}", seed=seed)
    for seed in (43, 44):
        write_run(tmp_path / f"fjord{seed}", strategy="fjord", seed=seed)
    (section,) = load_study([tmp_path]).sections
    pairs = section.pairs("has-fl", "fjord")
    assert [(a.label, a.seed, b.label, b.seed) for a, b in pairs] == [("has-fl", 43, "fjord", 43)]


def test_methods_are_compared_on_the_seeds_they_share(tmp_path):
    seeds = {"has-fl": (42, 43, 44), "fjord": (42, 43), "uniform": (42,), "fedavg": (7,)}
    for strategy, own in seeds.items():
        for seed in own:
            write_run(tmp_path / f"{strategy}{seed}", strategy=strategy, seed=seed)
    (section,) = load_study([tmp_path]).sections
    shared = section.comparable([*seeds, "scaffold"])
    assert {label: [run.seed for run in runs] for label, runs in shared.items()} == {
        "has-fl": [42, 43],
        "fjord": [42, 43],
        "uniform": [42],
        "fedavg": [7],
    }
    assert [run.seed for run in section.comparable(["has-fl"])["has-fl"]] == [42, 43, 44]


def test_a_run_gives_its_numbers(tmp_path):
    rows = [
        *adaptation(10, capacity=[0.5, 1.0], allocated_width=[0.4, 0.9], divergence=[1.0, 3.0]),
        {"round": 11, "partition": 0, "divergence": 1.5, "trained": True},
        *adaptation(15, capacity=[0.5, 1.0], allocated_width=[0.3, 0.8], divergence=[2.0, 2.0])[:1],
    ]
    write_run(tmp_path / "run", losses=[2.0, None, 1.5], clients=rows, upload=50, tv=[0.1, 0.2])
    (run,) = load_study([tmp_path]).sections[0].runs
    assert (run.best, run.final, run.width, run.upload) == (80.0, 70.0, 0.5, 50.0)
    curve = run.curve("loss")
    assert curve[1] == 2.0
    assert np.isnan(curve[2])
    assert run.curve("accuracy") == {1: 0.5, 2: 0.8, 3: 0.7}
    divergence = run.adaptations("divergence")
    assert list(divergence) == [10]  # round 15 lacks a client, round 11 allots nothing
    np.testing.assert_array_equal(divergence[10], [1.0, 3.0])
    assert run.partition == {"total-variation": [0.1, 0.2]}
    assert (run.cost, run.full_cost) == ([], None)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("clients.jsonl", lambda run: run.clients),
        ("partition.json", lambda run: run.partition),
        ("cost.json", lambda run: run.cost),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, read):
    write_run(tmp_path / "run")
    (tmp_path / "run" / name).write_text("{no json}\n")
    (run,) = load_study([tmp_path]).sections[0].runs
    with pytest.raises(FedhetError, match=rf"{name}.*cannot be read"):
        read(run)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"name": "s"}',
        '{"runs": []}',
        json.dumps({"name": "s", "runs": [{"label": "a", "directory": "a"}]}),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, content):
    write_run(tmp_path / "run")
    (tmp_path / "suite.json").write_text(content)
    with pytest.raises(FedhetError, match=r"is damaged .*; run the sweep again, or remove"):
        load_study([tmp_path])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FedhetError, match=r"holds no config\.json"):
        load_study([tmp_path])
    with pytest.raises(FedhetError, match=r"nowhere.*holds no config\.json"):
        load_study([tmp_path / "nowhere"])


def test_a_study_without_a_finished_run_says_why(tmp_path):
    write_suite(tmp_path / "begun", "begun", [("has-fl", 42)])
    with pytest.raises(FedhetError, match=r"holds no finished run \(.*seed42: not started\)"):
        load_study([tmp_path])
    write_run(tmp_path / "run", status="")
    with pytest.raises(FedhetError, match=r"not started; .*run: unfinished: 3 of 120 rounds"):
        load_study([tmp_path])


def test_a_config_that_is_not_that_of_a_run_is_refused(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"config": {"strategy": "has-fl"}}')
    with pytest.raises(FedhetError, match=r"is not that of a run \('seed'\)"):
        load_study([tmp_path])

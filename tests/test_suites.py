import json
from pathlib import Path

import pytest

from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.strict_yaml import read_yaml
from fedhet_app.suites import load_suite

SUITE = """
name: comparison
base: {dataset: digits, num-server-rounds: 60, lr: 0.05}
seeds: [42, 43, 44]
runs:
  control: {strategy: random-budget, random-budget.match: "@has-fl"}
  has-fl: {strategy: has-fl, has-fl: {gamma: 0.5}}
  slow: {strategy: fedavg, lr: 1e-3, seeds: [43, 7]}
"""


@pytest.fixture
def written(tmp_path):
    """Write a suite and return its file; pairs of texts are replaced in it first."""

    def write(*changes, text=SUITE):
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        file = tmp_path / "suite.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_every_run_is_its_own_keys_over_the_base_with_its_seed(written, tmp_path):
    suite = load_suite(written(), tmp_path / "out")
    assert suite.name == "comparison"
    configs = {run.key: run.config for run in suite.runs}
    seeds = {"control": [42, 43, 44], "has-fl": [42, 43, 44], "slow": [43, 7]}
    assert set(configs) == {(label, seed) for label, own in seeds.items() for seed in own}
    for (label, seed), config in configs.items():
        assert config.seed == seed
        assert Path(config.results_dir) == tmp_path / "out" / label / f"seed{seed}"
        assert (config.dataset, config.num_server_rounds) == ("digits", 60)
        assert config.lr == (0.001 if label == "slow" else 0.05)
    assert configs["has-fl", 43].has_fl.gamma == 0.5


def test_the_first_seed_of_every_run_comes_before_the_second_of_any(written, tmp_path):
    order = [run.key for run in load_suite(written(), tmp_path).runs]
    assert order[:3] == [("control", 42), ("has-fl", 42), ("slow", 43)]
    assert order[3:6] == [("control", 43), ("has-fl", 43), ("slow", 7)]


def test_a_reference_is_the_directory_of_that_run_with_the_same_seed(written, tmp_path):
    suite = load_suite(written(), tmp_path / "out")
    for run in suite.runs:
        if run.label == "control":
            expected = tmp_path / "out" / "has-fl" / f"seed{run.seed}"
            assert run.config.random_budget.match == str(expected)
            assert run.needed == {("has-fl", run.seed)}
        else:
            assert run.needed == set()


def test_features_are_those_of_the_run_with_the_same_seed(written, tmp_path):
    text = """
name: x
seeds: [1, 2]
base: {partition: dual, num-clients: 4}
runs:
  over: {strategy: fedgmm, fedgmm.features: "@mixture"}
  mixture: {strategy: fedspm}
"""
    suite = load_suite(written(text=text), tmp_path / "out")
    for run in suite.select(["over"], [2]):
        if run.label == "over":
            assert run.config.fedgmm.features == str(tmp_path / "out" / "mixture" / "seed2")
            assert run.needed == {("mixture", 2)}
    assert [run.key for run in suite.select(["over"], [2])] == [("over", 2), ("mixture", 2)]


def test_paths_are_made_absolute(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    suite = load_suite(written(("dataset: digits", "dataset: cifar10, data-dir: data")))
    assert suite.results == tmp_path / "results" / "comparison"
    assert {run.config.data_dir for run in suite.runs} == {str(tmp_path / "data")}


def test_the_manifest_names_every_run_and_its_place_in_the_results(written, tmp_path):
    suite = load_suite(written(), tmp_path / "out")
    manifest = json.loads(json.dumps(suite.manifest()))
    assert manifest["name"] == "comparison"
    rows = {(row["label"], row["seed"]): row for row in manifest["runs"]}
    assert len(rows) == len(manifest["runs"]) == 8
    assert rows["slow", 7]["directory"] == "slow/seed7"
    assert rows["control", 43]["needs"] == ["has-fl"]
    for run in suite.runs:
        assert parse(rows[run.key]["config"]) == run.config


def test_merged_tables_are_no_repetition(written, tmp_path):
    text = """
name: x
seeds: [1]
runs:
  a: &a {strategy: has-fl, lr: 0.2}
  b: &b {<<: *a, lr: 0.3}
  c: {<<: *b, lr: 0.4, seeds: [2]}
"""
    configs = {run.key: run.config for run in load_suite(written(text=text), tmp_path).runs}
    assert {key: config.lr for key, config in configs.items()} == {
        ("a", 1): 0.2,
        ("b", 1): 0.3,
        ("c", 2): 0.4,
    }
    assert all(config.strategy == "has-fl" for config in configs.values())


MISTAKES = {
    "unknown key of the suite": (
        [("seeds: [42, 43, 44]", "seed: [42]")],
        r"seed = \[42\]: unknown; did you mean seeds\? known are extends, name, base, .*\(in .*",
    ),
    "far from any": (
        [("seeds: [42, 43, 44]", "qqq: 1")],
        "qqq = 1: unknown; known are extends, name, base, seeds, runs",
    ),
    "unknown option in base": (
        [("dataset: digits", "datset: digits")],
        "datset = 'digits': unknown key; did you mean .*dataset.*run control, seed 42, of",
    ),
    "unknown option in a run": (
        [("lr: 1e-3", "lrr: 1e-3")],
        r"lrr = 0.001: unknown key; did you mean .*lr.*\(in run slow, seed 43, of .*suite.yaml\)",
    ),
    "value out of range": (
        [("lr: 1e-3", "lr: -1")],
        r"lr = -1: must be above 0 \(in run slow, seed 43, of",
    ),
    "value of the wrong type": (
        [("lr: 1e-3", 'lr: "0.1"')],
        "lr = '0.1': must be a number, without quotes .*run slow",
    ),
    "list for a comma string": (
        [("lr: 1e-3", "capacity-tiers: [0.5, 1.0]")],
        r"capacity-tiers = \[0.5, 1.0\]: .*write a list as .*run slow",
    ),
    "no value": ([("lr: 1e-3", "lr:")], "lr = None: must be true, false, a number or .*run slow"),
    "option without effect": (
        [("lr: 1e-3", "fedprox.mu: 0.5")],
        "fedprox.mu = 0.5: has no effect with strategy = fedavg.*run slow",
    ),
    "unknown reference": (
        [('"@has-fl"', '"@hasfl"')],
        "random-budget.match = '@hasfl': unknown; did you mean has-fl.*run control of",
    ),
    "reference that lacks the seed": (
        [("has-fl: {gamma: 0.5}}", "seeds: [42, 44]}")],
        "random-budget.match = '@has-fl': run has-fl lacks seed 43; give it .*run control of",
    ),
    "circle": (
        [
            ('"@has-fl"', '"@slow"'),
            ("has-fl: {gamma: 0.5}}", 'data-dir: "@control"}'),
            ("lr: 1e-3, seeds: [43, 7]", 'data-dir: "@has-fl"'),
        ],
        "runs = '(control needs slow needs has-fl needs control|slow needs has-fl needs control "
        "needs slow|has-fl needs control needs slow needs has-fl)': need each other in a circle",
    ),
    "self": (
        [("has-fl: {gamma: 0.5}}", 'data-dir: "@has-fl"}')],
        "runs = 'has-fl needs has-fl': need each other in a circle; break it",
    ),
    "seed in base": ([("lr: 0.05", "seed: 1")], "seed = 1: a sweep sets it itself; use seeds"),
    "directory in a run": (
        [("lr: 1e-3", "results-dir: x")],
        "results-dir = 'x': a sweep sets it itself; use --results .*run slow",
    ),
    "no seeds": (
        [("seeds: [42, 43, 44]", "")],
        "seeds = None: must be a list of whole numbers.*run control",
    ),
    "one number for seeds": ([("[43, 7]", "43")], "seeds = 43: must be a list"),
    "empty seeds": ([("[43, 7]", "[]")], r"seeds = \[\]: must be a list"),
    "seed twice": ([("[43, 7]", "[43, 43]")], r"seeds = \[43, 43\]: must hold each seed once"),
    "seed that is no whole number": ([("[43, 7]", "[1.5]")], "seeds = 1.5: must be a whole number"),
    "negative seed": ([("[43, 7]", "[-1]")], r"seeds = -1: must be in \[0, "),
    "no name": ([("name: comparison", "")], "name = None: must be letters"),
    "name that leaves the folder": ([("comparison", "../up")], r"name = '../up': must be letters"),
    "run that leaves the folder": ([("  slow:", "  a/b:")], "run = 'a/b': must be letters"),
    "run that would be the manifest": (
        [("  slow:", "  suite.json:")],
        "run = 'suite.json': must be letters",
    ),
    "run that is no table": (
        [("{strategy: fedavg, lr: 1e-3, seeds: [43, 7]}", "fedavg")],
        "slow = 'fedavg': must be a table",
    ),
    "base that is no table": (
        [("{dataset: digits, num-server-rounds: 60, lr: 0.05}", "7")],
        "base = 7: ",
    ),
    "run twice": (
        [("  slow:", "  has-fl:")],
        "suite = '.*': is not valid YAML: has-fl stands twice",
    ),
    "key twice": ([("lr: 1e-3", "lr: 0.1, lr: 0.2")], "is not valid YAML: lr stands twice"),
    "key that is a number": ([("  slow:", "  10:")], "the key 10 is not read as text: quote it"),
    "reference without quotes": ([('"@has-fl"', "@has-fl")], "suite = '.*': is not valid YAML: "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_anywhere_is_one_line_that_says_where(mistake, written, tmp_path):
    changes, message = MISTAKES[mistake]
    file = written(*changes)
    with pytest.raises(FedhetError, match=message) as caught:
        load_suite(file, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a table with name, base, seeds and runs"),
        ("- a", "must be a table with name"),
        ("a: [", "is not valid YAML: "),
        ("name: x\nseeds: [1]\nruns: {}", "must hold at least one run"),
        ("name: x\nseeds: [1]", "runs = {}: must hold at least one run"),
    ],
)
def test_what_is_no_suite_is_refused(text, message, written):
    with pytest.raises(FedhetError, match=message):
        load_suite(written(text=text))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(FedhetError, match=r"none.yaml': cannot be read \(No such file"):
        load_suite(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(FedhetError, match=r"binary.yaml': is not valid YAML: 'utf-8' codec"):
        load_suite(tmp_path / "binary.yaml")


def test_numbers_in_scientific_notation_are_numbers(tmp_path):
    file = tmp_path / "numbers.yaml"
    file.write_text("a: 1e-4\nb: -2E+3\nc: .5e1\nd: 1.5e2\ne: e5\nf: 1e\ng: 0.25,1e-1\nh: 12\n")
    assert read_yaml(file) == {
        "a": 0.0001,
        "b": -2000.0,
        "c": 5.0,
        "d": 150.0,
        "e": "e5",
        "f": "1e",
        "g": "0.25,1e-1",
        "h": 12,
    }


@pytest.mark.parametrize(
    ("labels", "seeds", "expected"),
    [
        ([], [], {"control": {42, 43, 44}, "has-fl": {42, 43, 44}, "slow": {43, 7}}),
        (["slow"], [], {"slow": {43, 7}}),
        (["control"], [44], {"control": {44}, "has-fl": {44}}),
        (
            ["control", "slow"],
            [],
            {"control": {42, 43, 44}, "has-fl": {42, 43, 44}, "slow": {43, 7}},
        ),
        ([], [7], {"slow": {7}}),
        ([], [43, 7], {"control": {43}, "has-fl": {43}, "slow": {43, 7}}),
    ],
)
def test_a_selection_holds_what_its_runs_need(labels, seeds, expected, written, tmp_path):
    chosen = load_suite(written(), tmp_path).select(labels, seeds)
    found = {}
    for run in chosen:
        found.setdefault(run.label, set()).add(run.seed)
    assert found == expected
    assert len(chosen) == sum(map(len, expected.values()))


@pytest.mark.parametrize(
    ("labels", "seeds", "message"),
    [
        (
            ["hasfl"],
            [],
            "--only = 'hasfl': unknown; did you mean has-fl. known are control, has-fl",
        ),
        ([], [5], "--seed = 5: unknown; known are 42, 43, 7, 44"),
        (["slow"], [42, 44], "--seed = '42, 44': the runs named by --only, slow, do not have it"),
    ],
)
def test_a_selection_of_nothing_is_refused(labels, seeds, message, written, tmp_path):
    suite = load_suite(written(), tmp_path)
    with pytest.raises(FedhetError, match=message):
        suite.select(labels, seeds)


CHILD = """
extends: suite.yaml
name: smaller
base: {lr: 0.2, has-fl.warmup: 4, has-fl.adapt-every: 2}
seeds: [5]
runs:
  slow: null
  has-fl: {strategy: has-fl}
  control: {strategy: uniform}
"""


def child(written, *changes):
    file = written().with_name("child.yaml")
    text = CHILD
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    file.write_text(text)
    return file


def test_a_suite_lies_over_the_one_it_extends(written, tmp_path):
    suite = load_suite(child(written), tmp_path)
    assert suite.name == "smaller"
    configs = {run.key: run.config for run in suite.runs}
    assert set(configs) == {("has-fl", 5), ("control", 5)}
    assert {(c.lr, c.num_server_rounds) for c in configs.values()} == {(0.2, 60)}
    assert configs["has-fl", 5].has_fl.gamma == 0.25  # a run's row is replaced as a whole


def test_options_of_a_method_in_the_base_are_for_its_runs_alone(written, tmp_path):
    configs = {run.label: run.config for run in load_suite(child(written), tmp_path).runs}
    assert configs["has-fl"].has_fl.warmup == 4
    assert configs["control"].has_fl.warmup == 10
    unused = ("{lr: 0.2,", "{fedprox.mu: 0.1, lr: 0.2,")
    with pytest.raises(FedhetError, match="no run has a strategy with fedprox options; leave"):
        load_suite(child(written, unused), tmp_path)
    misspelt = ("has-fl.warmup", "has-fl.warm-up")
    with pytest.raises(FedhetError, match=r"unknown key; did you mean has-fl.warmup"):
        load_suite(child(written, misspelt), tmp_path)


def test_a_suite_must_not_extend_itself(written, tmp_path):
    for parent in ("child.yaml", "[1]"):
        file = child(written, ("extends: suite.yaml", f"extends: {parent}"))
        with pytest.raises(FedhetError, match="must be the path of another suite") as caught:
            load_suite(file, tmp_path)
        assert caught.value.key == "extends"
    with pytest.raises(FedhetError, match="give the path of a suite"):
        load_suite(child(written, ("extends: suite.yaml", "extends: none.yaml")), tmp_path)

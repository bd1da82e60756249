"""The files of `configs`: every one is read, and a preset is what the suite of its name runs."""

from pathlib import Path

import pytest

from fedhet_app.config import parse
from fedhet_app.config_files import load_toml
from fedhet_app.suites import load_suite

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
PRESETS = sorted(CONFIGS.glob("*/*.toml"))
OF_PAPER_B = {
    "fashion-mnist-dual": "paper-b-fashion-mnist",
    "cifar10-dual": "paper-b-cifar10",
    "cifar100-20-dual": "paper-b-cifar100",
    "fed-isic2019": "paper-b-isic",
}
METHODS = {"fedavg", "fedprox", "fedavg-ft", "ditto", "ifca", "fedbabu", "fedem", "fedgmm"}
METHODS |= {"feddrm", "fedspm", "fedspm-cx"}
PAIRS = [
    *((folder, f"{suite}-cpu", "") for folder, suite in OF_PAPER_B.items()),
    *((folder, suite, "-paper") for folder, suite in OF_PAPER_B.items()),
    *((name, f"paper-a-{name}", "-paper") for name in ("cifar10", "emnist", "shakespeare")),
]
FREE = {"seed", "results-dir", "evaluate-every", "random-budget.match"}
"""What a preset may choose for itself: it does not change what is trained."""


def name_of(path):
    return path.relative_to(CONFIGS).as_posix()


@pytest.mark.parametrize("preset", PRESETS, ids=name_of)
def test_a_preset_is_a_configuration_of_its_method_and_says_what_it_yields(preset):
    config = parse(load_toml(preset))
    assert config.strategy == preset.stem.removesuffix("-paper").removesuffix("-cx")
    heading, *_ = preset.read_text().splitlines()
    assert heading.startswith("# ")
    assert f"fedhet run configs/{name_of(preset)}" in preset.read_text()


@pytest.mark.parametrize("suite", sorted(CONFIGS.glob("suites/*.yaml")), ids=name_of)
def test_every_run_of_a_suite_is_checked(suite):
    assert load_suite(suite).name == suite.stem


@pytest.mark.parametrize(("folder", "suite", "suffix"), PAIRS)
def test_a_preset_is_the_run_of_its_name_in_the_suite(folder, suite, suffix):
    runs = {run.label: run.config for run in load_suite(CONFIGS / "suites" / f"{suite}.yaml").runs}
    presets = {
        path.stem.removesuffix("-paper"): parse(load_toml(path))
        for path in PRESETS
        if path.parent.name == folder and path.stem.endswith("-paper") == bool(suffix)
    }
    assert set(presets) <= set(runs)
    for method, preset in presets.items():
        own, theirs = preset.flat(), runs[method].flat()
        assert {key: own[key] for key in own.keys() - FREE} == (
            {key: theirs[key] for key in theirs.keys() - FREE}
        ), method


@pytest.mark.parametrize("folder", OF_PAPER_B)
def test_paper_b_has_a_preset_of_each_method_at_both_sizes(folder):
    names = {path.stem for path in (CONFIGS / folder).glob("*.toml")}
    assert names == METHODS | {f"{method}-paper" for method in METHODS}

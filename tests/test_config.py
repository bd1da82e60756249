import math
import tomllib
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.config import DEFAULTS, STRATEGY_NAMES, parse
from fedhet_app.config_checks import ROUTING_METHODS, VOTING_METHODS
from fedhet_app.config_files import load_toml, parse_pairs
from fedhet_app.errors import FedhetError
from fedhet_app.method_options import CadenceOptions

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


PLAIN = {
    "scaffold": {"momentum": 0.0, "weight-decay": 0.0},
    **{name: {"partition": "dual"} for name in (*ROUTING_METHODS, *VOTING_METHODS)},
}
SCAFFOLD = {"strategy": "scaffold", **PLAIN["scaffold"]}
"""What a strategy refuses to do without."""
SPM, GMM = ({"strategy": name, **PLAIN[name]} for name in ("fedspm", "fedgmm"))


def typed(flat):
    return {key: (type(value), value) for key, value in flat.items()}


def test_pyproject_repeats_keys_types_and_defaults():
    app = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]
    tables = {key: value for key, value in app["config"].items() if isinstance(value, dict)}
    declared = {key: value for key, value in app["config"].items() if key not in tables}
    for table, options in tables.items():
        declared |= {f"{table}.{key}": value for key, value in options.items()}
    assert typed(declared) == typed(DEFAULTS)


def test_nothing_set_is_the_defaults():
    config = parse({})
    assert (config.strategy, config.dataset, config.num_clients) == ("has-fl", "digits", 20)
    assert config.tiers == (0.25, 0.5, 0.75, 1.0)
    assert config.probs == (0.25, 0.4, 0.2, 0.15)
    assert config.has_fl.p_min == 0.4
    assert config.random_budget.adapt_every == 5


def test_keys_reach_their_fields():
    config = parse({"strategy": "fedprox", "fedprox.mu": 0, "lr": 1, "num-clients": 7})
    assert config.fedprox.mu == 0.0
    assert isinstance(config.fedprox.mu, float)
    assert isinstance(config.lr, float)
    assert config.num_clients == 7


def test_config_is_frozen():
    with pytest.raises(FrozenInstanceError):
        parse({}).lr = 1.0


BAD = [
    # names and forms
    ({"strategy": "fedsgd"}, "strategy", "one of .*fedavg, .*, has-fl"),
    ({"model": "resnet"}, "model", "package.module:function"),
    ({"model": "my.nets:"}, "model", "package.module:function"),
    ({"model": "my nets:build"}, "model", "package.module:function"),
    ({"dataset": " "}, "dataset", "must name a data set"),
    ({"norm": "ln"}, "norm", "one of gn, bn, sbn, none"),
    ({"device": "cuda:0"}, "device", "one of auto, cpu, cuda"),
    ({"num-rounds": 5}, "num-rounds", "unknown key; did you mean num-server-rounds"),
    ({"local_epochs": 5}, "local_epochs", "did you mean local-epochs"),
    ({"gamma": 0.5}, "gamma", "did you mean has-fl.gamma"),
    ({"zzz": 5}, "zzz", "did you mean strategy, .*, has-fl.coverage"),
    # types
    ({"lr": "0.1"}, "lr", "must be a number, without quotes"),
    ({"lr": True}, "lr", "must be a number"),
    ({"lr": math.nan}, "lr", "must be a finite number"),
    ({"lr": math.inf}, "lr", "must be a finite number"),
    ({"alpha": math.nan}, "alpha", "must be a finite number"),
    ({"alpha": math.inf}, "alpha", "must be a finite number; use partition = 'iid'"),
    ({"alpha": -math.inf}, "alpha", "must be a finite number"),
    ({"lr": 10**400}, "lr", "must be a finite number"),
    ({"batch-size": 32.0}, "batch-size", "must be a whole number"),
    ({"batch-size": True}, "batch-size", "must be a whole number"),
    ({"batch-size": "32"}, "batch-size", "must be a whole number, without quotes"),
    ({"balance-mask": 1}, "balance-mask", "must be true or false"),
    ({"has-fl.coverage": "true"}, "has-fl.coverage", "must be true or false, without quotes"),
    ({"dataset": 5}, "dataset", "must be text, in quotes"),
    ({"strategy": 5}, "strategy", "one of .*fedavg"),
    # ranges
    ({"alpha": 0.0}, "alpha", "must be above 0"),
    ({"alpha": -0.3}, "alpha", "must be above 0"),
    ({"max-train-examples": -1}, "max-train-examples", "must be at least 0"),
    ({"num-clients": 0}, "num-clients", "must be at least 1"),
    ({"num-server-rounds": 0}, "num-server-rounds", "must be at least 1"),
    ({"seed": -1}, "seed", r"must be in \[0, 2147483647\]"),
    ({"seed": 2**31}, "seed", r"must be in \[0, 2147483647\]"),
    ({"fraction-train": 0.0}, "fraction-train", r"must be in \(0, 1\]"),
    ({"fraction-train": 1.1}, "fraction-train", r"must be in \(0, 1\]"),
    ({"batch-size": 0}, "batch-size", "must be at least 1"),
    ({"local-epochs": 0}, "local-epochs", "must be at least 1"),
    ({"local-steps": -1}, "local-steps", "must be at least 0"),
    ({"lr": 0}, "lr", "must be above 0"),
    ({"lr": -0.1}, "lr", "must be above 0"),
    ({"lr-decay": 0.0}, "lr-decay", r"must be in \(0, 1\]"),
    ({"lr-decay": 1.01}, "lr-decay", r"must be in \(0, 1\]"),
    ({"momentum": 1.0}, "momentum", r"must be in \[0, 1\)"),
    ({"momentum": -0.1}, "momentum", r"must be in \[0, 1\)"),
    ({"weight-decay": -1e-4}, "weight-decay", "must be at least 0"),
    ({"clip-norm": -1.0}, "clip-norm", "must be at least 0"),
    ({"evaluate-every": -1}, "evaluate-every", "must be at least 0"),
    ({"checkpoint-every": -1}, "checkpoint-every", "must be at least 0"),
    ({"round-timeout": 0.0}, "round-timeout", "must be above 0"),
    ({"node-timeout": 0.0}, "node-timeout", "must be above 0"),
    ({"min-replies": 0}, "min-replies", "must be at least 1"),
    ({"max-empty-rounds": 0}, "max-empty-rounds", "must be at least 1"),
    ({"client-cpus": 0}, "client-cpus", "must be at least 1"),
    ({"client-gpus": -0.5}, "client-gpus", "must be at least 0"),
    ({"fedprox.mu": -1.0}, "fedprox.mu", "must be at least 0"),
    ({"fedrolex.advance": -1}, "fedrolex.advance", "must be at least 0"),
    ({"fjord.draw": "step"}, "fjord.draw", "one of round, batch"),
    ({"heterofl.weighting": "labels"}, "heterofl.weighting", "one of clients, examples"),
    ({"scaffold.server-lr": 0.0}, "scaffold.server-lr", "must be above 0"),
    (
        {**SCAFFOLD, "scaffold.allow-momentum": True},
        "scaffold.allow-momentum",
        "has no effect with momentum = 0",
    ),
    (
        {**SCAFFOLD, "scaffold.momentum-correction": True},
        "scaffold.momentum-correction",
        "has no effect with momentum = 0",
    ),
    (
        {
            **SCAFFOLD,
            "momentum": 0.9,
            "scaffold.momentum-correction": True,
            "scaffold.allow-momentum": True,
        },
        "scaffold.allow-momentum",
        "has no effect with scaffold.momentum-correction",
    ),
    ({"scaffold.weighting": "size"}, "scaffold.weighting", "one of clients, examples"),
    ({"uniform.width": 0.0}, "uniform.width", r"must be in \(0, 1\]"),
    ({"random-budget.budget": 1.5}, "random-budget.budget", r"must be in \(0, 1\]"),
    ({"random-budget.adapt-every": 0}, "random-budget.adapt-every", "must be at least 1"),
    ({"random-budget.warmup": -1}, "random-budget.warmup", "must be at least 0"),
    ({"has-fl.p-min": 0.0}, "has-fl.p-min", r"must be in \(0, 1\]"),
    ({"has-fl.p-min": 1.2}, "has-fl.p-min", r"must be in \(0, 1\]"),
    ({"has-fl.gamma": -0.1}, "has-fl.gamma", "must be at least 0"),
    ({"has-fl.beta": 1.0}, "has-fl.beta", r"must be in \[0, 1\)"),
    ({"has-fl.beta": -0.1}, "has-fl.beta", r"must be in \[0, 1\)"),
    ({"has-fl.warmup": -1}, "has-fl.warmup", "must be at least 0"),
    ({"has-fl.adapt-every": 0}, "has-fl.adapt-every", "must be at least 1"),
    ({"has-fl.normalise-every": 0}, "has-fl.normalise-every", "must be at least 1"),
    # lists
    ({"capacity-tiers": "0.5;1"}, "capacity-tiers", "numbers separated by commas"),
    ({"capacity-tiers": ""}, "capacity-tiers", "numbers separated by commas"),
    ({"capacity-tiers": "1,0.75,0.5,0.25"}, "capacity-tiers", r"must ascend within \(0, 1\]"),
    ({"capacity-tiers": "0.25,0.5,0.5,1"}, "capacity-tiers", "must ascend"),
    ({"capacity-tiers": "0,0.5,0.75,1"}, "capacity-tiers", "must ascend"),
    ({"capacity-tiers": "0.25,0.5,1,1.5"}, "capacity-tiers", "must ascend"),
    ({"capacity-tiers": "0.25,nan,0.75,1"}, "capacity-tiers", "must ascend"),
    ({"capacity-probs": "0.5,0.5"}, "capacity-probs", "one probability for each of the 4"),
    ({"capacity-probs": "0.5,0.5,0.5,-0.5"}, "capacity-probs", "at least 0 each and sum to 1"),
    ({"capacity-probs": "0.5,0.5,0.5,0.5"}, "capacity-probs", "at least 0 each and sum to 1"),
    ({"capacity-probs": "nan,0,0,1"}, "capacity-probs", "at least 0 each and sum to 1"),
    # combinations
    ({"fraction-train": 0.02}, "fraction-train", "no client out of num-clients = 20; use 0.05"),
    ({"min-replies": 11}, "min-replies", "a round has 10 clients"),
    ({**SPM, "fedspm.components": 1, "fedspm.init-w": "kmeans"}, "fedspm.init-w", "components = 1"),
    ({**GMM, "routing.steps": 9}, "routing.steps", "no effect with strategy = fedgmm"),
    ({**GMM, "routing.lr": 0.5}, "routing.lr", "no effect with strategy = fedgmm"),
    ({**GMM, "routing.momentum": 0.5}, "routing.momentum", "no effect with strategy = fedgmm"),
    ({"lr-schedule": "cosine", "lr-decay": 0.9}, "lr-decay", "no effect with .* cosine"),
    ({"lr-schedule": "constant", "lr-decay": 0.9}, "lr-decay", "no effect with .* constant"),
    ({"local-steps": 5, "local-epochs": 7}, "local-epochs", "no effect with local-steps = 5"),
    ({"partition": "iid", "alpha": 0.5}, "alpha", "no effect with partition = iid; leave one"),
    ({"partition": "iid", "balance-mask": True}, "balance-mask", "no effect with partition = iid"),
    *(
        ({key: "x"}, key, "no effect with dataset = digits; leave one of them out")
        for key in ("data-dir", "image-column", "label-column", "test-split")
    ),
    ({"strategy": "fedavg", "has-fl.gamma": 0.9}, "has-fl.gamma", "no effect with strategy = fed"),
    ({"uniform.width": 0.4}, "uniform.width", "no effect with strategy = has-fl"),
    (
        {"strategy": "fjord", "fjord.distillation": True},
        "fjord.distillation",
        "needs fjord.draw = 'batch'",
    ),
    (
        {"strategy": "fedrolex", "heterofl.scaler": True},
        "heterofl.scaler",
        "no effect with strategy = fedrolex",
    ),
    ({"strategy": "scaffold", "momentum": 0.0}, "weight-decay", "set weight-decay = 0"),
    (
        {"strategy": "scaffold", "weight-decay": 0.0},
        "momentum",
        r"the run diverges; set momentum = 0, .*momentum-correction .*allow-momentum = true",
    ),
    (
        {
            "strategy": "scaffold",
            "momentum": 0.0,
            "weight-decay": 1e-4,
            "scaffold.allow-momentum": True,
        },
        "weight-decay",
        "set weight-decay = 0",
    ),
    ({"has-fl.normalise-every": 12}, "has-fl.normalise-every", "multiple of .*adapt-every = 5"),
    (
        {
            "strategy": "random-budget",
            "random-budget.match": "/runs/a",
            "random-budget.budget": 0.4,
        },
        "random-budget.match",
        "random-budget.budget is set as well",
    ),
    (
        {
            "strategy": "fedspm",
            "partition": "dual",
            "fedspm.bridge-every": 2,
            "fraction-train": 0.5,
        },
        "fedspm.bridge-every",
        "set fraction-train = 1.0",
    ),
]


@pytest.mark.parametrize(("run_config", "key", "remedy"), BAD)
def test_a_bad_value_is_refused_by_name(run_config, key, remedy):
    with pytest.raises(FedhetError, match=remedy) as caught:
        parse(run_config)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
    if key in run_config:
        assert caught.value.value == run_config[key] or run_config[key] != run_config[key]


@pytest.mark.parametrize(
    "run_config",
    [
        {"model": "nets:build"},
        {"model": "my.nets.small:build_2"},
        {"fraction-train": 0.025},
        {"min-replies": 10},
        {"lr-schedule": "cosine", "lr-decay": 0.995},
        {"capacity-tiers": " 0.5, 1", "capacity-probs": "0.3333333, 0.6666667"},
        {"strategy": "random-budget", "random-budget.match": "/runs/a"},
        {"local-steps": 5, "local-epochs": 3},
        {"partition": "iid", "alpha": 0.3, "balance-mask": False},
        {"strategy": "fedavg", "has-fl.gamma": 0.25, "fedprox.mu": 1.0},
        {"dataset": "cifar10", "data-dir": "/data", "image-column": "img", "test-split": "valid"},
        {"strategy": "fjord", "fjord.draw": "batch", "fjord.distillation": True},
        {"strategy": "heterofl", "heterofl.masked-classifier": True, "norm": "sbn"},
        *(
            {"strategy": "scaffold", "weight-decay": 0.0, "momentum": 0.9, option: True}
            for option in ("scaffold.momentum-correction", "scaffold.allow-momentum")
        ),
        {"seed": 0},
        {"seed": 2**31 - 1},
        *({"strategy": name, **PLAIN.get(name, {})} for name in STRATEGY_NAMES),
    ],
)
def test_edges_that_are_allowed(run_config):
    flat = parse(run_config).flat()
    assert {key: flat[key] for key in run_config} == run_config


@pytest.mark.parametrize(
    ("fraction", "clients", "cohort"), [(0.5, 20, 10), (0.5, 5, 3), (0.5, 1, 1), (1.0, 7, 7)]
)
def test_cohort_size_rounds_halves_up(fraction, clients, cohort):
    assert parse({"fraction-train": fraction, "num-clients": clients}).cohort_size == cohort


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"lr-schedule": "constant"}, [0.8, 0.8, 0.8, 0.8]),
        ({"lr-schedule": "exponential", "lr-decay": 0.5}, [0.8, 0.4, 0.2, 0.1]),
        ({"lr-schedule": "cosine"}, [0.8, 0.4 + 0.2 * 2**0.5, 0.4, 0.4 - 0.2 * 2**0.5]),
    ],
)
def test_learning_rate_by_round(schedule, expected):
    config = parse({"lr": 0.8, "num-server-rounds": 4, **schedule})
    assert [config.lr_at(t) for t in (1, 2, 3, 4)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("run_config", "too_short"),
    [
        ({"num-server-rounds": 15}, False),
        ({"num-server-rounds": 14}, True),
        ({"num-server-rounds": 5, "has-fl.warmup": 0}, False),
        ({"num-server-rounds": 4, "has-fl.warmup": 0}, True),
        ({"num-server-rounds": 14, "strategy": "random-budget"}, True),
        ({"num-server-rounds": 14, "strategy": "heterofl"}, False),
        (
            {
                "num-server-rounds": 14,
                "strategy": "random-budget",
                "random-budget.mode": "permute",
                "random-budget.match": "/run",
            },
            False,
        ),
    ],
)
def test_a_run_too_short_to_adapt_is_known(run_config, too_short):
    assert parse(run_config).too_short_to_adapt is too_short


def test_the_first_adaptation_follows_the_warm_up():
    for warmup in range(12):
        for every in range(1, 7):
            rounds = (t for t in range(1, 100) if t > warmup and t % every == 0)
            cadence = CadenceOptions(warmup=warmup, adapt_every=every)
            assert cadence.first_adaptation == next(rounds)


def test_another_number_of_nodes_is_checked_again():
    config = parse({"strategy": "fedprox", "min-replies": 3, "fedprox.mu": 0.25})
    fewer = config.with_nodes(6)
    assert (fewer.num_clients, fewer.cohort_size, fewer.fedprox.mu) == (6, 3, 0.25)
    assert config.num_clients == 20
    with pytest.raises(FedhetError, match="a round has 2 clients"):
        config.with_nodes(4)
    with pytest.raises(FedhetError, match="num-clients = 0: must be at least 1"):
        config.with_nodes(0)


def floats(low, high):
    return st.floats(low, high, exclude_min=True, exclude_max=True)


VALID = {
    "data-dir": st.text(),
    "precision": st.sampled_from(["fp32", "bf16"]),
    "balance-mask": st.booleans(),
    "alpha": floats(0, 1e6),
    "num-clients": st.integers(1, 1000),
    "fraction-train": st.floats(0.5, 1),
    "seed": st.integers(0, 2**31 - 1),
    "lr": st.one_of(floats(0, 10), st.integers(1, 10)),
    "momentum": st.floats(0, 1, exclude_max=True),
    "lr-decay": st.floats(0, 1, exclude_min=True),
}
VALID_FOR = {
    "ditto": {"ditto.lam": st.floats(0, 10), "ditto.budget": st.sampled_from(["shared", "added"])},
    "fedavg-ft": {"fedavg-ft.epochs": st.integers(1, 9), "fedavg-ft.lr": floats(0, 1)},
    "fedbabu": {
        "fedbabu.finetune": st.sampled_from(["head", "full"]),
        "fedbabu.lr": floats(0, 1),
    },
    "feddrm": {"routing.steps": st.integers(1, 99), "routing.prior": st.booleans()},
    "fedspm": {
        "fedspm.components": st.integers(2, 9),
        "fedspm.bridge-every": st.integers(0, 9),
        "routing.momentum": st.floats(0, 1, exclude_max=True),
        "routing.lr": floats(0, 1),
        "dual.amplitude": st.floats(0, 1),
    },
    "fedprox": {"fedprox.mu": st.floats(0, 10)},
    "ifca": {"ifca.clusters": st.integers(1, 9), "num-clients": st.integers(9, 1000)},
    "fedrolex": {"fedrolex.advance": st.integers(0, 100)},
    "fjord": {"fjord.draw": st.sampled_from(["round", "batch"])},
    "heterofl": {
        "heterofl.masked-classifier": st.booleans(),
        "heterofl.scaler": st.booleans(),
        "heterofl.weighting": st.sampled_from(["clients", "examples"]),
    },
    "random-budget": {
        "random-budget.coverage": st.booleans(),
        "random-budget.budget": floats(0, 1),
    },
    "has-fl": {
        "has-fl.gamma": st.floats(0, 10),
        "has-fl.adapt-every": st.sampled_from([1, 2, 4, 5, 10, 20]),
    },
}
OF_OTHER_PARTITIONS = ("alpha", "balance-mask", "max-train-examples")
NO_DIGITS = st.text(min_size=1).filter(lambda name: name.strip() and name != "digits")


@st.composite
def run_configs(draw):
    strategy = draw(st.sampled_from(STRATEGY_NAMES))
    fixed = {key: st.just(value) for key, value in PLAIN.get(strategy, {}).items()}
    if strategy == "fedspm":  # its bridge errors take every client
        fixed["fraction-train"] = st.just(1.0)
    named = {"strategy": st.just(strategy), "dataset": NO_DIGITS, **fixed}
    free = VALID | VALID_FOR.get(strategy, {})
    if "partition" in fixed:
        free = {key: free[key] for key in free if key not in OF_OTHER_PARTITIONS}
    optional = {key: values for key, values in free.items() if key not in named}
    return draw(st.fixed_dictionaries(named, optional=optional))


@given(run_configs())
def test_flat_and_parse_are_inverse(run_config):
    config = parse(run_config)
    again = parse(config.flat())
    assert again == config
    assert typed(again.flat()) == typed(config.flat())
    assert set(config.flat()) == set(DEFAULTS)
    assert all(config.flat()[key] == value for key, value in run_config.items())


def test_pairs_are_read_as_toml_and_bare_text():
    text = """lr=0.1 strategy=fedavg  has-fl.coverage=false seed=7 weight-decay=1e-3
    data-dir='/tmp/my data' model="my.nets:build" capacity-tiers=0.5,1.0 capacity-probs='1'
    results-dir=out#3 test-split=2024-01-02"""
    assert typed(parse_pairs(text)) == typed(
        {
            "lr": 0.1,
            "strategy": "fedavg",
            "has-fl.coverage": False,
            "seed": 7,
            "weight-decay": 1e-3,
            "data-dir": "/tmp/my data",
            "model": "my.nets:build",
            "capacity-tiers": "0.5,1.0",
            "capacity-probs": "1",
            "results-dir": "out#3",
            "test-split": "2024-01-02",
        }
    )


@pytest.mark.parametrize("text", ["0.5", "1", "1e3", "true", "nan", "2024-01-02", "[1]", "0.5#1"])
def test_text_needs_no_quotes_whatever_else_it_reads_as(text):
    expected = {"capacity-tiers": text, "random-budget.match": text, "strategy": text}
    assert typed(parse_pairs(" ".join(f"{key}={text}" for key in expected))) == typed(expected)


def test_one_tier_needs_no_quotes():
    config = parse(parse_pairs("capacity-tiers=0.5 capacity-probs=1"))
    assert (config.tiers, config.capacity_probs) == ((0.5,), "1")


def test_a_number_in_quotes_stays_text():
    with pytest.raises(FedhetError, match="must be a number, without quotes"):
        parse(parse_pairs("lr='0.1'"))


def test_pairs_may_be_none():
    assert parse_pairs("  ") == {}


def test_a_key_is_given_once():
    with pytest.raises(FedhetError, match=r"lr=0\.2'.*lr is given twice"):
        parse_pairs("lr=0.1 lr=0.2")


def test_backslashes_in_quotes_stay():
    assert parse_pairs('data-dir="C:\\data"') == {"data-dir": "C:\\data"}


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("lr", "lr"),
        ("lr=", "lr="),
        ("=0.1", "=0.1"),
        ("lr=0.1 lr = 0.2", "lr = 0.2"),
        ("data-dir='/a b", "data-dir='/a b"),
        ("data-dir='/a'b", "data-dir='/a'b"),
        ("data-dir=/my data", "data"),
    ],
)
def test_what_is_no_pair_is_refused(text, rest):
    with pytest.raises(FedhetError, match="key=value pairs separated by spaces") as caught:
        parse_pairs(text)
    assert caught.value.key == "--set"
    assert caught.value.value == rest


def test_a_preset_is_flattened(tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text(
        'strategy = "fedprox"\nlr = 0.1\nfedprox.mu = 0.5\n'
        "[has-fl]\np-min = 0.3\ncoverage = false\n"
    )
    assert load_toml(preset) == {
        "strategy": "fedprox",
        "lr": 0.1,
        "fedprox.mu": 0.5,
        "has-fl.p-min": 0.3,
        "has-fl.coverage": False,
    }


@pytest.mark.parametrize(
    ("content", "key", "remedy"),
    [
        (b"lr = ", "preset", "not valid TOML: "),
        (b"\xff\xfe", "preset", "not valid TOML: "),
        (b"capacity-tiers = [0.5, 1.0]", "capacity-tiers", "write a list as '0.5,1.0'"),
        (b"[has-fl]\ngamma = 1979-05-27", "has-fl.gamma", "must be true, false, a number or text"),
    ],
)
def test_a_bad_preset_is_refused(tmp_path, content, key, remedy):
    preset = tmp_path / "preset.toml"
    preset.write_bytes(content)
    with pytest.raises(FedhetError, match=remedy) as caught:
        load_toml(preset)
    assert caught.value.key == key


def test_a_missing_preset_is_refused(tmp_path):
    with pytest.raises(FedhetError, match=r"No such file.*give the path of a preset"):
        load_toml(tmp_path / "none.toml")
    with pytest.raises(FedhetError, match="Is a directory"):
        load_toml(tmp_path)

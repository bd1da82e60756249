"""A node's capacity: told, or the widest tier whose measured step fits."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from running import TINY, run, tiny

from fedhet_app import capacity
from fedhet_app.capacity import capacity_of, widest_that_fits
from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.models import ModelSpec
from fedhet_app.task import Task
from fedhet_app.task_data import Division, blocks
from fedhet_app.trial_step import costs, random_dataset
from fedhet_app.wire import TierCost

TIERS = tuple(
    TierCost(width=w, ms=ms, memory_mb=mb)
    for w, ms, mb in ((0.25, 10, 300), (0.5, 20, 310), (1.0, 80, 400))
)
AMPLE = {"memory-mb": 1e6, "step-ms": 1e6}


@pytest.mark.parametrize(
    ("budgets", "width"),
    [
        (AMPLE, 1.0),
        ({"step-ms": 80.0}, 1.0),
        ({"step-ms": 79.9}, 0.5),
        ({"memory-mb": 309.0}, 0.25),
        ({"memory-mb": 309.0, "step-ms": 79.0}, 0.25),
        ({"memory-mb": 400.0, "step-ms": 20.0}, 0.5),
    ],
)
def test_the_widest_tier_within_both_budgets_is_taken(budgets, width):
    assert widest_that_fits(TIERS, budgets) == width


@pytest.mark.parametrize(
    ("budgets", "key"),
    [({"step-ms": 9.0}, "step-ms"), ({"memory-mb": 299.0, "step-ms": 9.0}, "memory-mb")],
)
def test_a_node_that_not_even_the_narrowest_tier_fits_is_refused(budgets, key):
    remedy = "the narrowest tier, 0.25, takes 300 MiB and 10 ms a step; raise the budget"
    with pytest.raises(FedhetError, match=remedy) as caught:
        widest_that_fits(TIERS, budgets)
    assert (caught.value.key, caught.value.value) == (key, budgets[key])


@pytest.mark.parametrize(
    ("node", "key", "remedy"),
    [
        ({"capacity": "auto"}, "capacity", "set memory-mb or step-ms in the node config"),
        ({"capacity": "all"}, "capacity", "a number above 0 and at most 1, or 'auto'"),
        ({"capacity": "auto", "step-ms": 0}, "step-ms", "must be a number above 0"),
        ({"capacity": "auto", "step-ms": "9"}, "step-ms", "must be a number above 0"),
        ({"capacity": "auto", "memory-mb": True}, "memory-mb", "must be a number above 0"),
        ({"capacity": "auto", "memory-mb": float("nan")}, "memory-mb", "must be a number above 0"),
        ({"capacity": 0.5, "memory-mb": 9}, "memory-mb", "no effect without capacity = 'auto'"),
        ({"step-ms": 9}, "step-ms", "no effect without capacity = 'auto'"),
    ],
)
def test_a_node_config_that_makes_no_sense_is_refused(node, key, remedy, tmp_path):
    with pytest.raises(FedhetError, match=remedy) as caught:
        capacity_of(Task(tiny(tmp_path)), node, None)
    assert caught.value.key == key


def test_a_number_is_taken_as_it_is(tmp_path):
    task = Task(tiny(tmp_path))
    assert capacity_of(task, {}, None) == (0.0, ())
    assert capacity_of(task, {"capacity": 1}, None) == (1.0, ())


@pytest.mark.slow
def test_a_step_costs_more_memory_and_time_the_wider_it_is():
    """Of a network so wide that a quarter of it has a sixteenth of the parameters: 3 to 54 MB."""
    config = parse(
        {
            **TINY,
            "model": "user_models:build_wide",
            "capacity-tiers": "0.25,1.0",
            "capacity-probs": "0.5,0.5",
            "batch-size": 64,
        }
    )
    order = capacity._order(Task(config), AMPLE)
    narrow, full = capacity._measure(order)
    assert (narrow.width, full.width) == (0.25, 1.0)
    assert full.ms > narrow.ms > 0
    # Parameters, gradient and momentum, 54 MB each, in torch's own allocations.
    assert 150 < full.memory_mb - narrow.memory_mb < 600
    # It is that of a process of its own: this one, made larger, does not count.
    ballast = np.ones(1 << 27)
    between = {"capacity": "auto", "memory-mb": (narrow.memory_mb + full.memory_mb) / 2}
    width, (_, again) = capacity_of(Task(config), between, None)
    assert abs(again.memory_mb - full.memory_mb) < 100
    assert ballast.nbytes > 200 << 20
    assert width == 0.25


def test_tiers_wider_than_one_that_does_not_fit_are_not_tried(tmp_path):
    task = Task(tiny(tmp_path))
    with pytest.raises(FedhetError, match=r"narrowest tier, 0\.25, takes"):
        capacity_of(task, {"capacity": "auto", "memory-mb": 1}, tmp_path)
    kept = json.loads((tmp_path / "capacity.json").read_text())
    assert [tier["width"] for tier in kept["tiers"]] == [0.25]


def test_a_measurement_is_kept_for_the_next_process(tmp_path, monkeypatch):
    task, node = Task(tiny(tmp_path)), {"capacity": "auto", **AMPLE}
    monkeypatch.setattr(capacity, "_measure", lambda order: TIERS)
    assert capacity_of(task, node, tmp_path) == (1.0, TIERS)
    monkeypatch.setattr(capacity, "_measure", None)  # it would fail
    assert capacity_of(task, node, tmp_path) == (1.0, TIERS)


@pytest.mark.parametrize("content", ["", "[]", '{"key": 1}', "\0", None])
def test_a_measurement_of_something_else_or_a_damaged_one_is_made_again(
    content, tmp_path, monkeypatch
):
    node = {"capacity": "auto", **AMPLE}
    made = []
    monkeypatch.setattr(capacity, "_measure", lambda order: made.append(order) or TIERS)
    capacity_of(Task(tiny(tmp_path)), node, tmp_path)
    if content is None:
        capacity_of(Task(tiny(tmp_path, batch_size=17)), node, tmp_path)
    else:
        (tmp_path / "capacity.json").write_text(content)
        capacity_of(Task(tiny(tmp_path)), node, tmp_path)
    assert len(made) == 2


def test_a_process_that_fails_says_why(tmp_path):
    with pytest.raises(FedhetError, match=r"could not be measured .*num-clients.*; set the cap"):
        capacity._measure(
            json.dumps({"run-config": {"num-clients": 0}, "spec": {"input_shape": []}})
        )


@pytest.mark.parametrize(
    ("spec", "model"),
    [
        (ModelSpec(input_shape=(3, 8, 8), num_classes=4), "cnn"),
        (ModelSpec(input_shape=(7,), num_classes=4), "mlp"),
        (ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95), "lstm"),
    ],
)
def test_every_kind_of_data_has_its_trial_examples(spec, model):
    task = Task(
        parse({**TINY, "device": "cpu"}),
        Division(
            dataset=random_dataset(spec, 6), partition=blocks([np.arange(6)]), test_owners=None
        ),
    )
    inputs, labels = task.train_examples.batch(torch.arange(6))
    assert inputs.shape == (6, *spec.input_shape)
    assert 0 <= labels.min() <= labels.max() < spec.num_classes
    dataset = {"lstm": "shakespeare"}.get(model, "digits")
    config = parse({**TINY, "dataset": dataset, "max-train-examples": 0, "model": model})
    assert [cost.width for cost in costs(config, spec)] == [0.25, 0.5, 0.75, 1.0]


def test_a_node_that_measures_says_so_in_its_run(tmp_path, caplog):
    caplog.set_level("INFO")
    nodes = [{"partition-id": i, "num-partitions": 2, "capacity": 0.25} for i in range(2)]
    nodes[1] |= {"capacity": "auto", **AMPLE}
    reader = run(
        tmp_path / "run",
        nodes,
        strategy="heterofl",
        num_clients=2,
        fraction_train=1.0,
        capacity_tiers="0.25,0.75",
        capacity_probs="0.5,0.5",
    )
    assert "client 1 has measured a step of each tier (0.25: " in caplog.text
    assert {row["partition"]: row["width"] for row in reader.clients} == {0: 0.25, 1: 0.75}
    written = json.loads((reader.directory / "partition.json").read_text())["measured-tiers"]
    assert list(written) == ["1"]
    assert [tier["width"] for tier in written["1"]] == [0.25, 0.75]


@pytest.mark.slow
def test_the_peak_is_that_of_the_process_and_not_of_its_parent():
    """getrusage's peak of a child counts what the parent had before; this one must not."""
    code = """
import torch
from fedhet_app.trial_step import peak_bytes
print(peak_bytes(torch.device("cpu")))
"""
    ballast = np.ones(1 << 27)  # 1 GiB
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < ballast.nbytes

"""Clients that measure, in a simulation and on data of their own; the whole system in process."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from own_folders import digits, nodes_of, write_csv, write_idx, write_images, write_parquet
from running import MIXTURE, model_bytes, outcome, run, run_spoilt, tiny
from torch.nn.functional import cross_entropy

from fedhet_app import client_app, engine
from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.models import ModelSpec, cnn, mlp
from fedhet_app.results import RunReader
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.layout import flatten, layout_of
from fedhet_app.submodel.slicing import Slicer
from fedhet_app.task import Task
from strategies import STRATEGIES

FEDERATED = {"evaluate": "federated", "evaluate_every": 1}
OWN = {
    "partition": "own",
    "num_clients": 3,
    "fraction_train": 1.0,
    "max_train_examples": 0,
} | FEDERATED


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three clients: a folder of images, IDX files, and parquet files with a test set."""
    root = tmp_path_factory.mktemp("own")
    pixels, labels = digits()
    write_parquet(root / "parquet", pixels[400:520], labels[400:520], "train")
    return [
        write_images(root / "images", pixels[:200], labels[:200]),
        write_idx(root / "idx", pixels[200:400], labels[200:400]),
        write_parquet(root / "parquet", pixels[520:600], labels[520:600], "test"),
    ]


def measured_by_hand(reader, slices, spec, inputs, labels, build=cnn.build):
    """Loss and number of correct predictions of a slice, by torch's own layers."""
    full = build(1.0, spec)
    tensors = {name: torch.from_numpy(array) for name, array in reader.model().items()}
    full.load_state_dict(tensors)
    width = slices
    module = build(width, spec)
    index = Slicer(build, spec).index(width)
    vector = torch.from_numpy(flatten(full) if index is None else flatten(full)[index])
    for entry, tensor in zip(layout_of(module).entries, module.parameters(), strict=True):
        tensor.data = entry.view(vector)
    with torch.inference_mode():
        logits = module.eval()(torch.from_numpy(inputs))
        targets = torch.from_numpy(labels)
        return float(cross_entropy(logits, targets)), int((logits.argmax(1) == targets).sum())


def held_out_of(client, count, seed=42, fraction=0.2):
    """Which of a client's examples are held out: the draw, written down once more."""
    chosen = rng_for(seed, "holdout", client).choice(
        count, size=int(fraction * count), replace=False
    )
    return np.sort(chosen)


def test_three_kinds_of_folders_train_and_measure_one_model(folders, tmp_path):
    nodes = nodes_of(folders)
    for node, capacity in zip(nodes, (0.5, 0.75, 1.0), strict=True):
        node["capacity"] = capacity
    reader = run(tmp_path / "run", nodes, strategy="heterofl", **OWN)
    pixels, labels = digits()
    # The images' folder is read class by class, and by name within each.
    order = np.argsort(labels[:200], kind="stable")
    held = [
        order[held_out_of(0, 200)],
        200 + held_out_of(1, 200),
        np.arange(520, 600),
    ]
    spec = ModelSpec(input_shape=(1, 8, 8), num_classes=10)
    inputs = ((pixels / 127.5) - 1).astype(np.float32)[:, None]
    last = [row for row in reader.clients if row["round"] == 3]
    total, losses = 0, 0.0
    for client, (rows, width) in enumerate(zip(held, (0.5, 0.75, 1.0), strict=True)):
        loss, correct = measured_by_hand(reader, width, spec, inputs[rows], labels[rows])
        said = last[client]
        assert (said["test-examples"], said["test-width"]) == (len(rows), width)
        assert said["test-accuracy"] == correct / len(rows)
        assert said["test-loss"] == pytest.approx(loss, rel=1e-4)
        total, losses = total + correct, losses + loss * len(rows)
    row = reader.rounds[-1]
    assert row["evaluated-examples"] == 40 + 40 + 80
    assert row["accuracy"] == total / 160
    assert row["loss"] == pytest.approx(losses / 160, rel=1e-4)
    assert row["worst-client-accuracy"] == min(each["test-accuracy"] for each in last)
    assert row["client-accuracy"] == {str(i): each["test-accuracy"] for i, each in enumerate(last)}
    assert reader.summary["final-accuracy"] == row["accuracy"]
    assert reader.summary["best-accuracy"] == max(each["accuracy"] for each in reader.rounds)
    assert "balanced-accuracy" not in reader.summary
    assert [each["examples"] for each in last] == [160, 160, 120]
    shares = json.loads((reader.directory / "partition.json").read_text())
    assert (shares["sizes"], shares["test-sizes"]) == ([160, 160, 120], [40, 40, 80])


def test_the_order_of_nodes_does_not_matter_and_a_run_resumes_bit_for_bit(folders, tmp_path):
    whole = run(tmp_path / "whole", nodes_of(folders), strategy="has-fl", **OWN)
    shuffled = run(tmp_path / "shuffled", nodes_of(folders)[::-1], strategy="has-fl", **OWN)
    assert outcome(shuffled) == outcome(whole)
    short = {**OWN, "num_server_rounds": 1}
    run(tmp_path / "resumed", nodes_of(folders), strategy="has-fl", **short)
    resumed = run(tmp_path / "resumed", nodes_of(folders), strategy="has-fl", **OWN, resume=True)
    assert model_bytes(resumed) == model_bytes(whole)
    assert resumed.summary["final-accuracy"] == whole.summary["final-accuracy"]


def test_other_data_than_the_run_started_with_are_not_resumed(folders, tmp_path):
    run(tmp_path / "run", nodes_of(folders), **{**OWN, "num_server_rounds": 1})
    others = nodes_of([folders[0], folders[2], folders[1]])
    with pytest.raises(FedhetError, match="started with another partition"):
        run(tmp_path / "run", others, **OWN, resume=True)


def test_a_table_of_numbers_is_learnt_by_a_perceptron(tmp_path):
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(3, 6)) * 2
    labels = rng.integers(3, size=360)
    rows = (centres[labels] + rng.normal(size=(360, 6)) * 0.5).astype(np.float32)
    names = np.array(["ash", "elm", "oak"])[labels]
    columns = [f"x{i}" for i in range(6)]
    parts = np.split(np.arange(360), 3)
    folders = [
        write_csv(tmp_path / str(i), rows[at], names[at], columns) for i, at in enumerate(parts)
    ]
    options = {
        **OWN,
        "strategy": "heterofl",
        "dataset": "own",
        "input_shape": "6",
        "class_names": "ash,elm,oak",
        "model": "mlp",
        "num_server_rounds": 8,
        "local_steps": 8,
    }
    nodes = nodes_of(folders)
    for node, capacity in zip(nodes, (0.25, 0.5, 1.0), strict=True):
        node["capacity"] = capacity
    reader = run(tmp_path / "run", nodes, **options)
    assert reader.summary["final-accuracy"] > 0.95
    held = parts[1][held_out_of(1, 120)]
    spec = ModelSpec(input_shape=(6,), num_classes=3)
    loss, correct = measured_by_hand(reader, 0.5, spec, rows[held], labels[held], mlp.build)
    said = next(row for row in reader.clients if row["round"] == 8 and row["partition"] == 1)
    assert said["test-accuracy"] == correct / len(held)
    assert said["test-loss"] == pytest.approx(loss, rel=1e-3)

    (tmp_path / "2" / "rows.csv").write_text(
        (tmp_path / "2" / "rows.csv").read_text().replace("x0,x1", "x1,x0", 1)
    )
    with pytest.raises(FedhetError, match="partitions 0 and 2 have columns of other names"):
        run(tmp_path / "other", nodes, **options)


FAST = ("has-fl", "scaffold", "ditto", "ifca")
"""One of each kind of round; the others are slow tests."""


def options_of(strategy):
    """A small run of any method with clients that measure, on whatever partition."""
    options = {"strategy": strategy, "num_clients": 3, "fraction_train": 1.0, **FEDERATED}
    options |= {"num_server_rounds": 2, "routing__steps": 2, "fedspm__components": 2}
    if strategy == "scaffold":
        options |= {"momentum": 0.0, "weight_decay": 0.0}
    if strategy == "random-budget":
        options |= {"random_budget__warmup": 0, "random_budget__adapt_every": 1}
    return options


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in STRATEGIES],
)
def test_clients_of_every_method_measure_on_what_they_hold_out(strategy, folders, tmp_path):
    simulated = run(tmp_path / "simulated", **options_of(strategy))
    own = {**options_of(strategy), "partition": "own", "max_train_examples": 0}
    for reader in (simulated, run(tmp_path / "own", nodes_of(folders), **own)):
        row = reader.rounds[-1]
        tests = [each for each in reader.clients if each["round"] == 2]
        sizes = [each["test-examples"] for each in tests]
        accuracies = [each["test-accuracy"] for each in tests]
        assert row["accuracy"] == pytest.approx(np.average(accuracies, weights=sizes))
        assert row["loss"] == pytest.approx(
            np.average([each["test-loss"] for each in tests], weights=sizes)
        )
        assert reader.summary["status"] == "completed"
        assert reader.summary["rejected"] == 0
        assert "system-accuracy" not in reader.summary


def test_a_personal_model_is_what_is_measured(folders, tmp_path):
    """Ditto at lambda 0 with two classes a client: a model that has seen its own only is better."""
    pixels, labels = digits()
    mine = []
    for client in range(3):
        at = np.flatnonzero((labels == 2 * client) | (labels == 2 * client + 1))[:160]
        mine.append(write_idx(tmp_path / f"data{client}", pixels[at], (labels[at] + client) % 10))
    options = {**OWN, "num_server_rounds": 4, "local_steps": 10}
    ditto = run(tmp_path / "ditto", nodes_of(mine), strategy="ditto", ditto__lam=0.0, **options)
    fedavg = run(tmp_path / "fedavg", nodes_of(mine), strategy="fedavg", **options)
    assert ditto.summary["final-accuracy"] > fedavg.summary["final-accuracy"]


def test_measuring_leaves_no_trace_in_what_is_trained(tmp_path):
    options = {
        "strategy": "ditto",
        "num_clients": 3,
        "fraction_train": 1.0,
        "evaluate": "federated",
    }
    often = run(tmp_path / "often", **options, evaluate_every=1)
    rarely = run(tmp_path / "rarely", **options, evaluate_every=0)
    assert model_bytes(often) == model_bytes(rarely)
    assert often.rounds[-1]["client-accuracy"] == rarely.rounds[-1]["client-accuracy"]
    assert ["accuracy" in row for row in rarely.rounds] == [False, False, True]


def test_a_simulation_divides_each_clients_examples(tmp_path):
    """Of every client a fifth, rounded down, drawn anew for each seed and no matter the method."""
    whole = Task(tiny(tmp_path))
    divided = Task(tiny(tmp_path, evaluate="federated"))
    for client in range(6):
        mine = whole.partition.client(client)
        held = mine[held_out_of(client, len(mine))]
        rows = divided.held_out(client)
        test = divided.dataset.test
        assert np.array_equal(test.inputs[rows], whole.dataset.train.inputs[held])
        assert np.array_equal(test.labels[rows], whole.dataset.train.labels[held])
        assert sorted([*divided.partition.client(client), *held]) == sorted(mine)
    assert len(divided.dataset.test.labels) == sum(len(divided.held_out(i)) for i in range(6))
    more = Task(tiny(tmp_path, evaluate="federated", test_fraction=0.5))
    assert len(more.held_out(0)) == len(whole.partition.client(0)) // 2


def test_a_partition_with_test_examples_of_its_own_keeps_its_training_examples(tmp_path):
    central = Task(tiny(tmp_path, **{**MIXTURE, "strategy": "fedavg"}))
    federated = Task(tiny(tmp_path, **{**MIXTURE, "strategy": "fedavg", "evaluate": "federated"}))
    assert np.array_equal(federated.partition.order, central.partition.order)
    assert federated.held_out(1).tolist() == np.flatnonzero(central.test_owners == 1).tolist()


def test_the_clients_measure_of_dual_data_what_the_server_would(tmp_path):
    """FedAvg on dual data: the server's table by client is what each client finds."""
    options = {**MIXTURE, "strategy": "fedavg"}
    central = run(tmp_path / "central", **options)
    federated = run(tmp_path / "federated", **options, evaluate="federated")
    assert model_bytes(federated) == model_bytes(central)
    said, known = federated.rounds[-1], central.rounds[-1]
    assert said["client-accuracy"] == pytest.approx(known["client-accuracy"])
    assert said["accuracy"] == pytest.approx(known["accuracy"])
    assert said["loss"] == pytest.approx(known["loss"], rel=1e-5)


@pytest.mark.slow
def test_ray_gives_the_bits_of_the_process(folders, tmp_path):
    here = run(tmp_path / "here", nodes_of(folders), strategy="fedavg", **OWN)
    config = tiny(tmp_path / "ray", strategy="fedavg", **OWN)
    engine.run(config, engine="ray", nodes=nodes_of(folders))
    assert outcome(RunReader(tmp_path / "ray")) == outcome(here)


def changed(**values):
    def spoil(message, reply):
        record = MetricRecord({**reply.content["metrics"], **values})
        return Message(RecordDict({"metrics": record}), reply_to=message)

    return spoil


def without(key):
    def spoil(message, reply):
        record = MetricRecord({k: v for k, v in reply.content["metrics"].items() if k != key})
        return Message(RecordDict({"metrics": record}), reply_to=message)

    return spoil


FAULTS = {
    "another round": (changed(round=9), "round 9, not 1"),
    "another client": (changed(partition=0), "partition 0, not 1"),
    "more examples": (changed(examples=10**6), "examples 1e"),
    "fewer examples": (changed(examples=1), "examples 1, not"),
    "all and more correct": (changed(correct=10**6), "1e.06 of .* examples correct"),
    "negatively correct": (changed(correct=-1), "-1 of .* examples correct"),
    "half an example correct": (changed(correct=1.5), "whole numbers"),
    "no loss": (changed(loss=float("nan")), "a loss of nan"),
    "an infinite loss": (changed(loss=float("inf")), "a loss of inf"),
    "a negative loss": (changed(loss=-1.0), "a loss of -1"),
    "a loss beyond float32": (changed(loss=1.7e308), "a loss of 1.7e"),
    "a loss beyond floats": (changed(loss=10**400), "a loss of inf"),
    "a count that cannot be printed": (changed(examples=10**5000), "examples inf, not"),
    "several losses": (changed(loss=[1.0, 2.0]), "a loss of another type"),
    "a key too many": (changed(more=1), "metrics that are not the whole numbers"),
    "a key too few": (without("correct"), "metrics that are not the whole numbers"),
    "no records": (lambda message, reply: Message(RecordDict(), reply_to=message), "0 records"),
    "a record too many": (
        lambda message, reply: Message(
            RecordDict({**reply.content, "m": MetricRecord()}), reply_to=message
        ),
        "2 records",
    ),
    "nothing": (lambda message, reply: None, "no reply in time"),
}
SMALL = {"num_clients": 3, "fraction_train": 1.0, "num_server_rounds": 1, **FEDERATED}


@pytest.fixture(scope="module")
def unspoilt(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unspoilt") / "run", **SMALL)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_measurement_is_dropped_named_and_counted(fault, unspoilt, tmp_path):
    spoilt, reason = FAULTS[fault]

    def spoil(partition, message, answer):
        if partition != 1 or message.metadata.message_type != "evaluate":
            return answer()
        return spoilt(message, answer())

    reader = run_spoilt(tmp_path / "run", spoil, **SMALL)
    (row,) = reader.rounds
    (rejected,) = row["rejected"]
    assert rejected["partition"] == 1
    assert rejected["reason"].startswith("evaluation: ")
    assert re.search(reason, rejected["reason"])
    assert model_bytes(reader) == model_bytes(unspoilt)
    fine = {i: value for i, value in unspoilt.rounds[0]["client-accuracy"].items() if i != "1"}
    assert row["client-accuracy"] == fine
    counted = [each for each in unspoilt.clients if each["partition"] != 1]
    examples = sum(each["test-examples"] for each in counted)
    right = sum(each["test-examples"] * each["test-accuracy"] for each in counted)
    assert row["accuracy"] == pytest.approx(right / examples)
    assert "test-accuracy" not in reader.clients[1]


def test_a_round_that_nobody_measures_has_no_accuracy_and_the_run_goes_on(tmp_path, caplog):
    def spoil(partition, message, answer):
        silent = message.metadata.message_type == "evaluate" and silenced(message)
        return None if silent else answer()

    def silenced(message):
        return message.content["config"]["round"] == 2

    reader = run_spoilt(tmp_path / "run", spoil, **{**SMALL, "num_server_rounds": 2})
    assert ["accuracy" in row for row in reader.rounds] == [True, False]
    assert "round 2: no client measured the model" in caplog.text
    assert reader.summary["status"] == "completed"
    assert reader.summary["final-accuracy"] == reader.rounds[0]["accuracy"]


def test_nothing_on_the_server_is_as_large_as_a_client_declares(folders, tmp_path, monkeypatch):
    honest = client_app._profile

    def vast(context):
        return replace(honest(context), examples=2**31)

    monkeypatch.setattr(client_app, "_profile", vast)
    with pytest.raises(FedhetError, match="examples, but it declared 2147483648 when the run"):
        run(tmp_path / "run", nodes_of(folders), max_empty_rounds=1, **OWN)


def test_a_client_that_holds_nothing_out_is_not_asked(folders, tmp_path):
    nodes = nodes_of(folders)
    nodes[1]["test-fraction"] = 0
    reader = run(tmp_path / "run", nodes, **OWN)
    assert sorted(reader.rounds[-1]["client-accuracy"]) == ["0", "2"]
    assert [row["examples"] for row in reader.clients[:3]] == [160, 200, 120]
    bare = nodes_of(folders[:2], **{"test-fraction": 0.0})
    with pytest.raises(FedhetError, match="no client holds an example out to measure on"):
        run(tmp_path / "none", bare, **{**OWN, "num_clients": 2})


def test_a_node_says_which_it_is_and_what_is_wrong_with_its_data(folders, tmp_path):
    pixels, labels = digits()
    small = write_idx(tmp_path / "small", pixels[:9, :7, :7], labels[:9])
    gone, wrong = tmp_path / "gone", {"test-fraction": 1.0}
    for spoilt, key, remedy in (
        ({"data-path": str(gone)}, "data-path", "is not a folder"),
        ({"data-path": "here"}, "data-path", "is an absolute path"),
        ({"data-path": 5}, "data-path", "set it in the node config"),
        ({"data-path": str(small)}, "data-path", "images of 7x7, and the run takes 8x8"),
        (wrong, "test-fraction", "a number from 0 to less than 1"),
        ({"test-fraction": "0.2"}, "test-fraction", "a number from 0 to less than 1"),
    ):
        nodes = nodes_of(folders)
        nodes[1] |= spoilt
        with pytest.raises(FedhetError, match=f"{remedy}.*the node of partition 1") as caught:
            run(tmp_path / "run", nodes, **OWN)
        assert caught.value.key == key
        assert len(str(caught.value).splitlines()) == 1
        assert not (tmp_path / "run").exists()
    nodes = nodes_of(folders)
    del nodes[2]["data-path"]
    with pytest.raises(FedhetError, match=r"set it in the node config .*node of partition 2"):
        run(tmp_path / "run", nodes, **OWN)


def test_data_of_a_nodes_own_are_not_passed_over_in_silence(folders, tmp_path):
    with pytest.raises(FedhetError, match=r"data-path = .*set partition = 'own' in the run config"):
        run(tmp_path / "run", nodes_of(folders), num_clients=3)


def test_a_node_that_claims_to_hold_out_others_is_refused(tmp_path, monkeypatch):
    from fedhet_app import client_app

    honest = client_app._profile
    monkeypatch.setattr(
        client_app, "_profile", lambda context: replace(honest(context), test_examples=1)
    )
    with pytest.raises(FedhetError, match=r"test-examples = 1: partition 0 holds out .*others"):
        run(tmp_path / "run", **SMALL)


@pytest.mark.parametrize(
    ("options", "key", "remedy"),
    [
        ({"partition": "own"}, "evaluate", "set evaluate = 'federated'"),
        ({"dataset": "own"}, "dataset", "set partition = 'own', and data-path"),
        ({"evaluate": "federated", "norm": "sbn"}, "norm", "use gn, bn or none"),
        ({"evaluate": "federated", "evaluate-examples": 5}, "evaluate-examples", "no effect with"),
        ({"test-fraction": 0.3}, "test-fraction", "no effect with evaluate = central"),
        ({"test-fraction": 1.0, "evaluate": "federated"}, "test-fraction", r"in \(0, 1\)"),
        ({"class-names": "a,b"}, "class-names", "no effect with partition = dirichlet"),
        ({"input-shape": "3"}, "input-shape", "no effect with dataset = digits"),
        (
            {"partition": "own", "evaluate": "federated", "max-train-examples": 9},
            "max-train-examples",
            "no effect with partition = own",
        ),
        (
            {"partition": "own", "evaluate": "federated", "data-dir": "/x"},
            "data-dir",
            "no effect with partition = own",
        ),
        (
            {"partition": "own", "evaluate": "federated", "has-fl.estimator": "oracle-tv"},
            "has-fl.estimator",
            "each client's labels at the server",
        ),
        (
            {
                "partition": "own",
                "evaluate": "federated",
                "strategy": "heterofl",
                "heterofl.masked-classifier": True,
            },
            "heterofl.masked-classifier",
            "each client's labels at the server",
        ),
        (
            {
                "partition": "own",
                "evaluate": "federated",
                "dataset": "own",
                "input-shape": "4",
                "num-classes": 3,
                "model": "mlp",
                "augment": "crop-flip",
            },
            "augment",
            "changes images",
        ),
        ({"model": "mlp", "norm": "bn"}, "norm", "no effect with model = mlp"),
    ],
)
def test_options_without_sense_are_refused(options, key, remedy):
    with pytest.raises(FedhetError, match=remedy) as caught:
        parse(options)
    assert caught.value.key == key

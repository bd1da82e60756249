"""Rounds whose clients predict with models of their own: votes, states, faults, bad options."""

import numpy as np
import pytest
from running import MIXTURE, outcome, run, run_spoilt, spoiling, tiny
from torch import nn

from fedhet_app import task as task_module
from fedhet_app import wire
from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.evaluation import logits_of
from fedhet_app.results import load_tensors
from fedhet_app.task import Task, task_for
from strategies import fedbabu

METHODS = ("fedavg-ft", "fedbabu", "ditto")
OPTIONS = {key: value for key, value in MIXTURE.items() if key != "strategy"} | {"norm": "bn"}
AWAY = 2


class Heard:
    """Listens to the answers to queries; one client may be silent when asked."""

    def __init__(self, silent=None):
        self.said, self.silent = {}, silent

    def __call__(self, partition, message, answer):
        reply = answer()
        if message.metadata.message_type == wire.PREDICT:
            if partition == self.silent:
                return None
            self.said[partition] = wire.unpack(reply.content["arrays"]).reshape(-1, 10)
        return reply


@pytest.mark.parametrize("silent", [None, AWAY])
def test_what_is_measured_are_the_clients_answers(silent, tmp_path, caplog):
    heard = Heard(silent)
    reader = run_spoilt(tmp_path / "run", heard, **OPTIONS, strategy="ditto")
    last, task = reader.rounds[-1], task_for(tiny(tmp_path, **OPTIONS, strategy="ditto"))
    labels, owners = task.dataset.test.labels, task.dataset.test_groups
    voters = [i for i in range(4) if i != silent]
    assert sorted(heard.said) == voters
    votes = np.stack([heard.said[i].argmax(axis=1) for i in voters])
    most = np.array([np.bincount(column, minlength=10).argmax() for column in votes.T])
    assert last["system-accuracy"] == pytest.approx(np.mean(most == labels))
    right = {i: heard.said[i].argmax(axis=1) == labels for i in voters}
    own = {i: right[i][owners == i].mean() for i in voters}
    assert last["client-accuracy"] == {str(i): pytest.approx(own[i]) for i in voters}
    assert last["worst-client-accuracy"] == pytest.approx(min(own.values()))
    sizes = [len(task.partition.client(i)) for i in voters]
    expected = np.average(list(own.values()), weights=sizes)
    assert last["average-accuracy"] == reader.summary["average-accuracy"] == pytest.approx(expected)
    mean = np.mean([heard.said[i] for i in voters], axis=0)[np.arange(len(labels)), labels]
    assert last["loss"] == pytest.approx(-np.log(mean).mean(), rel=1e-5)
    assert ("client 2 does not predict: no answer" in caplog.text) == (silent == AWAY)


@pytest.mark.parametrize("strategy", METHODS)
def test_evaluation_leaves_no_trace_in_the_run(strategy, tmp_path):
    seldom = run(tmp_path / "seldom", **OPTIONS, strategy=strategy)
    often = run(tmp_path / "often", **OPTIONS, strategy=strategy, evaluate_every=1)
    assert outcome(seldom)[2:] == outcome(often)[2:]
    assert seldom.summary["system-accuracy"] == often.summary["system-accuracy"]


def test_a_client_that_was_never_sampled_predicts_with_the_initial_model(tmp_path):
    options = {**OPTIONS, "strategy": "ditto", "fraction_train": 0.5, "num_server_rounds": 1}
    heard = Heard()
    reader = run_spoilt(tmp_path / "run", heard, **options)
    trained = {row["partition"] for row in reader.clients}
    task = Task(tiny(tmp_path, **options))
    model = task.module(1.0)
    model.load(task.initial_vector())
    rows = task.queried(np.arange(len(task.dataset.test.labels)), None)[1]
    start = logits_of(model, task.test_examples, rows).softmax(dim=1).numpy()
    for partition, said in heard.said.items():
        assert np.array_equal(said, start) == (partition not in trained)


def test_one_message_holds_one_model_and_no_state(tmp_path):
    sizes, asked = set(), set()

    def listen(partition, message, answer):
        reply = answer()
        if message.metadata.message_type == wire.TRAIN:
            sizes.add((len(reply.content.array_records), *map(len, reply.content.values())))
        else:
            asked.add(len(wire.unpack(message.content["arrays"])))
        return reply

    run_spoilt(tmp_path / "run", listen, **OPTIONS, strategy="ditto")
    assert sizes == {(1, 1, 6)}
    assert asked == {0}  # a client predicts with the model that it has


def test_a_personal_model_that_diverges_is_named_and_not_kept(tmp_path):
    options = {**OPTIONS, "strategy": "ditto", "norm": "none", "ditto__lam": 1e30}
    reader = run(tmp_path / "run", **options)
    assert [row["replies"] for row in reader.rounds] == [4, 4, 0]  # by then it is beyond floats
    reasons = [each["reason"] for each in reader.rounds[-1]["rejected"]]
    assert all("ditto.lam = 1e+30: the personal model diverged" in reason for reason in reasons)
    kept = [load_tensors(path)[0] for path in reader.directory.glob("clients/*/*.safetensors")]
    assert len(kept) >= 4
    assert all(np.isfinite(tensors["personal"]).all() for tensors in kept)


def test_a_head_that_a_client_changed_is_left_out(tmp_path):
    """FedBABU's head keeps the bits of its start, whoever takes part."""

    def shift(vector):
        vector[-1] += 1.0  # the classifier's bias
        return vector

    options = {**OPTIONS, "strategy": "fedbabu", "norm": "none"}  # no buffer behind the bias
    reader = run_spoilt(tmp_path / "run", spoiling(AWAY, wire.TRAIN, "arrays", shift), **options)
    for row in reader.rounds:
        (rejected,) = row["rejected"]
        assert rejected["partition"] == AWAY
        assert "bias is not as it was sent, which FedBABU never trains" in rejected["reason"]
    task = task_for(tiny(tmp_path / "run", **options))
    assert reader.model()["classifier.bias"].tobytes() == task.initial_vector()[-10:].tobytes()


@pytest.mark.parametrize("strategy", ["fedavg-ft", "fedbabu"])
def test_fine_tuning_that_diverges_costs_the_answers_and_not_the_run(strategy, tmp_path, caplog):
    key = f"{strategy.replace('-', '_')}__lr"
    options = {**OPTIONS, "strategy": strategy, "norm": "none", key: 1e30}
    reader = run(tmp_path / "run", **options)
    last = reader.rounds[-1]
    assert reader.summary["status"] == "completed"
    assert (last["loss"], last["system-accuracy"], last["average-accuracy"]) == (None, 0.0, 0.0)
    assert "does not predict: non-finite values in probabilities" in caplog.text


class Transposed(nn.Linear):
    """Logits of a product with a weight that has a column per class."""

    def forward(self, inputs):
        return inputs.flatten(1) @ self.weight


def test_a_network_without_a_head_is_refused(tmp_path, monkeypatch):
    def build(width, spec):
        return Transposed(spec.num_classes, 64, bias=False)

    monkeypatch.setattr(task_module, "builder_for", lambda name: build)
    task = Task(tiny(tmp_path, **OPTIONS, strategy="fedbabu"))
    with pytest.raises(FedhetError, match="no layer of the network has one row per class") as bad:
        fedbabu.full_width(task, np.ones(4))
    assert bad.value.key == "model"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"strategy": "fedavg-ft", "fedavg-ft.epochs": 0}, "fedavg-ft.epochs.*at least 1"),
        ({"strategy": "fedavg-ft", "fedavg-ft.lr": 0.0}, "fedavg-ft.lr.*above 0"),
        ({"strategy": "fedbabu", "fedbabu.epochs": 0}, "fedbabu.epochs.*at least 1"),
        ({"strategy": "fedbabu", "fedbabu.lr": -0.1}, "fedbabu.lr.*above 0"),
        ({"strategy": "fedbabu", "fedbabu.finetune": "body"}, "fedbabu.finetune.*head, full"),
        ({"strategy": "ditto", "ditto.lam": -1.0}, "ditto.lam.*at least 0"),
        ({"strategy": "ditto", "ditto.budget": "double"}, "ditto.budget.*shared, added"),
        ({"strategy": "ditto", "fedbabu.epochs": 2}, "no effect with strategy = ditto"),
        ({"strategy": "ditto", "partition": "iid"}, "ditto must know whose each test example is"),
        ({"strategy": "fedbabu", "norm": "sbn"}, "keeps no statistics to predict"),
    ],
)
def test_options_without_sense_are_refused(options, match):
    with pytest.raises(FedhetError, match=match):
        parse({"partition": "dual", **options})

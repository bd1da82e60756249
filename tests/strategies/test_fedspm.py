"""Rounds of FedSPM: what is sent, what is believed, who may be missing."""

import json

import numpy as np
import pytest
from running import MIXTURE, model_bytes, outcome, run, run_spoilt, spoiling, tiny

from client_apps import fedspm as client
from fedhet_app import engine, wire
from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader
from fedhet_app.task import task_for

AWAY = 2


def sizes_of(reader):
    partition = json.loads((reader.directory / "partition.json").read_text())
    return np.array(partition["sizes"])


def test_a_run_reports_what_routing_is_measured_by(tmp_path):
    reader = run(tmp_path / "run", **MIXTURE)
    last, summary = reader.rounds[-1], reader.summary
    for name in ("system-accuracy", "average-accuracy", "routing-accuracy"):
        assert 0 < summary[name] == last[name] <= 1
    confusion = np.array(last["routing-confusion"])
    tests = json.loads((reader.directory / "partition.json").read_text())["test-sizes"]
    assert confusion.sum(axis=1).tolist() == tests
    assert last["routing-accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    shares = sizes_of(reader) / sizes_of(reader).sum()
    own = [last["client-accuracy"][str(i)] for i in range(4)]
    assert last["average-accuracy"] == pytest.approx(np.dot(shares, own))
    assert last["purity"] >= 0.5
    assert 0 < summary["vote-accuracy"] < 1
    assert not any("vote-accuracy" in row for row in reader.rounds[:-1])
    for row in reader.clients:
        assert sum(row["tau"]) == pytest.approx(row["examples"], rel=1e-6)


def test_only_tau_travels_between_the_exchanges(tmp_path):
    sent = {}

    def listen(partition, message, answer):
        reply = answer()
        kind = message.metadata.message_type
        sizes = sent.setdefault(kind, (set(), set()))
        sizes[0].add(len(wire.unpack(message.content["arrays"])))
        sizes[1].add(len(wire.unpack(reply.content["arrays"])))
        return reply

    run_spoilt(tmp_path / "run", listen, **MIXTURE)
    (down,), (up,) = sent["train.m_step"]
    assert down == 4 * 2
    assert sent["train.e_step"] == ({up}, {2})


def test_ray_gives_the_bits_of_the_process(tmp_path):
    inline = run(tmp_path / "inline", **MIXTURE)
    engine.run(tiny(tmp_path / "ray", **MIXTURE), engine="ray")
    assert outcome(RunReader(tmp_path / "ray")) == outcome(inline)


def test_identical_components_never_separate(tmp_path):
    together = run(tmp_path / "identical", fedspm__init="identical", **MIXTURE)
    apart = run(tmp_path / "random", **MIXTURE)
    for reader, separates in ((together, False), (apart, True)):
        sizes = sizes_of(reader)
        exact = [row["tau"] == [sizes[row["partition"]] / 2] * 2 for row in reader.clients]
        assert not any(exact[4:]) if separates else all(exact)
    assert {row["effective-components"] for row in together.rounds} == {2.0}


def test_heads_never_leave_the_clients(tmp_path):
    reader = run(tmp_path / "run", **MIXTURE)
    assert not any("heads" in name for name in reader.model())
    assert all((reader.directory / "clients" / str(i)).is_dir() for i in range(4))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tau: tau * np.nan, "non-finite values in arrays"),
        (lambda tau: tau - [2 * tau[0], -2 * tau[0]], "is negative or does not sum to"),
        (lambda tau: tau * 1.01, "is negative or does not sum to"),
        (lambda tau: tau[:1], r"shape (1,) instead of (2,)"),
    ],
    ids=["NaN", "negative", "another sum", "another shape"],
)
def test_a_client_whose_tau_is_wrong_is_left_out_of_the_round(change, reason, tmp_path):
    reader = run_spoilt(tmp_path / "run", spoiling(AWAY, wire.E_STEP, "arrays", change), **MIXTURE)
    for row in reader.rounds:
        assert row["replies"] == 3
        assert [each["partition"] for each in row["rejected"]] == [AWAY]
        assert reason in row["rejected"][0]["reason"]
        assert wire.DIVERGED not in row["rejected"][0]["reason"]  # nothing was trained yet
    assert AWAY not in {row["partition"] for row in reader.clients}
    assert reader.summary["status"] == "completed"
    even = sizes_of(reader)[AWAY] / 2
    assert reader.model()["tau"][AWAY].tolist() == [even, even]


def test_a_client_lost_between_the_exchanges_costs_its_round_alone(tmp_path):
    def lose(partition, message, answer):
        kind, number = message.metadata.message_type, message.content["config"].get("round")
        if (partition, kind, number) == (AWAY, wire.M_STEP, 3):
            return None
        return answer()

    reader = run_spoilt(tmp_path / "run", lose, **MIXTURE)
    assert [row["replies"] for row in reader.rounds] == [4, 4, 3]
    assert "no reply" in reader.rounds[2]["rejected"][0]["reason"]
    assert reader.summary["status"] == "completed"
    # Its pi is that of round 2, so that its tau must be too (rho_i pi_ic = tau_ic / n).
    (before,) = (r for r in reader.clients if (r["round"], r["partition"]) == (2, AWAY))
    assert reader.model()["tau"][AWAY].tolist() == before["tau"]


def test_the_vote_is_that_of_all_clients(tmp_path):
    said = {}

    def listen(partition, message, answer):
        reply = answer()
        if message.metadata.message_type == wire.PREDICT:
            said[partition] = wire.unpack(reply.content["arrays"]).reshape(-1, 10)
        return reply

    reader = run_spoilt(tmp_path / "run", listen, **MIXTURE)
    labels = task_for(tiny(tmp_path / "run", **MIXTURE)).dataset.test.labels
    votes = np.stack([said[i].argmax(axis=1) for i in range(4)])
    assert votes.shape == (4, len(labels))
    most = [np.bincount(column, minlength=10).argmax() for column in votes.T]
    assert reader.summary["vote-accuracy"] == pytest.approx(np.mean(most == labels))


def test_a_dead_component_is_survived(tmp_path):
    kill = spoiling(AWAY, wire.E_STEP, "arrays", lambda tau: [tau.sum(), 0.0])
    reader = run_spoilt(tmp_path / "run", kill, **MIXTURE)
    assert reader.summary["status"] == "completed"
    assert reader.model()["tau"][AWAY].tolist() == [sizes_of(reader)[AWAY], 0.0]
    assert all(np.isfinite(row["router-loss"]) for row in reader.rounds)


def test_kmeans_starts_the_responsibilities_and_then_lets_go(tmp_path):
    options = {**MIXTURE, "fedspm__init_w": "kmeans", "fedspm__init_rounds": 2}
    reader = run(tmp_path / "run", **options)
    whole = [all(float(t).is_integer() for t in row["tau"]) for row in reader.clients]
    assert whole == [True] * 8 + [False] * 4
    assert reader.clients[0]["tau"] == reader.clients[4]["tau"]


def test_more_components_than_examples_are_refused(tmp_path):
    with pytest.raises(FedhetError, match=r"fedspm.components.*has \d+ examples; use that many"):
        run(tmp_path / "run", **{**MIXTURE, "fedspm__components": 400})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fedspm.components": 0}, "fedspm.components.*at least 1"),
        ({"partition": "iid"}, "fedspm must know whose each test example is; use partition"),
        ({"norm": "sbn"}, "keeps no statistics to predict a single query with"),
        ({"fedspm.init-rounds": 5}, "has no effect with fedspm.init-w = random"),
        ({"fedspm.components": 1, "fedspm.encoders": "per-component"}, "has no effect with"),
        ({"strategy": "feddrm", "fedspm.components": 2}, "has no effect with strategy = feddrm"),
        ({"strategy": "fedavg", "routing.steps": 2}, "has no effect with strategy = fedavg"),
        ({"max-train-examples": 9}, "max-train-examples.*no effect with partition = dual"),
        ({"embed-norm": "ln-relu"}, "embed-norm.*has no effect with embedding = 0"),
        ({"model": "resnet8", "model-preset": "paper"}, "no effect with model = resnet8"),
    ],
)
def test_options_without_sense_are_refused(options, match):
    with pytest.raises(FedhetError, match=match):
        parse({"strategy": "fedspm", "partition": "dual", **options})


def test_dual_options_need_the_dual_partition():
    with pytest.raises(FedhetError, match=r"dual.amplitude.*no effect with partition = dirichlet"):
        parse({"dual.amplitude": 0.1})


def test_a_table_of_another_shape_is_refused_by_the_client(tmp_path):
    class Draft:
        def draft(self, server_round):
            model = client.mixture_of(task)
            rows = len(task.partition.client(0))
            w = np.full((rows, 2), 0.5, dtype=np.float32)
            return {**model.private(), "model": model.initial, "w": w}

    task = task_for(tiny(tmp_path / "run", **MIXTURE))
    table = np.ones(7, dtype=np.float32)
    request = wire.TrainRequest(server_round=1, width=1.0, vector=table, state=Draft())
    with pytest.raises(FedhetError, match=r"tau.*7 numbers.*4 x 2 sums"):
        client.m_step(task, 0, request)


def test_another_seed_gives_other_bits(tmp_path):
    one = run(tmp_path / "one", **MIXTURE)
    two = run(tmp_path / "two", **{**MIXTURE, "seed": 7})
    assert model_bytes(one) != model_bytes(two)

"""What every method of Paper B must survive: any order, a stop, a dropped reply, clients away."""

import json

import pytest
from running import MIXTURE, interrupted, outcome, run, run_spoilt

from fedhet_app import engine, wire
from fedhet_app.config_checks import ROUTING_METHODS, VOTING_METHODS

OPTIONS = {
    **MIXTURE,
    "ifca__clusters": 2,
    "fedem__components": 2,
    "fedgmm__gaussians": 2,
    "fedgmm__components": 3,
    "fedgmm__dimensions": 4,
}
METHODS = (*ROUTING_METHODS, *VOTING_METHODS)
STATEFUL = (*ROUTING_METHODS, "fedem", "ditto")
LAST_EXCHANGE = {"fedspm": wire.M_STEP, "feddrm": wire.M_STEP}
AWAY = 2


def as_it_is(partition, message, answer):
    return answer()


@pytest.mark.parametrize("strategy", METHODS)
def test_the_order_of_arrival_changes_nothing(strategy, tmp_path):
    options = {**OPTIONS, "strategy": strategy, "norm": "bn"}
    one = run_spoilt(tmp_path / "one", as_it_is, **options)
    two = run_spoilt(tmp_path / "two", as_it_is, backwards=True, **options)
    assert outcome(one) == outcome(two)
    for name in ("system-accuracy", "average-accuracy"):
        assert 0 < one.summary[name] == one.rounds[-1][name] <= 1
    assert ("routing-accuracy" in one.summary) == (strategy in ROUTING_METHODS)
    assert len(one.clients) == 4 * 3


@pytest.mark.parametrize(
    ("strategy", "own"),
    [*((name, {}) for name in METHODS), ("fedgmm", {"fedgmm__covariance": "diagonal"})],
)
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(strategy, own, tmp_path):
    options = {**OPTIONS, "strategy": strategy, **own, "norm": "bn", "fraction_train": 0.5}
    # The stop comes after clients were asked for predictions.
    options |= {"checkpoint_every": 2, "evaluate_every": 1, "evaluate_examples": 60}
    whole = run(tmp_path / "whole", **options)
    interrupted(tmp_path / "halves", 1 if strategy == "ifca" else 2, **options)  # it draws in 1
    assert outcome(run(tmp_path / "halves", resume=True, **options)) == outcome(whole)


@pytest.mark.parametrize("strategy", STATEFUL)
def test_a_node_that_starts_again_finds_its_state_in_its_own_folder(strategy, tmp_path):
    """The nodes of a resumed run have new contexts: what they kept in those is gone."""
    options = {**OPTIONS, "strategy": strategy, "fraction_train": 0.5}
    whole = run(tmp_path / "whole", **options)
    folder = tmp_path / "device"
    nodes = [{**node, "state-dir": str(folder)} for node in engine.virtual_nodes(4)]
    interrupted(tmp_path / "halves", 2, nodes=nodes, **options)
    assert outcome(run(tmp_path / "halves", nodes, resume=True, **options)) == outcome(whole)
    assert list(folder.rglob("*.safetensors"))
    assert not list((tmp_path / "halves" / "clients").rglob("*.safetensors"))


@pytest.mark.parametrize("strategy", STATEFUL)
def test_a_reply_that_was_not_used_leaves_a_state_as_it_was(strategy, tmp_path):
    """Trained and dropped in round 2, a client is where one is that never saw round 2."""

    def drop(runs_the_client, said):
        def spoil(partition, message, answer):
            kind, number = message.metadata.message_type, message.content["config"].get("round")
            if (partition, kind, number) == (AWAY, LAST_EXCHANGE.get(strategy, wire.TRAIN), 2):
                if runs_the_client:
                    answer()
                return None
            reply = answer()
            if kind == wire.PREDICT:
                said[partition] = wire.unpack(reply.content["arrays"]).tobytes()
            return reply

        return spoil

    results = []
    for runs in (True, False):
        said = {}
        options = {**OPTIONS, "strategy": strategy}
        reader = run_spoilt(tmp_path / str(runs), drop(runs, said), **options)
        assert [row["replies"] for row in reader.rounds] == [4, 3, 4]
        assert sorted(said) == [0, 1, 2, 3]
        results.append((outcome(reader), said))
    assert results[0] == results[1]


@pytest.mark.parametrize("strategy", ["fedspm", "fedgmm"])
def test_a_client_that_is_not_sampled_keeps_its_last_tau(strategy, tmp_path):
    options = {**OPTIONS, "strategy": strategy, "fraction_train": 0.5, "num_server_rounds": 2}
    reader = run(tmp_path / "run", **options)
    sizes = json.loads((reader.directory / "partition.json").read_text())["sizes"]
    last = {row["partition"]: row["tau"] for row in reader.clients}
    assert 2 <= len(last) < 4, "the seed must leave somebody out"
    for partition, row in enumerate(reader.model()["tau"].tolist()):
        assert row == pytest.approx(last.get(partition, [sizes[partition] / 2] * 2))


@pytest.mark.parametrize("strategy", ["fedspm", "fedgmm"])
def test_queries_of_a_client_that_is_away_go_to_the_next_best(strategy, tmp_path, caplog):
    def away(partition, message, answer):
        if partition == AWAY and message.metadata.message_type == wire.PREDICT:
            return None
        return answer()

    reader = run_spoilt(tmp_path / "run", away, **{**OPTIONS, "strategy": strategy})
    last = reader.rounds[-1]
    assert str(AWAY) not in last["client-accuracy"]
    assert 0 < last["system-accuracy"] < 1
    assert f"client {AWAY} does not predict" in caplog.text

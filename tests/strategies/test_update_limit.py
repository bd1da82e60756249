"""Updates that are too long: dropped or shortened, counted, for methods of every kind."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from rich.console import Console
from running import MIXTURE, model_bytes, run, run_spoilt, timeless

from fedhet_app import wire
from fedhet_app.config import parse
from fedhet_app.display import closing_table
from fedhet_app.errors import FedhetError
from fedhet_app.results import load_tensors

BAD, FAR = 1, 1000.0
SLICES = {"num_clients": 4, "num_server_rounds": 2, "fraction_train": 1.0}
OPTIONS = {
    "fedavg": SLICES,
    "has-fl": {**SLICES, "capacity_tiers": "0.5,1.0", "capacity_probs": "0.5,0.5"},
    "fedspm": {**MIXTURE, "num_server_rounds": 2},
    "fedem": {**MIXTURE, "num_server_rounds": 2, "fedem__components": 2},
    "ifca": {**MIXTURE, "num_server_rounds": 2, "ifca__clusters": 2},
    "fedgmm": {**MIXTURE, "num_server_rounds": 2, "fedgmm__dimensions": 4},
    "scaffold": {**SLICES, "momentum": 0.0, "weight_decay": 0.0},
}


def is_update(message):
    return message.metadata.message_type in (wire.TRAIN, wire.M_STEP)


def far(partition, message, answer):
    """Client BAD returns its vector with every coordinate far away."""
    reply = answer()
    if partition != BAD or not is_update(message):
        return reply
    vector = reply.content["arrays"]["vector"].numpy() + np.float32(FAR)
    arrays = ArrayRecord({"vector": Array(vector)})
    return Message(RecordDict({**reply.content, "arrays": arrays}), reply_to=message)


def far_control(partition, message, answer):
    """Client BAD's update is its own, the change of its control variate far away."""
    reply = answer()
    if partition != BAD or not is_update(message):
        return reply
    change = wire.pack(wire.unpack(reply.content["control"]) + np.float32(FAR))
    return Message(RecordDict({**reply.content, "control": change}), reply_to=message)


def away(partition, message, answer):
    return None if partition == BAD and is_update(message) else answer()


def honest(partition, message, answer):
    return answer()


@pytest.mark.parametrize("strategy", OPTIONS)
def test_an_update_that_is_too_long_is_dropped_as_if_it_had_not_come(strategy, tmp_path, caplog):
    options = {**OPTIONS[strategy], "strategy": strategy, "max_update_norm": 50.0}
    dropped = run_spoilt(tmp_path / "far", far, **options)
    without = run_spoilt(tmp_path / "away", away, **options)
    assert model_bytes(dropped) == model_bytes(without)
    assert [timeless(r) for r in dropped.clients] == [timeless(r) for r in without.clients]
    for row in dropped.rounds:
        (rejected,) = row["rejected"]
        assert rejected["partition"] == BAD
        assert "above max-update-norm = 50" in rejected["reason"]
        assert row["largest-update-norm"] > FAR
    assert dropped.summary["rejected"] == 2
    assert "client 1 dropped: an update of norm" in caplog.text
    assert "clipped" not in dropped.summary


def test_a_control_variate_is_as_long_as_its_update_may_be(tmp_path):
    options = {**OPTIONS["scaffold"], "strategy": "scaffold", "max_update_norm": 50.0}
    dropped = run_spoilt(tmp_path / "far", far_control, **options)
    without = run_spoilt(tmp_path / "away", away, **options)
    assert model_bytes(dropped) == model_bytes(without)
    for row in dropped.rounds:
        (rejected,) = row["rejected"]
        assert rejected["partition"] == BAD
        assert "a control variate of norm" in rejected["reason"]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_limit_that_updates_just_keep_lets_their_control_variates_pass(momentum, tmp_path):
    correction = {"momentum": momentum, "scaffold__momentum_correction": momentum > 0}
    options = {**OPTIONS["scaffold"], "strategy": "scaffold", "local_steps": 0, **correction}
    free = run(tmp_path / "free", **options, max_update_norm=1e6)
    most = 1.0001 * max(row["largest-update-norm"] for row in free.rounds)
    assert run(tmp_path / "bound", **options, max_update_norm=most).summary["rejected"] == 0


@pytest.mark.parametrize("strategy", OPTIONS)
def test_a_limit_that_no_update_reaches_changes_no_bit(strategy, tmp_path):
    options = {**OPTIONS[strategy], "strategy": strategy}
    without = run(tmp_path / "without", **options)
    mode = {} if strategy == "scaffold" else {"max_update_norm_mode": "clip"}
    limited = run(tmp_path / "limited", **options, max_update_norm=1e6, **mode)
    assert model_bytes(limited) == model_bytes(without)
    assert all(0 < row["largest-update-norm"] < 100 for row in limited.rounds)
    assert all("largest-update-norm" not in row for row in without.rounds)
    assert limited.summary.get("clipped", 0) == 0


def test_the_mean_of_shortened_updates_is_what_numpy_says(tmp_path, caplog):
    """FedAvg with every update at most 0.5 long, one of them from far away."""
    sent, came = {}, {}

    def listen(partition, message, answer):
        reply = far(partition, message, answer)
        sent["x"] = wire.unpack(message.content["arrays"]).astype(float)
        came[partition] = wire.unpack(reply.content["arrays"]).astype(float)
        return reply

    options = {**SLICES, "num_server_rounds": 1, "max_update_norm": 0.5}
    reader = run_spoilt(tmp_path / "run", listen, **options, max_update_norm_mode="clip")
    sizes = {row["partition"]: row["examples"] for row in reader.clients}
    total, clipped = 0, []
    for partition, vector in came.items():
        update = vector - sent["x"]
        norm = np.sqrt((update**2).sum())
        if norm > 0.5:
            update, clipped = update * 0.5 / norm, [*clipped, partition]
        total = total + sizes[partition] * update
    expected = sent["x"] + total / sum(sizes.values())
    saved, _ = load_tensors(reader.directory / "checkpoint" / "state.safetensors")
    np.testing.assert_allclose(saved["vector"], expected, rtol=1e-6, atol=1e-6)
    assert BAD in clipped
    (row,) = reader.rounds
    assert [each["partition"] for each in row["clipped"]] == sorted(clipped)
    assert row["clipped"][sorted(clipped).index(BAD)]["norm"] == row["largest-update-norm"]
    assert (reader.summary["clipped"], reader.summary["rejected"]) == (len(clipped), 0)
    assert "client 1's update of norm" in caplog.text
    console = Console(record=True, width=80)
    closing_table(console, reader.summary)
    assert f"updates clipped │ {len(clipped)} │" in " ".join(console.export_text().split())


@pytest.mark.parametrize("strategy", sorted(set(OPTIONS) - {"scaffold", "fedgmm"}))
def test_a_shortened_update_cannot_take_the_model_away(strategy, tmp_path):
    options = {**OPTIONS[strategy], "strategy": strategy, "max_update_norm": 5.0}
    reader = run_spoilt(tmp_path / "run", far, **options, max_update_norm_mode="clip")
    start = run_spoilt(tmp_path / "one", away, **{**options, "num_server_rounds": 1})
    saved, _ = load_tensors(reader.directory / "checkpoint" / "state.safetensors")
    before, _ = load_tensors(start.directory / "checkpoint" / "state.safetensors")
    assert np.linalg.norm(saved["vector"].astype(float) - before["vector"]) < 4 * 5.0
    assert reader.summary["clipped"] >= 2


def test_the_first_exchange_of_two_is_no_update(tmp_path):
    """tau, moments and choices are of other lengths than models."""
    for strategy in ("fedspm", "fedgmm", "ifca"):
        options = {**OPTIONS[strategy], "strategy": strategy, "max_update_norm": 60.0}
        reader = run_spoilt(tmp_path / strategy, honest, **options)
        assert reader.summary["rejected"] == 0


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"max-update-norm": -1.0}, "max-update-norm", "at least 0"),
        ({"max-update-norm": float("nan")}, "max-update-norm", "finite"),
        ({"max-update-norm-mode": "clip"}, "max-update-norm-mode", "no effect with max-update-nor"),
        ({"max-update-norm-mode": "cut"}, "max-update-norm-mode", "one of drop, clip"),
        (
            {
                "strategy": "scaffold",
                "momentum": 0.0,
                "weight-decay": 0.0,
                "max-update-norm": 1.0,
                "max-update-norm-mode": "clip",
            },
            "max-update-norm-mode",
            "control variates would still be of the whole update; use drop",
        ),
    ],
)
def test_limits_that_make_no_sense_are_refused(values, key, text):
    with pytest.raises(FedhetError, match=text) as caught:
        parse(values)
    assert caught.value.key == key

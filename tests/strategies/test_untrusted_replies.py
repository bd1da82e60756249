"""Each kind of unusable reply, sent by one client in every round of a real run."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from running import model_bytes, outcome, run, run_spoilt, timeless, tiny

from client_apps import CLIENTS
from fedhet_app import checkpoint, wire
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader, load_tensors
from fedhet_app.submodel.layout import unflatten
from fedhet_app.task import Task

BAD = 1
OPTIONS = {
    "strategy": "has-fl",
    "num_clients": 4,
    "fraction_train": 1.0,
    "has_fl__warmup": 0,
    "has_fl__adapt_every": 2,
    "capacity_tiers": "0.5,1.0",
    "capacity_probs": "0.5,0.5",
}


def with_vector(change):
    def spoil(message, reply):
        vector = change(wire.unpack(reply.content["arrays"]).copy())
        arrays = ArrayRecord({"vector": Array(vector)})
        return Message(
            RecordDict({"arrays": arrays, "metrics": reply.content["metrics"]}),
            reply_to=message,
        )

    return spoil


def with_metrics(change):
    def spoil(message, reply):
        metrics = MetricRecord(change(dict(reply.content["metrics"])))
        content = RecordDict({"arrays": reply.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    return spoil


def with_array(make):
    def spoil(message, reply):
        record = make(reply.content["arrays"]["vector"])
        content = RecordDict({"arrays": record, "metrics": reply.content["metrics"]})
        return Message(content, reply_to=message)

    return spoil


def without_arrays(message, reply):
    return Message(RecordDict({"metrics": reply.content["metrics"]}), reply_to=message)


def other_records(message, reply):
    content = {"weights": reply.content["arrays"], "metrics": reply.content["metrics"]}
    return Message(RecordDict(content), reply_to=message)


def one_nan(vector):
    vector[len(vector) // 2] = np.nan
    return vector


def garbage(array):
    return ArrayRecord({"vector": Array(array.dtype, array.shape, array.stype, array.data[:99])})


FAULTS = {
    "no arrays": (without_arrays, "records named"),
    "wrong record keys": (other_records, "records named"),
    "wrong array key": (with_array(lambda a: ArrayRecord({"w": a})), "arrays named ['w']"),
    "two arrays": (with_array(lambda a: ArrayRecord({"vector": a, "w": a})), "arrays named"),
    "garbage bytes": (with_array(garbage), "array cannot be read"),
    "too short": (with_vector(lambda v: v[:-1]), "shape"),
    "transposed": (with_vector(lambda v: v[None]), "shape"),
    "float64": (with_vector(lambda v: v.astype(np.float64)), "dtype float64"),
    "NaN": (with_vector(one_nan), "non-finite values"),
    "infinity": (with_vector(lambda v: v + np.float32(np.inf)), "non-finite values"),
    "inflated count": (with_metrics(lambda m: {**m, "examples": 10**6}), "1000000 examples"),
    "no examples": (with_metrics(lambda m: {**m, "examples": 0}), "0 examples"),
    "negative count": (with_metrics(lambda m: {**m, "examples": -5}), "-5 examples"),
    "wrong round": (with_metrics(lambda m: {**m, "round": 99}), "for round 99"),
    "wrong partition": (with_metrics(lambda m: {**m, "partition": 0}), "from partition 0, not 1"),
    "list as metric": (with_metrics(lambda m: {**m, "loss": [1.0]}), "metrics named"),
    "NaN loss": (with_metrics(lambda m: {**m, "loss": float("nan")}), "non-finite values"),
    "NaN steps": (with_metrics(lambda m: {**m, "steps": float("nan")}), "non-finite metrics"),
}


def absent(partition, message, answer):
    """The message never reaches the bad client."""
    return None if partition == BAD else answer()


@pytest.fixture(scope="module")
def without_it(tmp_path_factory):
    return run_spoilt(tmp_path_factory.mktemp("absent") / "run", absent, **OPTIONS)


def assert_dropped(reader, without_it, reason, caplog):
    assert model_bytes(reader) == model_bytes(without_it)
    assert [timeless(r) for r in reader.clients] == [timeless(r) for r in without_it.clients]
    for row in reader.rounds:
        (rejected,) = row["rejected"]
        assert rejected["partition"] == BAD
        assert reason in rejected["reason"]
        assert row["replies"] == 3
        assert f"round {row['round']}: client {BAD} dropped: {rejected['reason']}" in caplog.text
    assert reader.summary["rejected"] == 3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_dropped_named_and_counted(fault, tmp_path, without_it, caplog):
    change, reason = FAULTS[fault]

    def spoil(partition, message, answer):
        return change(message, answer()) if partition == BAD else answer()

    reader = run_spoilt(tmp_path / "run", spoil, **OPTIONS)
    assert_dropped(reader, without_it, reason, caplog)


def test_a_client_that_raises_is_dropped(tmp_path, without_it, caplog, monkeypatch):
    real = CLIENTS["has-fl"]

    def raising(task, partition, request):
        if partition == BAD:
            raise ArithmeticError("out of order")
        return real(task, partition, request)

    monkeypatch.setitem(CLIENTS, "has-fl", raising)
    reader = run(tmp_path / "run", **OPTIONS)
    assert_dropped(reader, without_it, "error 2: ArithmeticError: out of order", caplog)


def test_a_missing_reply_leaves_the_mean_of_the_others(tmp_path, caplog):
    replies = {}

    def spoil(partition, message, answer):
        if partition == BAD:
            return None
        reply = answer()
        replies[partition] = wire.unpack(reply.content["arrays"]).astype(np.float64)
        return reply

    options = {**OPTIONS, "strategy": "fedavg", "num_server_rounds": 1, "round_timeout": 7.0}
    reader = run_spoilt(tmp_path / "run", spoil, **options)
    (row,) = reader.rounds
    assert row["rejected"] == [{"partition": BAD, "reason": "no reply within 7 s"}]
    assert "round 1: client 1 dropped: no reply within 7 s" in caplog.text
    task = Task(tiny(tmp_path, **options))
    sizes = {i: len(task.partition.client(i)) for i in replies}
    assert sorted(sizes) == [0, 2, 3]
    mean = sum(sizes[i] * replies[i] for i in replies) / sum(sizes.values())
    expected = unflatten(task.slicer.layout(1.0), mean.astype(np.float32))
    for name, array in reader.model().items():
        np.testing.assert_array_max_ulp(array, expected[name], maxulp=1)


def test_a_reply_to_another_message_counts_as_none(tmp_path, without_it, caplog):
    earlier = {}

    def spoil(partition, message, answer):
        if partition != BAD:
            return answer()
        earlier.setdefault("reply", answer())
        stale = Message(earlier["reply"].content, reply_to=message)
        stale.metadata.__dict__["_reply_to_message_id"] = "unknown"
        return stale

    reader = run_spoilt(tmp_path / "run", spoil, **OPTIONS)
    assert_dropped(reader, without_it, "no reply within", caplog)


def test_several_rounds_without_a_usable_reply_end_the_run_and_keep_the_checkpoint(tmp_path):
    def spoil(partition, message, answer):
        settings = message.content.config_records["config"]
        return answer() if settings["round"] in (1, 3) else None

    directory = tmp_path / "run"
    options = {**OPTIONS, "num_server_rounds": 9, "max_empty_rounds": 2}
    with pytest.raises(FedhetError, match=r"2: that many rounds in a row .*no reply") as caught:
        run_spoilt(directory, spoil, **options)
    assert caught.value.key == "max-empty-rounds"
    reader = RunReader(directory)
    assert [row["replies"] for row in reader.rounds] == [4, 0, 4, 0, 0]
    saved, _ = load_tensors(directory / checkpoint.FILE)
    assert np.isfinite(saved["vector"]).all()
    assert (reader.summary["status"], reader.summary["rounds"]) == ("failed", 5)

    after = run(directory, **{**options, "resume": True})
    assert [row["round"] for row in after.rounds] == list(range(1, 10))
    assert (after.summary["status"], after.summary["empty-rounds"]) == ("completed", 3)


def test_an_empty_round_keeps_the_model(tmp_path):
    def spoil(partition, message, answer):
        settings = message.content.config_records["config"]
        return answer() if settings["round"] < 3 else None

    options = {**OPTIONS, "strategy": "fedavg"}
    three = run_spoilt(tmp_path / "three", spoil, **options)
    two = run(tmp_path / "two", **{**options, "num_server_rounds": 2})
    assert model_bytes(three) == model_bytes(two)
    assert three.rounds[-1]["train-loss"] is None


def test_fewer_replies_than_asked_for_make_an_empty_round(tmp_path):
    directory = tmp_path / "run"
    options = {**OPTIONS, "min_replies": 4, "max_empty_rounds": 3}
    with pytest.raises(FedhetError, match="max-empty-rounds = 3"):
        run_spoilt(directory, absent, **options)
    reader = RunReader(directory)
    assert [(row["replies"], row["train-loss"]) for row in reader.rounds] == [(3, None)] * 3
    saved, _ = load_tensors(directory / checkpoint.FILE)
    start = Task(tiny(directory, **options)).initial_vector()
    assert saved["vector"].tobytes() == start.tobytes()


@pytest.mark.parametrize("strategy", ["fedavg", "heterofl"])
@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_replies_equal_to_what_was_sent_keep_every_bit(strategy, norm, tmp_path, monkeypatch):
    def echo(task, partition, request):
        return wire.TrainReply(
            server_round=request.server_round,
            partition=partition,
            vector=request.vector,
            examples=len(task.partition.client(partition)),
            loss=1.0,
            steps=1,
            seconds=0.0,
        )

    monkeypatch.setitem(CLIENTS, strategy, echo)
    options = {"strategy": strategy, "norm": norm, "fraction_train": 1.0}
    reader = run(tmp_path / "run", **options)
    saved, _ = load_tensors(reader.directory / checkpoint.FILE)
    start = Task(tiny(tmp_path, **options)).initial_vector()
    assert saved["vector"].tobytes() == start.tobytes()
    assert reader.summary["rejected"] == 0


def test_the_order_in_which_replies_arrive_does_not_matter(tmp_path):
    def honest(partition, message, answer):
        return answer()

    forward = run_spoilt(tmp_path / "forward", honest, **OPTIONS)
    backward = run_spoilt(tmp_path / "backward", honest, backwards=True, **OPTIONS)
    assert outcome(forward) == outcome(backward)

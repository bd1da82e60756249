"""Garbage in the place of every kind of reply, for every method, on real runs.

A client whose reply is garbage leaves what a client leaves whose reply never came.
"""

import tracemalloc
from dataclasses import replace

import garbage
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import MIXTURE, model_bytes, run_spoilt, timeless

from fedhet_app import checkpoint, engine, wire
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader, load_tensors
from fedhet_app.wire import Profile, Rejection
from strategies import STRATEGIES
from strategies.base import RoundStrategy

SLICES = {
    "num_clients": 4,
    "num_server_rounds": 2,
    "fraction_train": 1.0,
    "capacity_tiers": "0.5,1.0",
    "capacity_probs": "0.5,0.5",
    "has_fl__warmup": 0,
    "has_fl__adapt_every": 1,
    "random_budget__warmup": 0,
    "random_budget__adapt_every": 1,
}
OWN_MODELS = {
    **MIXTURE,
    "num_server_rounds": 2,
    "evaluate_every": 1,
    "ifca__clusters": 2,
    "fedem__components": 2,
    "fedgmm__gaussians": 2,
    "fedgmm__components": 2,
    "fedgmm__dimensions": 4,
}
OF_OWN_MODELS = {"ditto", "fedavg-ft", "fedbabu", "feddrm", "fedem", "fedgmm", "fedspm", "ifca"}
BAD = {
    0: {wire.TRAIN, wire.E_STEP},
    1: {wire.TRAIN, wire.M_STEP},
    2: {wire.PREDICT},
}
"""Which replies of which clients are garbage; client 3 is honest."""


PROFILE = Profile(partition=2, num_partitions=4, examples=30, capacity=1.0, code="abc")


def reply_content(arrays):
    metrics = {"round": 1, "partition": 2, "examples": 30, "loss": 0.5, "steps": 4, "seconds": 0.1}
    return RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})


def options_of(strategy):
    options = OWN_MODELS if strategy in OF_OWN_MODELS else SLICES
    plain = {"momentum": 0.0, "weight_decay": 0.0} if strategy == "scaffold" else {}
    return {**options, **plain, "strategy": strategy}


@pytest.fixture
def started(monkeypatch):
    """The strategies that have been started."""
    strategies, start = [], RoundStrategy.run

    def remember(self, grid):
        strategies.append(self)
        return start(self, grid)

    monkeypatch.setattr(RoundStrategy, "run", remember)
    return strategies


def reader_of(strategy, message, answer):
    """A function that reads a reply to a message as the strategy would."""
    if message.metadata.message_type == wire.PREDICT:
        (array,) = answer.content.array_records["arrays"].values()
        classes = strategy.task.dataset.num_classes
        count = array.shape[0] // classes

        def read(reply):
            return wire.read_answer(wire.only_answer(message, [reply]), count, classes)

        return read
    (sent,) = [each for each in strategy.round.sent if each.message is message]
    return lambda reply: strategy.usable(sent, [reply])


def is_bad(partition, message):
    return message.metadata.message_type in BAD.get(partition, ())


def missing(partition, message, answer):
    return None if is_bad(partition, message) else answer()


def left_behind(reader):
    """What a run has computed, less what tells of the replies themselves."""
    arrays, _ = load_tensors(reader.directory / checkpoint.FILE)
    about_replies = {"rejected", "upload-bytes"}
    return (
        model_bytes(reader),
        {name: array.tobytes() for name, array in arrays.items()},
        [{k: v for k, v in timeless(r).items() if k not in about_replies} for r in reader.rounds],
        [timeless(row) for row in reader.clients],
    )


def negative(vector):
    return -vector - 1


def run_with(directory, strategy, replace):
    def spoil(partition, message, answer):
        reply = answer()
        return replace(message, reply) if is_bad(partition, message) else reply

    return run_spoilt(directory, spoil, **options_of(strategy))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_garbage_is_rejected_and_leaves_what_a_missing_reply_leaves(strategy, tmp_path, started):
    earlier, tried, used = [], set(), []

    def replace(message, reply):
        kind = message.metadata.message_type
        read = reader_of(started[-1], message, reply)
        read(reply)
        bad = garbage.mutations(message, reply)
        if kind != wire.PREDICT:
            again = {f"replay {i}": Message(c, reply_to=message) for i, c in enumerate(earlier)}
            bad |= again
        for name, each in bad.items():
            with pytest.raises(Rejection) as caught:
                read(each)
            assert 0 < len(str(caught.value)) <= 300, name
            assert str(caught.value).isprintable(), name
            tried.add((kind, name))
        earlier.extend([reply.content] if kind != wire.PREDICT else [])
        used.append(list(bad.values())[len(used) * 7 % len(bad)])
        return used[-1]

    reader = run_with(tmp_path / "garbage", strategy, replace)
    reference = run_spoilt(tmp_path / "missing", missing, **options_of(strategy))
    assert left_behind(reader) == left_behind(reference)
    assert reader.summary["rejected"] == reference.summary["rejected"] > 0
    assert len(tried) > 60


@pytest.mark.parametrize("strategy", ["feddrm", "fedgmm", "fedspm", "ifca"])
def test_what_only_the_method_can_know_is_checked(strategy, tmp_path, started):
    """Finite values of the right shape that no client's computation gives."""
    checked = []

    def replace(message, reply):
        read = reader_of(started[-1], message, reply)
        kind = message.metadata.message_type
        names = {
            "feddrm": {wire.E_STEP: ["arrays"]},
            "fedspm": {wire.E_STEP: ["arrays"]},
            "fedgmm": {wire.E_STEP: ["arrays"], wire.TRAIN: ["moments", "mass"]},
            "ifca": {wire.E_STEP: ["arrays"], wire.TRAIN: ["cluster"]},
        }[strategy]
        for name in [*names.get(kind, []), *(["arrays"] if kind == wire.PREDICT else [])]:
            vector = reply.content[name]["vector"].numpy()
            for change in (negative, lambda v: v * 1.5 + 0.25):
                arrays = ArrayRecord({"vector": Array(change(vector))})
                content = RecordDict({**reply.content, name: arrays})
                with pytest.raises(Rejection):
                    read(Message(content, reply_to=message))
                checked.append(kind)
        return reply

    run_with(tmp_path / "run", strategy, replace)
    assert set(checked) >= {wire.E_STEP, wire.PREDICT}


@settings(max_examples=150, derandomize=True, database=None)
@given(content=garbage.contents({}), known=garbage.profiles())
def test_no_profile_of_a_stranger_raises_anything_else(content, known, request_message):
    for each in (content, known):
        message = Message(each, reply_to=request_message)
        try:
            profile = wire.read_profile(message)
        except (Rejection, FedhetError):
            continue
        assert 0 <= profile.partition < profile.num_partitions


@settings(max_examples=300, derandomize=True, database=None)
@given(content=st.one_of(garbage.contents({}), garbage.measurements()))
def test_no_measurement_of_a_stranger_raises_anything_else(content, request_message):
    known = replace(PROFILE, test_examples=10)
    try:
        measured = wire.read_measured(
            Message(content, reply_to=request_message), server_round=1, profile=known
        )
    except Rejection:
        return
    assert 0 <= measured.correct <= measured.examples == 10
    assert 0 <= measured.loss <= np.finfo(np.float32).max


@pytest.mark.parametrize("examples", [0, 2**31 + 1, 2**63 - 1, 10**400])
def test_no_node_declares_more_examples_than_there_can_be(examples, request_message):
    content = wire.profile_content(replace(PROFILE, examples=examples))
    with pytest.raises(Rejection, match="not a profile: "):
        wire.read_profile(Message(content, reply_to=request_message))


def test_what_a_refusing_node_says_is_one_short_harmless_line(request_message):
    said = {"key": "data-path\x1b[2J", "value": "\n" * 9, "remedy": "\x07" + "x" * 10**6}
    content = RecordDict({"refusal": ConfigRecord(said)})
    with pytest.raises(FedhetError) as caught:
        wire.read_profile(Message(content, reply_to=request_message))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.fixture(scope="module")
def request_message():
    grid = engine.InlineGrid({}, [{}, {}])  # gives this process the identity messages need
    node, _ = grid.get_node_ids()
    return grid.create_message(RecordDict(), wire.TRAIN, node, "")


def test_of_two_replies_to_one_message_neither_is_used(request_message):
    """Flower checks neither the sender nor the message that a reply itself names."""
    one = Message(RecordDict(), reply_to=request_message)
    assert wire.only_answer(request_message, []) is None
    assert wire.only_answer(request_message, [one]) is one
    with pytest.raises(Rejection, match="2 replies to one message"):
        wire.only_answer(request_message, [one, one])
    one.metadata.__dict__["_src_node_id"] = 7
    with pytest.raises(Rejection, match=r"from node 7, but node .* was asked"):
        wire.only_answer(request_message, [one])


def test_an_error_of_flowers_own_names_no_node_but_the_message(request_message):
    error = Message(Error(5, "Node Unavailable"), reply_to=request_message)
    error.metadata.__dict__["_src_node_id"] = 1
    assert wire.only_answer(request_message, [error]) is error


@pytest.mark.parametrize("lie", ["bytes", "shape", "both"])
def test_what_is_too_large_is_refused_before_it_is_unpacked(lie, request_message):
    size, many = 1000, 2 * 10**7
    honest = np.zeros(size, np.float32)
    data = garbage.npy(np.zeros(many, np.float32)) if lie != "shape" else garbage.npy(honest)
    data = garbage.header_of((10**12,), data) if lie == "shape" else data
    shape = (size,) if lie != "both" else (many,)
    record = ArrayRecord({"vector": Array("float32", shape, "numpy.ndarray", data)})
    tracemalloc.start()
    with pytest.raises(Rejection, match=r"bytes instead of 4128|shape \(20000000,\)"):
        wire.read_reply(
            Message(reply_content(record), reply_to=request_message),
            server_round=1,
            size=size,
            profile=PROFILE,
        )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6 < len(data) or lie == "shape"
    assert peak < 10**6


def fuzz(strategy, directory, started, examples):
    def replace(message, reply):
        read = reader_of(started[-1], message, reply)

        @settings(
            max_examples=examples,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(content=garbage.contents(dict(reply.content)))
        def check(content):
            assert wire.record_bytes(content) >= 0
            if dict(content) == dict(reply.content):
                return
            with pytest.raises(Rejection):
                read(Message(content, reply_to=message))

        check()
        return Message(RecordDict(), reply_to=message)

    reader = run_with(directory / "garbage", strategy, replace)
    reference = run_spoilt(directory / "missing", missing, **options_of(strategy))
    assert left_behind(reader) == left_behind(reference)


@pytest.mark.parametrize("strategy", ["has-fl", "fedspm", "fedgmm"])
def test_nothing_that_hypothesis_thinks_of_is_used_or_raises(strategy, tmp_path, started):
    fuzz(strategy, tmp_path, started, examples=25)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_that_hypothesis_thinks_of_for_long_is_used_or_raises(strategy, tmp_path, started):
    fuzz(strategy, tmp_path, started, examples=400)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_round_with_too_few_replies_leaves_everything_as_it_was(strategy, tmp_path):
    """All clients must reply; in the second round the last reply of one is lost."""
    options = {**options_of(strategy), "min_replies": 4, "lr_schedule": "constant"}
    last = wire.M_STEP if strategy in ("fedspm", "feddrm") else wire.TRAIN

    def lose(partition, message, answer):
        kind, settings = message.metadata.message_type, message.content.config_records["config"]
        lost = partition == 1 and kind == last and settings["round"] == 2
        reply = answer()
        return None if lost else reply

    two = run_spoilt(tmp_path / "two", lose, **options)
    one = run_spoilt(tmp_path / "one", lose, **{**options, "num_server_rounds": 1})
    assert [row["replies"] for row in two.rounds] == [4, 3]
    assert two.rounds[1]["train-loss"] is None
    assert left_behind(two)[:2] == left_behind(one)[:2]
    if last == wire.M_STEP:

        def lose_first(partition, message, answer):
            settings = message.content.config_records["config"]
            kind = message.metadata.message_type
            lost = partition == 1 and kind == wire.E_STEP and settings["round"] == 2
            return None if lost else answer()

        first = run_spoilt(tmp_path / "first", lose_first, **options)
        assert left_behind(first)[:2] == left_behind(one)[:2]


@pytest.mark.parametrize("strategy", ["scaffold", "ditto", "fedem", "fedspm", "fedgmm"])
def test_clients_go_on_from_the_last_round_that_counted(strategy, tmp_path):
    """What clients saved in a void round is thrown away: the rest is as if it had not been."""
    options = {**options_of(strategy), "min_replies": 4, "lr_schedule": "constant"}
    last = wire.M_STEP if strategy == "fedspm" else wire.TRAIN

    def lose(number):
        def spoil(partition, message, answer):
            settings = message.content.config_records["config"]
            here = message.metadata.message_type == last and settings.get("round") == number
            reply = answer()
            return None if here and partition == 1 else reply

        return spoil

    starts = {}

    def listen(spoil, name):
        def heard(partition, message, answer):
            if message.metadata.message_type in (wire.TRAIN, wire.E_STEP, wire.M_STEP):
                number = message.content.config_records["config"]["round"]
                key = name, number, partition, message.metadata.message_type
                settings = dict(message.content.config_records["config"])
                arrays = {k: r["vector"].data for k, r in message.content.array_records.items()}
                starts[key] = arrays, settings["accepted-round"]
            return spoil(partition, message, answer)

        return heard

    run_spoilt(tmp_path / "void", listen(lose(2), "void"), **{**options, "num_server_rounds": 3})
    for (name, number, *rest), (arrays, accepted) in starts.items():
        if number == 3 and last != rest[-1]:
            continue
        if number == 3 and strategy != "fedspm":
            assert arrays == starts[name, 2, *rest][0]
        if number == 3:
            assert accepted == 1
    assert {number for _, number, *_ in starts} == {1, 2, 3}
    assert RunReader(tmp_path / "void").summary["empty-rounds"] == 1

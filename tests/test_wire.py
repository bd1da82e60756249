import io
import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhet_app import wire
from fedhet_app.client_state import StateNote
from fedhet_app.engine import InlineGrid
from fedhet_app.wire import Profile, Rejection, TrainReply

SIZE = 5
PROFILE = Profile(partition=2, num_partitions=4, examples=30, capacity=0.5, code="abc")
METRICS = {"round": 3, "partition": 2, "examples": 30, "loss": 0.5, "steps": 4, "seconds": 0.1}
REPLY = TrainReply(
    server_round=3,
    partition=2,
    vector=np.arange(SIZE, dtype=np.float32),
    examples=30,
    loss=0.5,
    steps=4,
    seconds=0.1,
)


@pytest.fixture(scope="module")
def request_message():
    grid = InlineGrid({}, [{}])  # gives this process the identity messages need
    (node,) = grid.get_node_ids()
    record = wire.pack(np.arange(SIZE, dtype=np.float32))
    return grid.create_message(wire.train_content(record, 3, 0.75), wire.TRAIN, node, "")


def read(content, request_message):
    message = Message(content, reply_to=request_message)
    return wire.read_reply(message, server_round=3, size=SIZE, profile=PROFILE)


def numpy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def any_array(array):
    return ArrayRecord({wire.VECTOR: Array(array)})


def as_record(data, stype="numpy.ndarray"):
    return ArrayRecord({wire.VECTOR: Array("float32", (SIZE,), stype, data)})


def test_a_request_arrives_as_it_was_sent(request_message):
    request = wire.read_request(request_message)
    assert (request.server_round, request.width) == (3, 0.75)
    assert request.vector.tobytes() == np.arange(SIZE, dtype=np.float32).tobytes()


def test_a_reply_arrives_as_it_was_sent(request_message):
    message = wire.reply_to(request_message, REPLY)
    got = wire.read_reply(message, server_round=3, size=SIZE, profile=PROFILE)
    assert got.vector.tobytes() == REPLY.vector.tobytes()
    scalars = {k: v for k, v in vars(got).items() if k != "vector"}
    assert scalars == {k: v for k, v in vars(REPLY).items() if k != "vector"}


def test_what_else_a_method_sends_arrives_beside_the_slice():
    grid = InlineGrid({}, [{}])
    (node,) = grid.get_node_ids()
    note = StateNote(run="ab", directory="/results/clients", accepted=2, kept=0)
    extra = np.array([7, -0.0], dtype=np.float32)
    record = wire.pack(np.zeros(SIZE, dtype=np.float32))
    content = wire.train_content(record, 3, 1.0, extras={"control": wire.pack(extra)}, note=note)
    message = grid.create_message(content, wire.TRAIN, node, "")
    request = wire.read_request(message)
    assert request.vector.shape == (SIZE,)
    assert {name: v.tobytes() for name, v in request.extras.items()} == {"control": extra.tobytes()}
    assert wire.read_note(message) == note


def test_a_method_without_state_sends_nothing_about_it(request_message):
    content = request_message.content
    assert set(content) == {"arrays", "config"}
    assert set(content.config_records["config"]) == {"round", "width"}
    assert wire.read_note(request_message) is None
    assert wire.read_request(request_message).extras == {}
    assert set(wire.reply_to(request_message, REPLY).content) == {"arrays", "metrics"}


def read_with_control(content, request_message):
    message = Message(content, reply_to=request_message)
    return wire.read_reply(
        message, server_round=3, size=SIZE, profile=PROFILE, extras={"control": 2}
    )


def test_what_else_a_method_returns_arrives_beside_the_slice(request_message):
    extra = np.array([7, -0.0], dtype=np.float32)
    content = wire.reply_to(request_message, replace(REPLY, extras={"control": extra})).content
    got = read_with_control(content, request_message)
    assert got.vector.tobytes() == REPLY.vector.tobytes()
    assert {name: v.tobytes() for name, v in got.extras.items()} == {"control": extra.tobytes()}


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (
            None,
            r"records named \['arrays', 'metrics'\] instead of \['arrays', 'control', 'metrics'",
        ),
        (MetricRecord({"control": 1.0}), r"records named \['arrays', 'control', 'metrics'\] inst"),
        (np.zeros(SIZE, np.float32), r"control of shape \(5,\) instead of \(2,\)"),
        (np.zeros((2, 1), np.float32), r"control of shape \(2, 1\) instead of \(2,\)"),
        (np.zeros(2), "control of dtype float64 instead of float32"),
        (np.array([1, math.nan], np.float32), r"non-finite values in control .* training diverged"),
        (np.array([1, math.inf], np.float32), r"non-finite values in control .* training diverged"),
    ],
)
def test_an_extra_that_cannot_be_used_rejects_the_reply(control, reason, request_message):
    content = reply_content()
    if control is not None:
        is_array = isinstance(control, np.ndarray)
        content["control"] = any_array(control) if is_array else control
    with pytest.raises(Rejection, match=reason):
        read_with_control(content, request_message)


def test_an_extra_nobody_asked_for_rejects_the_reply(request_message):
    content = reply_content()
    content["control"] = wire.pack(np.zeros(2, np.float32))
    with pytest.raises(Rejection, match="records named"):
        read(content, request_message)


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_a_vector_costs_four_bytes_a_float_and_a_small_header(size):
    record = wire.pack(np.zeros(size, dtype=np.float32))
    header = wire.record_bytes(wire.train_content(record, 1, 1.0)) - 4 * size
    assert 0 < header < 500


def good_arrays():
    return wire.pack(REPLY.vector)


def reply_content(arrays=None, metrics=None):
    arrays = good_arrays() if arrays is None else arrays
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({**METRICS, **(metrics or {})})})


def vector_of(*values, dtype=np.float32):
    return any_array(np.array(values, dtype=dtype))


HUGE_HEADER = numpy_bytes(np.zeros(1)).replace(b"(1,), }  ", b"(9**17,)}")
BAD_REPLIES = {
    "no records": (RecordDict(), "records named"),
    "one record": (RecordDict({"arrays": good_arrays()}), "records named"),
    "other record names": (
        RecordDict({"weights": good_arrays(), "metrics": MetricRecord(METRICS)}),
        r"records named \['metrics', 'weights'\] instead of",
    ),
    "records swapped": (
        RecordDict({"metrics": good_arrays(), "arrays": MetricRecord(METRICS)}),
        "records named",
    ),
    "arrays that are metrics": (
        RecordDict({"arrays": MetricRecord(METRICS), "metrics": MetricRecord(METRICS)}),
        "records named",
    ),
    "metrics that are settings": (
        RecordDict({"arrays": good_arrays(), "metrics": ConfigRecord({**METRICS})}),
        "records named",
    ),
    "a metric missing": (
        RecordDict({"arrays": good_arrays(), "metrics": MetricRecord({"loss": 1.0})}),
        r"metrics named \['loss'\] instead of",
    ),
    "a metric too many": (reply_content(metrics={"more": 1}), "metrics named"),
    "a list as metric": (reply_content(metrics={"loss": [0.5]}), "metrics named"),
    "steps not a number": (reply_content(metrics={"steps": math.nan}), "non-finite metrics"),
    "seconds infinite": (reply_content(metrics={"seconds": math.inf}), "non-finite metrics"),
    "examples beyond floats": (reply_content(metrics={"examples": 10**400}), "non-finite metrics"),
    "another round": (reply_content(metrics={"round": 2}), "for round 2, not 3"),
    "another partition": (reply_content(metrics={"partition": 1}), "from partition 1, not 2"),
    "inflated examples": (
        reply_content(metrics={"examples": 3000}),
        "3000 examples, but it declared 30",
    ),
    "loss not a number": (reply_content(metrics={"loss": math.nan}), "training diverged; lower lr"),
    "another array name": (
        reply_content(ArrayRecord({"weight": Array(REPLY.vector)})),
        r"arrays named \['weight'\] instead of \['vector'\]",
    ),
    "too short": (reply_content(vector_of(1, 2)), r"shape \(2,\) instead of \(5,\)"),
    "two axes": (reply_content(any_array(REPLY.vector[None])), r"shape \(1, 5\)"),
    "a scalar": (reply_content(any_array(np.array(1, np.float32))), r"shape \(\)"),
    "float64": (reply_content(vector_of(1, 2, 3, 4, 5, dtype=np.float64)), "dtype float64"),
    "integers": (reply_content(vector_of(1, 2, 3, 4, 5, dtype=np.int32)), "dtype int32"),
    "big-endian": (reply_content(vector_of(1, 2, 3, 4, 5, dtype=">f4")), "dtype >f4"),
    "NaN": (reply_content(vector_of(1, math.nan, 3, 4, 5)), "non-finite values"),
    "infinite": (reply_content(vector_of(1, -math.inf, 3, 4, 5)), "non-finite values"),
    "both infinities": (reply_content(vector_of(math.inf, -math.inf, 3, 4, 5)), "non-finite"),
    "no bytes": (reply_content(as_record(b"")), "array cannot be read"),
    "truncated": (reply_content(as_record(numpy_bytes(REPLY.vector)[:-1])), "cannot be read"),
    "a zip": (reply_content(as_record(b"PK\x03\x04 not really")), "cannot be read"),
    "a pickle": (reply_content(as_record(b"\x80\x04\x95\x00\x00.")), "cannot be read"),
    "a huge shape": (reply_content(as_record(HUGE_HEADER)), "cannot be read"),
    "another format": (reply_content(as_record(b"", "torch.tensor")), "cannot be read"),
}


@pytest.mark.parametrize("case", BAD_REPLIES)
def test_a_bad_reply_is_rejected_with_its_reason(case, request_message):
    content, reason = BAD_REPLIES[case]
    with pytest.raises(Rejection, match=reason):
        read(content, request_message)


def test_an_archive_of_arrays_is_rejected(request_message):
    buffer = io.BytesIO()
    np.savez(buffer, vector=REPLY.vector)
    with pytest.raises(Rejection, match=r"cannot be read|dtype"):
        read(reply_content(as_record(buffer.getvalue())), request_message)


def test_huge_but_finite_values_are_accepted(request_message):
    largest = np.finfo(np.float32).max
    got = read(reply_content(vector_of(largest, -largest, 0, 0, 0)), request_message)
    assert got.vector.tolist() == [largest, -largest, 0, 0, 0]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("ValueError: boom", "error 2: ValueError: boom"),
        ("<class 'RayTaskError'>:<'ray::run()\n  File x\nValueError: boom\n", "ValueError: boom$"),
        ("", "error 2: no reason"),
    ],
)
def test_an_error_is_named_by_its_last_line(reason, shown, request_message):
    message = Message(Error(2, reason), reply_to=request_message)
    with pytest.raises(Rejection, match=shown):
        wire.read_reply(message, server_round=3, size=SIZE, profile=PROFILE)


numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([3, 2, 30, 0.5, 10**400, math.nan, math.inf])
)
metric_records = st.one_of(
    st.fixed_dictionaries({key: st.one_of(numbers, st.just(METRICS[key])) for key in METRICS}),
    st.dictionaries(st.text(max_size=9), st.one_of(numbers, st.lists(st.floats(), max_size=2))),
).map(MetricRecord)
arrays_of_any_kind = hnp.arrays(
    dtype=st.one_of(hnp.scalar_dtypes(), st.just(np.dtype("<f4"))),
    shape=st.one_of(st.just((SIZE,)), hnp.array_shapes(min_dims=0, max_side=6)),
)


@st.composite
def damaged_files(draw):
    data = bytearray(numpy_bytes(draw(arrays_of_any_kind)))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


array_bytes = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=50).map(lambda tail: b"PK\x03\x04" + tail),
    st.binary(max_size=50).map(lambda tail: b"\x93NUMPY\x01\x00" + tail),
    arrays_of_any_kind.map(numpy_bytes),
    damaged_files(),
)
array_records = st.dictionaries(
    st.one_of(st.just("vector"), st.text(max_size=5)),
    st.builds(
        Array,
        st.sampled_from(["float32", "", "O"]),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.sampled_from(["numpy.ndarray", "numpy.ndarray", "numpy.ndarray", "pickle"]),
        array_bytes,
    ),
    max_size=2,
).map(ArrayRecord)
any_record = st.one_of(array_records, metric_records, st.just(ConfigRecord({"round": "3"})))
contents = st.one_of(
    st.dictionaries(st.sampled_from(["arrays", "metrics", "x"]), any_record),
    st.fixed_dictionaries({"arrays": array_records, "metrics": metric_records}),
    st.fixed_dictionaries({"arrays": array_records, "metrics": st.just(MetricRecord(METRICS))}),
).map(RecordDict)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@given(content=contents)
def test_whatever_arrives_is_read_or_rejected(content, request_message):
    assert wire.record_bytes(content) >= 0
    try:
        reply = read(content, request_message)
    except Rejection as rejection:
        assert str(rejection)
    else:
        assert (reply.vector.dtype, reply.vector.shape) == (np.float32, (SIZE,))
        assert np.isfinite(reply.vector).all()
        assert (reply.server_round, reply.partition, reply.examples) == (3, 2, 30)
        assert math.isfinite(reply.loss)


def test_a_profile_arrives_as_it_was_sent(request_message):
    message = Message(wire.profile_content(PROFILE), reply_to=request_message)
    got = wire.read_profile(message)
    assert got.node_id == request_message.metadata.dst_node_id
    assert {**vars(got), "node_id": 0} == vars(PROFILE)


def test_what_a_node_measured_arrives_with_its_profile(request_message):
    tiers = tuple(wire.TierCost(width=w, ms=8 * w, memory_mb=300.5) for w in (0.25, 1.0))
    message = Message(wire.profile_content(replace(PROFILE, tiers=tiers)), reply_to=request_message)
    assert wire.read_profile(message).tiers == tiers


def spoilt_profile(**changes):
    (record,) = wire.profile_content(PROFILE).config_records.values()
    return RecordDict({"profile": ConfigRecord({**record, **changes})})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "not a profile"),
        (RecordDict({"profile": MetricRecord({"partition": 1})}), "not a profile"),
        (RecordDict({"profile": ConfigRecord({"partition": 1})}), "not a profile"),
        (
            spoilt_profile(partition="first"),
            "not a profile: invalid literal",
        ),
        (spoilt_profile(examples=0), "not a profile: 0 examples"),
        (spoilt_profile(**{"test-examples": -1}), "not a profile: 30 examples, -1 test examples"),
        (spoilt_profile(tiers=[0.5]), "not a profile"),
        (
            spoilt_profile(tiers=[0.5], **{"tiers-ms": [float("nan")], "tiers-mb": [1.0]}),
            "not a profile: tiers that are not finite",
        ),
    ],
)
def test_what_is_no_profile_is_rejected(content, reason, request_message):
    with pytest.raises(Rejection, match=reason):
        wire.read_profile(Message(content, reply_to=request_message))


def test_an_error_instead_of_a_profile_is_named_by_its_last_line(request_message):
    message = Message(
        Error(2, "Traceback\n\nFedhetError: capacity = 2\n \n"), reply_to=request_message
    )
    with pytest.raises(Rejection, match=r"^FedhetError: capacity = 2$"):
        wire.read_profile(message)

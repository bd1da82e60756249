"""What a node might send in place of a reply: every way we know, and what hypothesis thinks of."""

import io
import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def npz(array):
    buffer = io.BytesIO()
    np.savez(buffer, vector=array)
    return buffer.getvalue()


def header_of(shape, tail=b""):
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue() + tail


def spoil_one(vector, value):
    spoilt = vector.copy()
    spoilt[len(spoilt) // 2] = value
    return spoilt


VECTORS = {
    "float64": lambda v: v.astype(np.float64),
    "float16": lambda v: v.astype(np.float16),
    "integers": lambda v: v.astype(np.int32),
    "big-endian": lambda v: v.astype(">f4"),
    "complex": lambda v: v.astype(np.complex64),
    "booleans": lambda v: v.astype(bool),
    "text": lambda v: v.astype(str),
    "one short": lambda v: v[:-1],
    "one more": lambda v: np.append(v, np.float32(0)),
    "two axes": lambda v: v[None],
    "no axis": lambda v: np.array(1, np.float32),
    "empty": lambda v: v[:0],
    "NaN": lambda v: spoil_one(v, np.nan),
    "infinite": lambda v: spoil_one(v, -np.inf),
    "all NaN": lambda v: np.full_like(v, np.nan),
}
PAYLOADS = {
    "no bytes": lambda v: b"",
    "cut off": lambda v: npy(v)[:-1],
    "a byte more": lambda v: npy(v) + b"\0",
    "sixteen times the bytes": lambda v: npy(v) * 16,
    "another header": lambda v: npy(v).replace(b"NUMPY", b"NUMPX"),
    "version 2": lambda v: npy(v).replace(b"NUMPY\x01", b"NUMPY\x02"),
    "a huge shape": lambda v: header_of((10**15,), v.tobytes()),
    "other names in the header": lambda v: npy(v).replace(b"descr", b"descX"),
    "float64 in the bytes": lambda v: npy(v.astype(np.float64)),
    "an archive": npz,
    "a pickle": lambda v: b"\x80\x04\x95\x00\x00.",
}
METRICS = {
    "a metric missing": lambda m: {k: x for k, x in m.items() if k != "steps"},
    "a metric too many": lambda m: {**m, "more": 1},
    "another name": lambda m: {**{k: x for k, x in m.items() if k != "loss"}, "lass": 1.0},
    "a list": lambda m: {**m, "loss": [0.5]},
    "an empty list": lambda m: {**m, "steps": []},
    "NaN loss": lambda m: {**m, "loss": math.nan},
    "infinite loss": lambda m: {**m, "loss": -math.inf},
    "loss beyond float32": lambda m: {**m, "loss": 1e300},
    "NaN steps": lambda m: {**m, "steps": math.nan},
    "negative steps": lambda m: {**m, "steps": -1},
    "half a step": lambda m: {**m, "steps": 0.5},
    "steps beyond floats": lambda m: {**m, "steps": 10**400},
    "too many digits to print": lambda m: {**m, "steps": 10**5000},
    "negative seconds": lambda m: {**m, "seconds": -1.0},
    "inflated count": lambda m: {**m, "examples": m["examples"] * 1000},
    "no examples": lambda m: {**m, "examples": 0},
    "negative count": lambda m: {**m, "examples": -m["examples"]},
    "half an example more": lambda m: {**m, "examples": m["examples"] + 0.5},
    "an earlier round": lambda m: {**m, "round": m["round"] - 1},
    "a later round": lambda m: {**m, "round": m["round"] + 1},
    "another partition": lambda m: {**m, "partition": m["partition"] + 1},
}
CONTENTS = {
    "nothing": lambda c: {},
    "one record less": lambda c: dict(list(c.items())[:-1]),
    "no arrays": lambda c: {k: r for k, r in c.items() if not isinstance(r, ArrayRecord)},
    "another record more": lambda c: {**c, "more": next(iter(c.values()))},
    "settings more": lambda c: {**c, "config": ConfigRecord({"text": "", "bytes": b""})},
    "settings in place of arrays": lambda c: {**c, "arrays": ConfigRecord({"x": ""})},
    "metrics in place of arrays": lambda c: {**c, "arrays": MetricRecord({"loss": 1.0})},
    "another record name": lambda c: {f"{k}x": r for k, r in c.items()},
    "a thousand records": lambda c: {**c, **{f"r{i}": MetricRecord() for i in range(1000)}},
    "a name of a megabyte": lambda c: {**c, "x" * 2**20: MetricRecord()},
    "a name of control characters": lambda c: {**c, "\x1b[2J\r\n": MetricRecord()},
}


def replacing(content, **records):
    return RecordDict({**content, **records})


def with_array(content, name, array, key="vector"):
    return replacing(content, **{name: ArrayRecord({key: array})})


def mutations(message, reply):
    """By name, everything that no server may use in the place of an honest reply."""
    content = reply.content
    made = {name: RecordDict(change(dict(content))) for name, change in CONTENTS.items()}
    for name, record in content.array_records.items():
        array = record["vector"]
        vector = array.numpy()
        for case, change in VECTORS.items():
            made[f"{name}: {case}"] = with_array(content, name, Array(change(vector)))
        for case, change in PAYLOADS.items():
            payload = Array("float32", vector.shape, "numpy.ndarray", change(vector))
            made[f"{name}: {case}"] = with_array(content, name, payload)
        other = Array("float32", vector.shape, "torch.tensor", array.data)
        made[f"{name}: another form"] = with_array(content, name, other)
        wide = Array("float32", vector.shape * 1000, "numpy.ndarray", array.data)
        made[f"{name}: a thousand axes"] = with_array(content, name, wide)
        made[f"{name}: another key"] = with_array(content, name, array, key="w")
        two = ArrayRecord({"vector": array, "w": array})
        made[f"{name}: two arrays"] = replacing(content, **{name: two})
        made[f"{name}: no array"] = replacing(content, **{name: ArrayRecord()})
    for name, record in content.metric_records.items():
        for case, change in METRICS.items():
            changed = MetricRecord(change(dict(record)))
            made[f"{name}: {case}"] = replacing(content, **{name: changed})
    replies = {case: Message(each, reply_to=message) for case, each in made.items()}
    replies["an error"] = Message(Error(2, "ValueError: boom"), reply_to=message)
    replies["an error without a reason"] = Message(Error(0, ""), reply_to=message)
    replies["a long reason"] = Message(Error(2, "\x1b[31m" + "x" * 10**6), reply_to=message)
    stranger = Message(content, reply_to=message)
    stranger.metadata.__dict__["_src_node_id"] = 3
    replies["from another node"] = stranger
    return replies


names = st.one_of(
    st.sampled_from(["arrays", "metrics", "config", "control", "diagnostics", "vector", "cluster"]),
    st.text(max_size=9),
)
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, 10**5000]))
metric_records = st.dictionaries(names, st.one_of(numbers, st.lists(st.floats(), max_size=3))).map(
    MetricRecord
)
config_records = st.dictionaries(
    names, st.one_of(numbers, st.booleans(), st.text(max_size=9), st.binary(max_size=9))
).map(ConfigRecord)


@st.composite
def damaged_files(draw):
    array = draw(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_side=5)))
    data = bytearray(npy(array))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


array_records = st.dictionaries(
    names,
    st.builds(
        Array,
        st.sampled_from(["float32", "float32", "float64", "", "O"]),
        st.lists(st.integers(-1, 2**70), max_size=3).map(tuple),
        st.sampled_from(["numpy.ndarray", "numpy.ndarray", "pickle", ""]),
        st.one_of(st.binary(max_size=200), damaged_files()),
    ),
    max_size=2,
).map(ArrayRecord)


def contents(honest):
    """Records of any kind, some of them those of an honest reply."""
    kept = [st.just((name, record)) for name, record in honest.items()]
    anything = st.tuples(names, st.one_of(array_records, metric_records, config_records))
    return st.lists(st.one_of(anything, *kept), max_size=5).map(dict).map(RecordDict)


def profiles():
    """Profiles of the right form, of any values that Flower's format can carry; and refusals."""
    whole = st.integers(-(2**63), 2**63 - 1)
    scalars = st.one_of(
        whole, st.floats(), st.booleans(), st.text(max_size=9), st.binary(max_size=9)
    )
    keys = ("partition", "num-partitions", "examples", "capacity", "code", "device")
    said = st.fixed_dictionaries(dict.fromkeys(keys, scalars))
    refused = st.dictionaries(st.sampled_from(["key", "value", "remedy"]), scalars)
    records = [said.map(lambda p: {"profile": ConfigRecord(p)})]
    records.append(refused.map(lambda r: {"refusal": ConfigRecord(r)}))
    return st.one_of(records).map(RecordDict)


def measurements():
    """Answers to evaluate messages in the right form, of any values."""
    right = {"round": 1, "partition": 2, "examples": 10, "correct": 4, "loss": 0.5}
    said = {key: st.one_of(st.just(value), st.just(value), numbers) for key, value in right.items()}
    return st.fixed_dictionaries(said).map(lambda m: RecordDict({"metrics": MetricRecord(m)}))

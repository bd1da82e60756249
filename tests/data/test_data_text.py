import json
import logging

import datasets
import huggingface_hub
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet_app.data import load_dataset, store, windows
from fedhet_app.errors import FedhetError


def speech(count, seed=0):
    """Text of lower-case letters and spaces."""
    letters = np.random.default_rng(seed).choice(list("abcdefghij klm"), size=count)
    return "".join(letters).replace("  ", "ab").replace("  ", "ab")


def read(rows):
    """Symbols as text again."""
    return ["".join(chr(32 + int(code)) for code in row) for row in rows]


@pytest.fixture
def save(tmp_path, write_parquet):
    def write(texts, names=("role_id", "text"), file="roles.parquet", **extra):
        columns = dict(zip(names, (list(texts), list(texts.values())), strict=True))
        write_parquet(tmp_path / file, columns | extra)
        return tmp_path

    return write


def load(folder, **options):
    return load_dataset("shakespeare", data_dir=str(folder), **options)


def refused(folder, match, **options):
    with pytest.raises(FedhetError, match=match) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)


@settings(max_examples=50)
@given(length=st.integers(0, 1200), stride=st.integers(1, 200), most=st.integers(0, 30))
def test_windows_of_training_and_test_never_share_a_symbol(length, stride, most):
    text = "".join(map(chr, np.random.default_rng(0).integers(32, 127, length)))
    train, test = windows.cut(text, stride, most)
    # 81 symbols at random occur once.
    train_at, test_at = (
        [text.index(window) for window in read(np.c_[part.inputs, part.labels])]
        for part in (train, test)
    )
    end = int(0.8 * length)
    assert all(at + 81 <= end for at in train_at)
    assert test_at == list(range(end, length - 80, stride))
    every = list(range(0, end - 80, stride))
    assert len(train_at) == (min(most, len(every)) if most else len(every))
    assert sorted(set(train_at) & set(every)) == train_at


def test_windows_by_pencil():
    text = "".join(chr(32 + position % 95) for position in range(500))
    train, test = windows.cut(text, 100, 0)
    assert read(train.inputs) == [text[start : start + 80] for start in (0, 100, 200, 300)]
    assert read(train.labels[:, None]) == [text[start + 80] for start in (0, 100, 200, 300)]
    assert read(test.inputs) == [text[400:480]]
    assert train.inputs.dtype == np.uint8
    assert train.labels.dtype == np.int64


def test_the_windows_kept_are_evenly_spread():
    text = "".join(chr(32 + position % 95) for position in range(1000))
    every, test = windows.cut(text, 10, 0)
    assert len(every.labels) == 72
    few, same = windows.cut(text, 10, 4)
    np.testing.assert_array_equal(few.inputs, every.inputs[[0, 18, 36, 54]])
    np.testing.assert_array_equal(same.inputs, test.inputs)
    assert len(windows.cut(text, 10, 100)[0].labels) == 72


def test_every_run_of_whitespace_becomes_one_space():
    assert windows.normalise("a\r\nb\t \nc\u00a0d  e\u2003f") == "a b c d e f"
    assert windows.SYMBOLS[0] + windows.SYMBOLS[-1] == " ~"
    assert len(windows.SYMBOLS) == 95


def test_roles_become_natural_clients_the_longest_first(save):
    texts = {"short": speech(500, 1), "long": speech(900, 2), "b": speech(700, 3)}
    texts["a"] = "x" * 700
    dataset = load(save(texts))
    assert dataset.vocabulary == dataset.num_classes == 95
    assert "".join(dataset.class_names) == windows.SYMBOLS
    assert dataset.input_shape == (80,)
    expected = [len(range(0, int(0.8 * len(texts[role])) - 80, 80)) for role in ("long", "a", "b")]
    counts = np.bincount(dataset.train_groups)
    assert counts.tolist()[:3] == expected
    shown = read(dataset.train.inputs)
    for group, role in enumerate(("long", "a", "b", "short")):
        first = int(np.flatnonzero(dataset.train_groups == group)[0])
        assert shown[first] == texts[role][:80]
    assert dataset.mean.shape == dataset.std.shape == (0,)


def test_twenty_roles_are_the_federation(save):
    texts = {f"r{number:02}": speech(500 + number, number) for number in range(25)}
    dataset = load(save(texts))
    assert len(np.unique(dataset.train_groups)) == 20
    shown = set(read(dataset.train.inputs))
    assert [role for role in texts if texts[role][:80] not in shown] == [
        f"r{number:02}" for number in range(5)
    ]


def test_windows_line_ends_change_nothing(save):
    text = speech(600).replace("a", "\n")
    plain = load(save({"r": text})).fingerprint
    assert load(save({"r": text.replace("\n", "\r\n")})).fingerprint == plain


def test_rows_of_one_role_follow_each_other(save):
    text = speech(600).replace("k", "\n")
    head, _, tail = text.partition("\n")
    folder = save({"r": text})
    whole = load(folder).fingerprint
    columns = {"role_id": ["r", "r"], "text": [head, tail]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "roles.parquet")
    assert load(folder).fingerprint == whole


def test_symbols_outside_the_vocabulary_are_counted_and_shown(save):
    text = speech(600) + "caf\u00e9 na\u00efve caf\u00e9 \u2014"
    refused(
        save({"r": text}),
        r"4 symbols outside printable ASCII: '\u00e9' \(2\), '\u00ef' \(1\), '\u2014' \(1\); repl",
    )
    many = speech(600) + "".join(map(chr, range(0x3B1, 0x3B1 + 14)))
    refused(save({"r": many}), r"14 symbols outside .* and 4 more; replace or remove")


def test_a_role_without_a_window_is_left_out_and_named(save, caplog):
    texts = {"long": speech(600), "tiny": "well met", "empty": ""}
    with caplog.at_level(logging.WARNING, "fedhet"):
        dataset = load(save(texts))
    assert set(dataset.train_groups.tolist()) == {0}
    assert "too short for a window are left out: tiny, empty" in caplog.text


def test_roles_that_are_left_out_are_named_each_time_the_set_is_opened(save, caplog, monkeypatch):
    folder = save({"long": speech(600), "tiny": "well met"})
    load(folder)
    caplog.clear()
    monkeypatch.setattr(store, "write", None)
    with caplog.at_level(logging.WARNING, "fedhet"):
        load(folder)
    assert [record.getMessage() for record in caplog.records] == [
        "roles too short for a window are left out: tiny"
    ]


def test_a_cached_set_that_names_no_roles_left_none_out(save, caplog, own_cache):
    folder = save({"long": speech(600), "tiny": "well met"})
    fingerprint = load(folder).fingerprint
    caplog.clear()
    (path,) = own_cache.glob("datasets/*/meta.json")
    meta = json.loads(path.read_text())
    del meta["left-out"]
    path.write_text(json.dumps(meta))
    assert load(folder).fingerprint == fingerprint
    assert not caplog.records


def test_a_role_without_a_test_window_trains(save, caplog):
    dataset = load(save({"long": speech(600), "middle": speech(200)}))
    assert set(dataset.train_groups.tolist()) == {0, 1}
    assert not caplog.records


def test_no_role_is_long_enough(save):
    refused(
        save({"r": speech(300)}), r"its longest role has 300 symbols; one needs 405 to be split"
    )


def test_405_symbols_are_enough(save):
    dataset = load(save({"r": "x" * 405}))
    assert len(dataset.test.labels) == 1


def test_other_columns_are_listed_with_what_to_do(save):
    folder = save({"r": speech(600)}, names=("speaker", "words"))
    refused(folder, r"has the columns speaker, words; it needs 'role_id' .* 'text' .*: rename")
    refused(save({"r": None}), r"column 'text' has values that are missing or no text")
    refused(save({3: "a"}), r"column 'role_id' has values that are missing or no text")


@pytest.mark.parametrize("kind", [pyarrow.null(), pyarrow.string()])
@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("names", [("role_id", "text"), ("character_id", "x", "y")])
def test_a_table_without_a_role(tmp_path, kind, rows, names):
    table = pyarrow.table({name: pyarrow.nulls(rows, kind) for name in names})
    pyarrow.parquet.write_table(table, tmp_path / "roles.parquet")
    refused(tmp_path, r"data-dir = .*its table holds no roles; set data-dir to a folder of one")


def test_a_folder_without_the_table(tmp_path):
    refused(tmp_path, r"data-dir = .*holds neither roles\*\.parquet nor train\*\.parquet")


def test_stride_and_number_of_windows_are_kept_apart_in_the_cache(save):
    folder = save({"r": speech(2000)})
    sizes = [
        len(load(folder, stride=stride, max_windows_per_client=most).train.labels)
        for stride, most in ((80, 0), (40, 0), (40, 7), (80, 0))
    ]
    assert sizes == [19, 38, 7, 19]


def test_a_subsample_takes_the_roles_along(save):
    dataset = load(save({"a": "x" * 900, "b": "y" * 900}), max_train_examples=5)
    assert ["xy"[group] for group in dataset.train_groups] == [
        row[0] for row in read(dataset.train.inputs)
    ]


def leaf(texts):
    """The windows of stride 1 that LEAF makes of the texts."""
    rows = [
        (role, text[at : at + 80], text[at + 80])
        for role, text in texts.items()
        for at in range(len(text) - 80)
    ]
    return dict(zip(("character_id", "x", "y"), map(list, zip(*rows, strict=True)), strict=True))


def test_windows_of_the_hub_are_put_together_again(save, write_parquet, monkeypatch):
    texts = {"a": speech(600, 1), "b": speech(500, 2).replace("c", "\n")}
    plain = load(save(texts))
    table = datasets.Dataset.from_dict(leaf(texts))
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)

    def give(name):
        assert name == "flwrlabs/shakespeare"
        return datasets.DatasetDict(train=table)

    monkeypatch.setattr(datasets, "load_dataset", give)
    assert load_dataset("shakespeare").fingerprint == plain.fingerprint


def test_windows_in_another_order_are_refused(tmp_path, write_parquet):
    columns = leaf({"a": speech(600, 1)})
    columns = {name: values[::-1] for name, values in columns.items()}
    write_parquet(tmp_path / "train.parquet", columns)
    refused(tmp_path, r"the windows of 'a' do not follow each other")


def test_the_real_roles_are_the_twenty_with_most_text(real_data):
    if not (real_data / "shakespeare").is_dir():
        pytest.skip("FEDHET_DATA has no shakespeare")
    dataset = load_dataset("shakespeare")
    table = pyarrow.parquet.read_table(real_data / "shakespeare" / "roles.parquet").to_pylist()
    most = sorted(table, key=lambda row: -row["chars"])[:20]
    texts = {" ".join(row["text"].replace("\u00a0", " ").split())[:40] for row in most}
    starts = [np.flatnonzero(dataset.train_groups == group)[0] for group in range(20)]
    assert {read(dataset.train.inputs[[start]])[0].strip()[:40] for start in starts} == texts
    assert len(dataset.train.labels) == pytest.approx(5_800, rel=0.02)
    assert dataset.num_classes == 95

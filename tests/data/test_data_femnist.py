from collections import Counter

import datasets
import huggingface_hub
import numpy as np
import pyarrow.parquet
import pytest

from fedhet_app.data import load_dataset
from fedhet_app.data.holdout import every_fifth
from fedhet_app.errors import FedhetError

# Writer a has one image, b four, c eleven; stored as they come, their rows mixed.
WRITERS = list("cbcccbcaccbccccb")
CHARACTERS = [0, 1] * 8


@pytest.fixture
def cells(png):
    return [png(np.full((2, 2), row, dtype=np.uint8)) for row in range(len(WRITERS))]


@pytest.fixture
def save(tmp_path, write_parquet, cells):
    def write(name="train", **columns):
        values = {"image": cells, "writer_id": WRITERS, "hsf_id": [0] * 16, "character": CHARACTERS}
        values = {key: value for key, value in (values | columns).items() if value is not None}
        names = datasets.ClassLabel(names=["x", "y"])
        types = {"image": datasets.Image()} | (
            {"character": names} if "character" in values else {}
        )
        write_parquet(tmp_path / f"{name}.parquet", values, **types)
        return tmp_path

    return write


def load(folder, **options):
    return load_dataset("femnist", data_dir=str(folder), **options)


def rows(split):
    return split.inputs[:, 0, 0, 0].tolist()


def test_of_each_writer_every_fifth_image_is_for_testing(save):
    dataset = load(save())
    of_c = [row for row, writer in enumerate(WRITERS) if writer == "c"]
    assert rows(dataset.test) == [of_c[4], of_c[9]]
    assert sorted(rows(dataset.train) + rows(dataset.test)) == list(range(16))
    assert dataset.test.labels.tolist() == [CHARACTERS[row] for row in rows(dataset.test)]
    assert dataset.class_names == ("x", "y")


def test_a_writer_with_one_image_only_trains(save):
    dataset = load(save())
    counts = np.bincount(dataset.train_groups)
    assert counts.tolist() == [1, 4, 9]
    names = ["abc"[group] for group in dataset.train_groups]
    assert names == [WRITERS[row] for row in rows(dataset.train)]


def test_the_split_does_not_follow_the_seed(save):
    folder = save()
    assert load(folder, seed=1).fingerprint == load(folder, seed=2).fingerprint


def test_a_subsample_takes_the_writers_along(save):
    small = load(save(), max_train_examples=7)
    assert len(small.train_groups) == 7
    names = ["abc"[group] for group in small.train_groups]
    assert names == [WRITERS[row] for row in rows(small.train)]


def test_other_writers_are_another_data_set(save):
    first = load(save()).fingerprint
    renamed = [{"a": "b", "b": "a"}.get(writer, writer) for writer in WRITERS]
    assert load(save(writer_id=renamed)).fingerprint != first


def test_a_test_file_is_taken_where_there_is_one(save):
    dataset = load(save("test") and save())
    assert rows(dataset.train) == rows(dataset.test) == list(range(16))
    assert len(dataset.train_groups) == 16
    folder = save("valid")
    assert rows(load(folder, test_split="valid").test) == list(range(16))


def test_a_split_that_is_asked_for_is_not_made_up(save):
    with pytest.raises(FedhetError, match=r"test-split = 'valid': .*no parquet files"):
        load(save(), test_split="valid")


def test_other_columns_are_listed_with_what_to_do(save):
    with pytest.raises(
        FedhetError,
        match=r"no column 'writer_id' of its clients, only image, hsf_id, character, author;"
        r" whatever the partition, rename the column that tells them apart to 'writer_id'",
    ):
        load(save(writer_id=None, author=WRITERS))
    with pytest.raises(
        FedhetError,
        match=r"label-column = 'character': no such column; .* image, writer_id, hsf_id;"
        " set label-column to one of them",
    ):
        load(save(character=None))
    folder = save(character=None, letter=CHARACTERS)
    assert load(folder, label_column="letter").num_classes == 2
    with pytest.raises(FedhetError, match=r"data-dir = .*: row 0 has no 'writer_id'; fill it in"):
        load(save(writer_id=[None, *WRITERS[1:]]))


@pytest.fixture
def three_writers(tmp_path, write_parquet, png):
    """Three writers, five characters each, the fifth of each for testing: t, t and q."""

    def write(letters="abcdtabcdtbcdaq", types=True):
        names = [chr(97 + number) for number in range(26)]
        columns = {
            "image": [png(np.full((2, 2), row, dtype=np.uint8)) for row in range(15)],
            "writer_id": [writer for writer in "uvw" for _ in range(5)],
            "character": [names.index(letter) for letter in letters] if types else list(letters),
        }
        declared = {"character": datasets.ClassLabel(names=names)} if types else {}
        write_parquet(tmp_path / "train.parquet", columns, image=datasets.Image(), **declared)
        return tmp_path

    return write


def test_the_held_out_images_of_few_writers_need_not_show_every_class(three_writers):
    dataset = load(three_writers())
    assert dataset.num_classes == 26
    assert dataset.test.labels.tolist() == [19, 19, 16]
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 0]


def test_labels_that_are_not_declared_are_numbered_before_the_hold_out(three_writers):
    dataset = load(three_writers(types=False))
    assert dataset.class_names == ("a", "b", "c", "d", "q", "t")
    assert dataset.test.labels.tolist() == [5, 5, 4]
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 0]


def test_a_test_file_of_its_own_must_show_every_class(save):
    save("test", character=[0] * 16)
    with pytest.raises(FedhetError, match=r"test-split = 'test': lacks 'y', which the training"):
        load(save())


def test_a_held_out_label_outside_the_declared_classes_is_refused(save):
    characters = list(CHARACTERS)
    characters[[row for row, writer in enumerate(WRITERS) if writer == "c"][4]] = -1
    with pytest.raises(
        FedhetError, match=r"label-column = 'character': .* labels -1\.\.1, declared"
    ):
        load(save(character=characters))


def test_no_writer_with_five_images(save):
    with pytest.raises(
        FedhetError, match=r"dataset = 'femnist': no client has the five examples .*; add examples"
    ):
        load(save(writer_id=[f"w{row // 4}" for row in range(16)]))


def test_the_hub_has_it_in_one_piece_too(save, monkeypatch):
    folder = save()
    table = datasets.Dataset.from_parquet(str(folder / "train.parquet"))
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)

    def give(name):
        assert name == "flwrlabs/femnist"
        return datasets.DatasetDict(train=table)

    monkeypatch.setattr(datasets, "load_dataset", give)
    assert load_dataset("femnist").fingerprint == load(folder).fingerprint
    with pytest.raises(FedhetError, match=r"test-split = 'valid': .*has no split 'valid'"):
        load_dataset("femnist", test_split="valid")


def test_every_fifth_of_each_group():
    groups = np.array([7, 7, 7, 3, 7, 7, 3, 3, 3, 3, 7, 7, 7, 7, 7])
    expected = [5, 9, 14]
    assert np.flatnonzero(every_fifth(groups)).tolist() == expected
    assert every_fifth(np.empty(0, dtype=np.int64)).tolist() == []


def test_the_real_set_is_what_its_description_says(real_data):
    if not (real_data / "femnist").is_dir():
        pytest.skip("FEDHET_DATA has no femnist")
    dataset = load_dataset("femnist")
    table = pyarrow.parquet.read_table(
        real_data / "femnist" / "train.parquet", columns=["writer_id", "character"]
    )
    writers = Counter(table["writer_id"].to_pylist())
    assert dataset.num_classes == 62
    assert dataset.input_shape == (1, 28, 28)
    assert len(dataset.test.labels) == sum(count // 5 for count in writers.values())
    kept = [count - count // 5 for _, count in sorted(writers.items())]
    assert np.bincount(dataset.train_groups).tolist() == kept
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    assert sorted(labels.tolist()) == sorted(table["character"].to_pylist())

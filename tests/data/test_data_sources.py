import os

import pytest

from fedhet_app.data import sources
from fedhet_app.data.sources import locate
from fedhet_app.errors import FedhetError


def touch(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def parquet(folder):
    return touch(folder, "train.parquet", "test.parquet")


@pytest.fixture(autouse=True)
def debian(tmp_path, monkeypatch):
    folder = tmp_path / "debian"
    monkeypatch.setattr(sources, "DEBIAN_FASHION_MNIST", folder)
    return folder


def idx(folder):
    ends = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    return touch(folder, *(f"{part}-{end}" for part in ("train", "t10k") for end in ends))


def test_each_place_comes_before_the_next(tmp_path, monkeypatch, debian):
    assert locate("fashion-mnist").place == "zalando-datasets/fashion_mnist"
    assert locate("fashion-mnist").kind == "hub"
    idx(debian)
    assert locate("fashion-mnist").place == str(debian)
    assert locate("fashion-mnist").kind == "idx"
    monkeypatch.setenv("FEDHET_DATA", str(tmp_path / "all"))
    found = parquet(tmp_path / "all" / "fashion-mnist")
    assert locate("fashion-mnist").place == str(found)
    named = parquet(tmp_path / "own" / "fashion-mnist")
    source = locate("fashion-mnist", data_dir=str(tmp_path / "own"))
    assert (source.place, source.kind) == (str(named), "parquet")


def test_an_empty_folder_of_the_package_is_passed_over(debian):
    debian.mkdir()
    assert locate("fashion-mnist").kind == "hub"


def test_data_dir_may_be_the_folder_of_the_set_itself(tmp_path):
    assert locate("cifar10", data_dir=str(parquet(tmp_path / "mine"))).place.endswith("mine")


def test_folders_may_be_called_as_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDHET_DATA", str(tmp_path))
    assert locate("fashion-mnist").place == "zalando-datasets/fashion_mnist"
    parquet(tmp_path / "fashion_mnist")
    parquet(tmp_path / "flowers")
    assert locate("fashion-mnist").place == str(tmp_path / "fashion_mnist")
    assert locate("hub:someone/flowers").place == str(tmp_path / "flowers")
    assert locate("hub:someone/trees").place == "someone/trees"


def test_files_of_a_split_are_found_in_both_layouts_and_in_order(tmp_path):
    touch(tmp_path / "a", "train-1.parquet", "train-0.parquet", "training.parquet", "test.parquet")
    source = locate("cifar10", data_dir=str(tmp_path / "a"))
    assert [path.name for path in source.train] == ["train-0.parquet", "train-1.parquet"]
    shards = [f"train-0000{i}-of-00002.parquet" for i in range(2)]
    touch(tmp_path / "b" / "data", *shards, "valid-00000-of-00001.parquet")
    source = locate("cifar10", data_dir=str(tmp_path / "b"), test_split="valid")
    assert [path.name for path in source.train] == shards
    assert [path.name for path in source.test] == ["valid-00000-of-00001.parquet"]


def test_of_two_idx_files_the_plain_one_is_taken(tmp_path):
    touch(idx(tmp_path), "train-images-idx3-ubyte")
    source = locate("cifar10", data_dir=str(tmp_path))
    assert source.train[0].name == "train-images-idx3-ubyte"


def test_digits_need_no_folder(tmp_path):
    assert locate("digits", data_dir=str(tmp_path / "nowhere")).kind == "digits"


@pytest.mark.parametrize("name", ["mnist", "", "hub:", "hub:/"])
def test_an_unknown_name_lists_the_known_ones(name):
    names = "digits, fashion-mnist, cifar10, cifar100, cifar100-20, emnist, femnist, fed-isic2019"
    with pytest.raises(FedhetError, match=rf"dataset = .*{names}, shakespeare, or hub:NAME"):
        locate(name)


def test_folders_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(FedhetError, match=r"data-dir = .*gone': is not a folder"):
        locate("cifar10", data_dir=str(tmp_path / "gone"))
    monkeypatch.setenv("FEDHET_DATA", str(tmp_path / "away"))
    with pytest.raises(FedhetError, match=r"FEDHET_DATA = .*away': is not a folder"):
        locate("cifar10")


def test_folders_that_lack_files(tmp_path):
    def refused(match, **options):
        with pytest.raises(FedhetError, match=match):
            locate("cifar10", data_dir=str(tmp_path), **options)

    refused(r"data-dir = .*holds neither train\*\.parquet")
    touch(tmp_path, "train-images-idx3-ubyte")
    refused(r"has train-images-idx3-ubyte but no train-labels-idx1-ubyte\[\.gz\]; add")
    touch(tmp_path, "train.parquet")
    refused(r"test-split = 'valid': .* has no parquet files of that split", test_split="valid")
    refused(r"test-split = 'test'")
    touch(tmp_path, "test-00001-of-00003.parquet", "test-00002-of-00003.parquet")
    refused(r"has 2 files of split 'test' where their names promise 3; fetch")


def test_the_key_follows_files_and_columns(tmp_path):
    parquet(tmp_path)

    def key(**options):
        return locate("cifar10", data_dir=str(tmp_path), **options).key

    first = key()
    assert first == key()
    assert first != key(image_column="img")
    assert first != key(label_column="img")
    (tmp_path / "test.parquet").write_bytes(b"x")
    second = key()
    assert second != first
    os.utime(tmp_path / "train.parquet", ns=(1, 1))
    assert key() not in (first, second)


def test_the_key_of_the_hub_follows_the_split():
    assert locate("hub:a/b").key != locate("hub:a/b", test_split="valid").key
    assert locate("hub:a/b").key != locate("hub:a/c").key

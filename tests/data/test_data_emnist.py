import datasets
import huggingface_hub
import numpy as np
import pytest

from fedhet_app.data import load_dataset
from fedhet_app.errors import FedhetError

LABELS = np.arange(62).repeat(2)
ENDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


@pytest.fixture
def images(make_images):
    return make_images(len(LABELS), 4, 3)


@pytest.fixture
def save(tmp_path, write_idx, images):
    """Write IDX files as NIST names them, and those of another of its sets."""

    def write(sub="", suffix="", sets=("byclass", "digits")):
        for name in sets:
            shown = images if name == "byclass" else 255 - images
            for part in ("train", "test"):
                start = f"emnist-{name}-{part}-"
                write_idx(tmp_path / sub / f"{start}{ENDS[0]}{suffix}", shown)
                write_idx(tmp_path / sub / f"{start}{ENDS[1]}{suffix}", LABELS)
        return tmp_path

    return write


def load(folder, **options):
    return load_dataset("emnist", data_dir=str(folder), **options)


@pytest.mark.parametrize("sub", ["", "raw", "EMNIST/raw", "gzip"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_by_class_is_found_and_turned_upright(save, images, sub, suffix):
    dataset = load(save(sub, suffix))
    assert dataset.input_shape == (1, 3, 4)
    for split in (dataset.train, dataset.test):
        np.testing.assert_array_equal(split.inputs[..., 0], images.transpose(0, 2, 1))
        np.testing.assert_array_equal(split.labels, LABELS)


def test_classes_are_digits_then_capitals_then_small_letters(save):
    dataset = load(save())
    assert dataset.num_classes == 62
    assert "".join(dataset.class_names) == (
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    )


def test_more_images_than_one_chunk_keep_their_order(tmp_path, write_idx):
    labels = np.resize(np.arange(62), 9000)
    images = np.arange(9000)[:, None, None] % [[251, 241], [239, 233]]
    for part in ("train", "test"):
        write_idx(tmp_path / f"emnist-byclass-{part}-{ENDS[0]}", images)
        write_idx(tmp_path / f"emnist-byclass-{part}-{ENDS[1]}", labels)
    found = load(tmp_path).train.inputs[..., 0]
    np.testing.assert_array_equal(found, images.transpose(0, 2, 1))


def test_a_parquet_folder_is_turned_too(tmp_path, write_parquet, png, images):
    columns = {"image": [png(image) for image in images], "label": LABELS.tolist()}
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", columns, image=datasets.Image())
    found = load(tmp_path).train.inputs[..., 0]
    np.testing.assert_array_equal(found, images.transpose(0, 2, 1))


def test_files_of_another_set_are_not_taken(save):
    match = r"data-dir = .*holds neither train\*\.parquet .* nor emnist-byclass-train-images-idx3"
    with pytest.raises(FedhetError, match=match):
        load(save(sets=["digits"]))
    save()
    with pytest.raises(FedhetError, match=r"test-split = 'valid': .* has no idx files of that"):
        load(save(), test_split="valid")


def test_a_label_beyond_the_classes(save, write_idx):
    folder = save()
    write_idx(folder / f"emnist-byclass-train-{ENDS[1]}", LABELS + 1)
    with pytest.raises(FedhetError, match=r"labels 1\.\.62, declared are 0\.\.61"):
        load(folder)


@pytest.fixture
def hub(monkeypatch, save):
    """A hub that has EMNIST as IDX files, and notes what is fetched."""

    class Hub:
        asked = None
        data = save(suffix=".gz")

        def fetch(self, repo_id, *, repo_type, allow_patterns):
            self.asked = (repo_id, repo_type, allow_patterns)
            if isinstance(self.data, Exception):
                raise self.data
            return str(self.data)

    fake = Hub()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.fetch)
    return fake


def test_the_hub_has_the_same_files(hub, save, images):
    dataset = load_dataset("emnist")
    assert hub.asked == ("Royc30ne/emnist-byclass", "dataset", "emnist-byclass-*-ubyte*")
    np.testing.assert_array_equal(dataset.test.inputs[..., 0], images.transpose(0, 2, 1))
    assert dataset.fingerprint == load(save()).fingerprint


def test_a_hub_that_fails_says_what_to_set(hub):
    hub.data = OSError("far away")
    with pytest.raises(FedhetError, match=r"dataset = 'emnist': .*far away.* set data-dir"):
        load_dataset("emnist")

import numpy as np
import pytest

from fedhet_app.data import load_dataset
from fedhet_app.data.sources import DEBIAN_FASHION_MNIST
from fedhet_app.errors import FedhetError

LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture(params=["", ".gz"])
def folder(request, tmp_path, write_idx, make_images):
    for part, seed in (("train", 1), ("t10k", 2)):
        images = make_images(6, 3, 4, seed=seed)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{request.param}", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{request.param}", LABELS)
    return tmp_path


def load(folder):
    return load_dataset("fashion-mnist", data_dir=str(folder))


def file(folder, start):
    return next(folder.glob(f"{start}*"))


def test_images_and_labels_arrive_as_written(folder, make_images):
    dataset = load(folder)
    np.testing.assert_array_equal(dataset.train.inputs[..., 0], make_images(6, 3, 4, seed=1))
    np.testing.assert_array_equal(dataset.test.inputs[..., 0], make_images(6, 3, 4, seed=2))
    np.testing.assert_array_equal(dataset.train.labels, LABELS)
    assert dataset.train.labels.dtype == np.int64
    assert dataset.input_shape == (1, 3, 4)
    assert dataset.num_classes == 3
    assert dataset.class_names is None


@pytest.mark.parametrize("start", ["train-images", "t10k-labels"])
def test_a_file_cut_short_is_named(folder, start):
    path = file(folder, start)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FedhetError, match=rf"data-dir = .*{start}.*(truncated|cannot be read)"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"no idx at all, but long enough", b"\0\0\x08\x03\0\0"])
def test_a_file_of_something_else_is_named(folder, content):
    file(folder, "train-images").write_bytes(content)
    with pytest.raises(FedhetError, match=r"data-dir = .*train-images.*fetch the file again"):
        load(folder)


def test_a_damaged_gzip_stream_is_named(folder):
    path = file(folder, "train-images")
    content = bytearray(path.read_bytes())
    content[12:20] = b"\xff" * 8
    path.write_bytes(bytes(content))
    with pytest.raises(FedhetError, match=r"data-dir = .*train-images.*fetch the file again"):
        load(folder)


def test_labels_that_do_not_belong_to_the_images(folder, write_idx):
    write_idx(file(folder, "train-labels"), LABELS[:5])
    with pytest.raises(FedhetError, match="5 labels for the 6 images of train-images"):
        load(folder)


def test_test_images_of_another_size(folder, write_idx, make_images):
    write_idx(file(folder, "t10k-images"), make_images(6, 4, 4))
    with pytest.raises(FedhetError, match="differ in size \\(3x4 and 4x4\\)"):
        load(folder)


@pytest.mark.skipif(
    not DEBIAN_FASHION_MNIST.is_dir(), reason="needs Debian's package dataset-fashion-mnist"
)
def test_fashion_mnist_is_what_its_authors_describe():
    dataset = load_dataset("fashion-mnist")
    assert dataset.train.inputs.shape == (60_000, 28, 28, 1)
    assert dataset.test.inputs.shape == (10_000, 28, 28, 1)
    assert np.bincount(dataset.train.labels).tolist() == [6000] * 10
    assert np.bincount(dataset.test.labels).tolist() == [1000] * 10
    # The moments everyone normalises Fashion-MNIST with.
    np.testing.assert_allclose(dataset.mean / 255, [0.2860], atol=5e-5)
    np.testing.assert_allclose(dataset.std / 255, [0.3530], atol=5e-5)

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedhet_app.data import load_dataset


@pytest.fixture
def digits():
    return load_dataset("digits")


def sorted_rows(images):
    return sorted(row.tobytes() for row in images)


def test_digits_are_those_of_scikit_learn(digits):
    ours = np.concatenate([digits.train.inputs, digits.test.inputs])[..., 0]
    theirs = load_digits().images
    assert ours.dtype == np.uint8
    assert sorted_rows(ours) == sorted_rows((theirs * 15).astype(np.uint8))
    assert ours.max() == 240
    assert digits.input_shape == (1, 8, 8)
    assert digits.num_classes == 10


def test_an_image_of_digits_keeps_its_label(digits):
    label_of = {
        (image * 15).astype(np.uint8).tobytes(): label
        for image, label in zip(load_digits().images, load_digits().target, strict=True)
    }
    for split in (digits.train, digits.test):
        found = [label_of[image.tobytes()] for image in split.inputs]
        assert split.labels.tolist() == found


def test_the_split_of_digits_is_stratified(digits):
    train, test = np.bincount(digits.train.labels), np.bincount(digits.test.labels)
    assert (np.abs(test - (train + test) / 5) < 1).all()


def test_the_split_of_digits_does_not_follow_the_seed(digits):
    other = load_dataset("digits", seed=9)
    assert other.fingerprint == digits.fingerprint
    np.testing.assert_array_equal(other.test.inputs, digits.test.inputs)


def test_moments_are_those_of_the_training_set(digits):
    pixels = digits.train.inputs.astype(np.float64)
    assert digits.mean.dtype == digits.std.dtype == np.float32
    np.testing.assert_allclose(digits.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(digits.std, pixels.std(axis=(0, 1, 2)), rtol=1e-6)


def save_idx(folder, write_idx, images, labels):
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.asarray(labels))
    return str(folder)


def test_a_constant_channel_has_deviation_one(tmp_path, write_idx):
    data_dir = save_idx(tmp_path, write_idx, np.full((2, 3, 3), 7), [0, 1])
    dataset = load_dataset("cifar10", data_dir=data_dir)
    assert (dataset.mean, dataset.std) == (7, 1)


def test_colour_moments_by_pencil(tmp_path, write_parquet, png):
    import datasets

    pixels = np.zeros((2, 1, 1, 3), dtype=np.uint8)
    pixels[0, 0, 0] = [10, 0, 200]
    pixels[1, 0, 0] = [20, 0, 100]
    columns = {"image": [png(image) for image in pixels], "label": [0, 1]}
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}.parquet", columns, image=datasets.Image())
    dataset = load_dataset("hub:a/b", data_dir=str(tmp_path))
    assert dataset.mean.tolist() == [15, 0, 150]
    assert dataset.std.tolist() == [5, 1, 50]


def test_the_whole_set_is_mapped_and_not_copied(digits):
    for array in (digits.train.inputs, digits.test.inputs, digits.train.labels):
        assert isinstance(array, np.memmap)
        assert array.filename is not None
    assert isinstance(load_dataset("digits", max_train_examples=10**6).train.inputs, np.memmap)


def test_the_fingerprint_is_of_the_content(tmp_path, write_idx, write_parquet, png, make_images):
    import datasets

    images, labels = make_images(4, 3, 3), [0, 1, 1, 0]
    idx = save_idx(tmp_path / "idx", write_idx, images, labels)
    columns = {"img": [png(image) for image in images], "label": labels}
    for split in ("train", "test"):
        path = tmp_path / "parquet" / f"{split}.parquet"
        write_parquet(path, columns, img=datasets.Image())
    first = load_dataset("cifar10", data_dir=idx)
    second = load_dataset("cifar10", data_dir=str(tmp_path / "parquet"))
    assert first.fingerprint == second.fingerprint
    images[0, 0, 0] ^= 1
    changed = save_idx(tmp_path / "pixel", write_idx, images, labels)
    assert load_dataset("cifar10", data_dir=changed).fingerprint != first.fingerprint
    images[0, 0, 0] ^= 1
    changed = save_idx(tmp_path / "label", write_idx, images, labels[::-1])
    assert load_dataset("cifar10", data_dir=changed).fingerprint == first.fingerprint
    changed = save_idx(tmp_path / "other", write_idx, images, [1, 0, 1, 0])
    assert load_dataset("cifar10", data_dir=changed).fingerprint != first.fingerprint


def test_changed_files_are_decoded_again(tmp_path, write_idx, make_images):
    data_dir = save_idx(tmp_path, write_idx, make_images(2, 3, 3), [0, 1])
    before = load_dataset("cifar10", data_dir=data_dir)
    save_idx(tmp_path, write_idx, make_images(3, 3, 3), [0, 1, 0])
    after = load_dataset("cifar10", data_dir=data_dir)
    assert (len(before.train.labels), len(after.train.labels)) == (2, 3)


def test_a_subsample_keeps_order_labels_and_everything_else(digits):
    small = load_dataset("digits", max_train_examples=200, seed=3)
    assert small.train.inputs.shape == (200, 8, 8, 1)
    whole = [image.tobytes() for image in digits.train.inputs]
    places = [whole.index(image.tobytes()) for image in small.train.inputs]
    assert places == sorted(set(places))
    np.testing.assert_array_equal(small.train.labels, digits.train.labels[places])
    np.testing.assert_array_equal(small.test.inputs, digits.test.inputs)
    np.testing.assert_array_equal(small.mean, digits.mean)
    assert small.num_classes == 10


def test_a_subsample_follows_the_seed(digits):
    def fingerprint(size, seed):
        dataset = load_dataset("digits", max_train_examples=size, seed=seed)
        return dataset.fingerprint, dataset.train.inputs.tobytes()

    assert fingerprint(50, 1) == fingerprint(50, 1)
    others = [fingerprint(50, 1), fingerprint(50, 2), fingerprint(51, 1), fingerprint(0, 1)]
    assert len({name for name, _ in others}) == 4
    assert len({content for _, content in others}) == 4


def test_a_subsample_is_uniform(digits):
    kept = np.zeros(len(digits.train.labels))
    whole = {image.tobytes(): i for i, image in enumerate(digits.train.inputs)}
    for seed in range(40):
        small = load_dataset("digits", max_train_examples=721, seed=seed)
        kept[[whole[image.tobytes()] for image in small.train.inputs]] += 1
    # Each example is kept with probability 1/2: 40 draws have mean 20 and deviation 3.2.
    assert kept.mean() == pytest.approx(20)
    assert kept.std() == pytest.approx(np.sqrt(10), rel=0.1)
    assert kept[:721].mean() == pytest.approx(20, abs=0.5)

from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedhet_app.data import load_dataset
from fedhet_app.data.deal import Dual, deal, draw_pool
from fedhet_app.data.dual import describe_dual, dual_dataset, dual_partition
from fedhet_app.data.sources import DEBIAN_FASHION_MNIST
from fedhet_app.errors import FedhetError

DUAL = Dual(num_clients=8, seed=0)


def sorted_rows(images):
    return sorted(image.tobytes() for image in images)


def merged(source):
    """Images and labels of training set and test set together."""
    splits = (source.train, source.test)
    return tuple(np.concatenate([getattr(s, a) for s in splits]) for a in ("inputs", "labels"))


@pytest.fixture
def digits():
    return load_dataset("digits")


@settings(max_examples=20)
@given(
    labels=st.lists(st.integers(0, 3), min_size=24, max_size=200).map(np.array),
    clients=st.integers(1, 8),
    alpha_inter=st.sampled_from([0.5, 1.0, 50.0]),
    alpha_intra=st.sampled_from([0.01, 2.0, 1e4]),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_image_is_dealt_once(labels, clients, alpha_inter, alpha_intra, seed):
    dual = Dual(num_clients=clients, seed=seed, alpha_inter=alpha_inter, alpha_intra=alpha_intra)
    try:
        train, test, weights = deal(labels, dual)
    except FedhetError as error:
        assert error.key in ("dual.examples", "dual.alpha-inter")
        assert len(labels) < 100 or alpha_inter < 50
        return
    assert sorted([*train.rows, *test.rows]) == list(range(len(labels)))
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert weights.shape == (clients, 2)
    for client in range(clients):
        own, tested = train.groups == client, test.groups == client
        count = own.sum() + tested.sum()
        assert abs(own.sum() - 0.7 * count) <= 0.5
        assert tested.sum() >= 1
        assert set(train.components[own]) == {0, 1}
        original = (train.components[own] == 0).sum() + (test.components[tested] == 0).sum()
        assert original in (1, count - 1) or abs(original - weights[client, 0] * count) <= 0.5
    for hand in (train, test):
        assert (np.diff(hand.groups) >= 0).all()
        assert hand.rows.dtype == hand.groups.dtype == hand.components.dtype == np.int64


def test_clients_differ_in_labels_but_none_exceeds_an_even_share_by_much():
    labels = np.repeat(np.arange(10), 700)
    train, test, _ = deal(labels, replace(DUAL, alpha_inter=0.5))
    sizes = np.bincount(train.groups) + np.bincount(test.groups)
    # The mask closes a client above 875; at most one class of 700 came last.
    assert sizes.max() <= 875 + 700
    histograms = np.zeros((8, 10))
    np.add.at(histograms, (train.groups, labels[train.rows]), 1)
    assert stats.chi2_contingency(histograms).pvalue < 1e-9


def test_components_and_halves_are_drawn_at_random():
    train, _, _ = deal(np.zeros(4000, dtype=np.int64), replace(DUAL, num_clients=1))
    assert stats.kstest(train.rows / 4000, "uniform").pvalue > 0.01
    inverted = train.rows[train.components == 1]
    assert stats.kstest(inverted / 4000, "uniform").pvalue > 0.01
    order = train.components - train.components.mean()
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.06


def test_the_pool_is_a_sorted_subset_of_the_asked_size():
    pool = draw_pool(500, replace(DUAL, examples=60))
    assert len(np.unique(pool)) == 60
    assert (np.diff(pool) > 0).all()
    assert pool.max() > 400
    assert draw_pool(50, replace(DUAL, examples=60)).tolist() == list(range(50))
    assert draw_pool(50, DUAL).tolist() == list(range(50))


def test_labels_and_images_are_those_of_the_set_once_shifts_are_undone(digits):
    # Without tint and shading the inversion alone is left, and no value is cut.
    dual = dual_dataset(digits, replace(DUAL, amplitude=0.0))
    images, labels = merged(digits)
    label_of = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    found = []
    for split, groups, components in (
        (dual.train, dual.train_groups, dual.train_components),
        (dual.test, dual.test_groups, dual.test_components),
    ):
        for image, label, i, c in zip(split.inputs, split.labels, groups, components, strict=True):
            assert (image == image[..., :1]).all()
            original = image[..., :1] if c == 0 else 255 - image[..., :1]
            found.append(original.tobytes())
            assert dual.permutations[i, c].tolist().index(label) == label_of[found[-1]]
    assert sorted(found) == sorted_rows(images)


def test_an_image_of_a_client_is_shifted_by_pencil(digits):
    """Red or blue, top or bottom, left or right in whole levels of 255 * 0.2 = 51 at the edges."""
    plain = dual_dataset(digits, replace(DUAL, amplitude=0.0))
    shifted = dual_dataset(digits, DUAL)
    for client in range(8):
        own = plain.train_groups == client
        before, after = (d.train.inputs[own].astype(int) for d in (plain, shifted))
        blue, bottom, right = (client >> bit & 1 for bit in range(3))
        corner = (7 * bottom, 7 * right)
        strong, weak = (2, 0) if blue else (0, 2)
        for channel, levels in ((strong, 153), (1, 102), (weak, 51)):
            expected = np.minimum(before[:, *corner, channel] + levels, 255)
            np.testing.assert_array_equal(after[:, *corner, channel], expected)


def test_the_amplitude_changes_nothing_but_pixels(digits):
    weak, strong = (dual_dataset(digits, replace(DUAL, amplitude=a)) for a in (0.1, 0.3))
    for name in ("train_groups", "test_groups", "train_components", "permutations"):
        np.testing.assert_array_equal(getattr(weak, name), getattr(strong, name))
    np.testing.assert_array_equal(weak.train.labels, strong.train.labels)
    np.testing.assert_array_equal(weak.test.labels, strong.test.labels)
    assert (weak.train.inputs != strong.train.inputs).any(axis=(1, 2, 3)).all()
    assert weak.fingerprint != strong.fingerprint
    assert dual_partition(weak).fingerprint == dual_partition(strong).fingerprint


def test_another_seed_is_another_division(digits):
    first, second = (dual_dataset(digits, replace(DUAL, seed=seed)) for seed in (1, 2))
    assert first.fingerprint != second.fingerprint
    assert not np.allclose(first.mixing_weights, second.mixing_weights)
    assert np.bincount(first.train_groups).tolist() != np.bincount(second.train_groups).tolist()


def test_what_else_the_data_set_says(digits):
    dual = dual_dataset(digits, replace(DUAL, num_clients=3, examples=600))
    assert dual.input_shape == (3, 8, 8)
    assert (len(dual.train.labels) + len(dual.test.labels), dual.num_classes) == (600, 10)
    assert (dual.mean.tolist(), dual.std.tolist()) == ([127.5] * 3, [127.5] * 3)
    assert dual.mean.dtype == dual.std.dtype == np.float32
    assert dual.class_names is None
    assert dual.permutations.shape == (3, 2, 10)
    first = digits.train.inputs[draw_pool(1797, replace(DUAL, examples=600))[0]]
    middle = dual.shift_example[0, :, 3, 4, 1].astype(int)
    # At row 3 and column 4 of 8 the two shadings cancel, and green has no tint.
    assert middle.tolist() == [first[3, 4, 0], 255 - first[3, 4, 0]]
    assert dual.shift_example.shape == (3, 2, 8, 8, 3)


def test_it_is_mapped_from_the_cache(digits, monkeypatch):
    first = dual_dataset(digits, DUAL)
    monkeypatch.setattr("fedhet_app.data.dual_store.write", None)
    again = dual_dataset(digits, DUAL)
    assert isinstance(again.train.inputs, np.memmap)
    assert again.fingerprint == first.fingerprint
    np.testing.assert_array_equal(again.train.inputs, first.train.inputs)
    np.testing.assert_array_equal(again.test_components, first.test_components)


@pytest.mark.parametrize(
    "change",
    [
        {"num_clients": 7},
        {"seed": 1},
        {"alpha_inter": 0.5},
        {"alpha_intra": 0.5},
        {"amplitude": 0.1},
        {"examples": 1000},
    ],
)
def test_the_cache_tells_options_apart(digits, change):
    first = dual_dataset(digits, DUAL)
    assert dual_dataset(digits, replace(DUAL, **change)).fingerprint != first.fingerprint


def test_it_is_made_the_same_again(digits, monkeypatch, tmp_path):
    first = dual_dataset(digits, DUAL)
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "another"))
    again = dual_dataset(digits, DUAL)
    assert again.train.inputs.filename != first.train.inputs.filename
    assert again.fingerprint == first.fingerprint


def test_a_damaged_entry_is_named(digits):
    Path(dual_dataset(digits, DUAL).train.inputs.filename).write_bytes(b"")
    with pytest.raises(FedhetError, match=r"FEDHET_CACHE = .*dual.*damaged .*delete it"):
        dual_dataset(digits, DUAL)


def test_the_partition_is_the_clients_blocks(digits):
    dual = dual_dataset(digits, DUAL)
    partition = dual_partition(dual)
    assert partition.num_clients == 8
    assert partition.order.tolist() == list(range(len(dual.train.labels)))
    for client in range(8):
        assert set(dual.train_groups[partition.client(client)].tolist()) == {client}
    with pytest.raises(ValueError, match="digits is not divided"):
        dual_partition(digits)


def test_what_is_said_of_a_division_by_pencil(digits):
    """Two clients, two classes: counts are read off the list."""
    small = replace(
        digits,
        num_classes=2,
        train=replace(digits.train, labels=np.array([0, 1, 1, 0, 0])),
        train_groups=np.array([0, 0, 0, 1, 1]),
        train_components=np.array([0, 1, 1, 0, 1]),
        test=replace(digits.test, labels=np.array([1, 0, 0])),
        test_groups=np.array([0, 1, 1]),
        test_components=np.array([1, 1, 0]),
        permutations=np.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]]),
        mixing_weights=np.array([[0.25, 0.75], [0.5, 0.5]]),
    )
    assert describe_dual(small) == {
        "mixing-weights": [[0.25, 0.75], [0.5, 0.5]],
        "component-counts": [[1, 2], [1, 1]],
        "class-histograms-before-shift": [[4, 0], [2, 2]],
    }
    assert describe_dual(digits) == {}


@pytest.mark.parametrize("clients", [9, 20])
def test_more_clients_than_shifts(clients):
    with pytest.raises(FedhetError, match=rf"num-clients = {clients}: .*'dual' shifts 8 clients"):
        Dual(num_clients=clients, seed=0)


@pytest.mark.parametrize("examples", [5, 23])
def test_images_that_do_not_go_round(digits, examples):
    match = rf"dual.examples = {examples}: {examples} images leave some of 8 clients fewer than 3"
    with pytest.raises(FedhetError, match=match):
        dual_dataset(digits, replace(DUAL, examples=examples))


def test_an_alpha_that_starves_clients():
    match = r"dual.alpha-inter = 0.01: no draw left each of 8 clients .*use a larger alpha"
    with pytest.raises(FedhetError, match=match):
        deal(np.zeros(200, dtype=np.int64), replace(DUAL, alpha_inter=0.01))


def test_text_cannot_be_shifted(digits):
    with pytest.raises(FedhetError, match=r"dataset = 'digits': is text; partition = 'dual'"):
        dual_dataset(replace(digits, vocabulary=80), DUAL)


def test_finer_classes_that_are_not_there(digits):
    with pytest.raises(FedhetError, match=r"dual.fine = False: digits has no finer classes"):
        dual_dataset(digits, replace(DUAL, fine=False))


@pytest.fixture
def cifar(tmp_path, write_parquet, png, make_images):
    """Like CIFAR-100: of 6 fine classes those of equal parity are one superclass."""

    def save(without=()):
        for split, count in (("train", 240), ("test", 60)):
            fine = [index % 6 for index in range(count)]
            columns = {
                "img": [png(image) for image in make_images(count, 4, 4, 3, seed=count)],
                "fine_label": fine,
                "coarse_label": [label % 2 for label in fine],
            }
            names = {
                "fine_label": datasets.ClassLabel(names=list("abcdef")),
                "coarse_label": datasets.ClassLabel(names=["even", "odd"]),
            }
            for name in without:
                columns.pop(name), names.pop(name)
            path = tmp_path / "cifar100" / f"{split}.parquet"
            write_parquet(path, columns, img=datasets.Image(), **names)
        return str(tmp_path)

    return save


def test_one_folder_holds_fine_classes_and_superclasses(cifar):
    folder = cifar()
    fine, coarse = (load_dataset(name, data_dir=folder) for name in ("cifar100", "cifar100-20"))
    assert fine.class_names == tuple("abcdef")
    assert coarse.class_names == ("even", "odd")
    assert fine.train.fine is None
    assert coarse.train.fine.tolist() == fine.train.labels.tolist()
    assert coarse.test.fine.tolist() == fine.test.labels.tolist()
    assert coarse.train.labels.tolist() == [index % 2 for index in range(240)]
    assert len({fine.fingerprint, coarse.fingerprint}) == 2
    small = load_dataset("cifar100-20", data_dir=folder, max_train_examples=50)
    assert (small.train.fine % 2 == small.train.labels).all()


def test_superclasses_are_dealt_out_by_fine_classes(cifar):
    source = load_dataset("cifar100-20", data_dir=cifar())
    dual = Dual(num_clients=4, seed=0, alpha_inter=0.3)
    by_fine, by_superclass = (dual_dataset(source, replace(dual, fine=f)) for f in (True, False))
    assert (by_fine.num_classes, by_fine.permutations.shape) == (2, (4, 2, 2))
    fine = load_dataset("cifar100", data_dir=cifar())
    same = dual_dataset(fine, dual)
    np.testing.assert_array_equal(by_fine.train.inputs, same.train.inputs)
    assert (
        np.bincount(by_superclass.train_groups).tolist()
        != np.bincount(by_fine.train_groups).tolist()
    )


def test_a_folder_without_fine_classes(cifar):
    folder = cifar(without=["fine_label"])
    match = r"data-dir = .*has no column 'fine_label' of its finer classes, only img, coarse_label"
    with pytest.raises(FedhetError, match=match):
        load_dataset("cifar100-20", data_dir=folder)


def test_fashion_mnist_is_divided_as_the_paper_has_it():
    if not any(DEBIAN_FASHION_MNIST.glob("train-images*")):
        pytest.skip("needs Fashion-MNIST: apt-get install dataset-fashion-mnist")
    dual = dual_dataset(load_dataset("fashion-mnist"), replace(DUAL, examples=4000))
    assert dual.input_shape == (3, 32, 32)
    assert len(dual.train.labels) + len(dual.test.labels) == 4000
    means = np.array(
        [dual.train.inputs[dual.train_groups == i].mean(axis=(0, 1, 2)) for i in range(8)]
    )
    reds = np.arange(8) % 2 == 0
    assert ((means[:, 0] > means[:, 2]) == reds).all()
    inverted = dual.train_components == 1
    assert dual.train.inputs[inverted].mean() > 1.5 * dual.train.inputs[~inverted].mean()


def test_cifar100_is_what_its_authors_describe(real_data):
    if not (real_data / "cifar100").is_dir():
        pytest.skip("FEDHET_DATA has no cifar100")
    source = load_dataset("cifar100-20")
    assert source.train.inputs.shape == (50_000, 32, 32, 3)
    assert np.bincount(source.train.labels).tolist() == [2500] * 20
    assert np.bincount(source.train.fine).tolist() == [500] * 100
    assert source.class_names[:2] == ("aquatic_mammals", "fish")
    # Each superclass is of five fine classes, whole.
    pairs = np.unique(np.stack([source.train.labels, source.train.fine]), axis=1)
    assert np.bincount(pairs[0]).tolist() == [5] * 20
    dual = dual_dataset(source, replace(DUAL, examples=2000))
    assert dual.permutations.shape == (8, 2, 20)
    assert dual.input_shape == (3, 32, 32)

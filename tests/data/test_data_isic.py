"""Fed-ISIC2019: clients that are given, with test examples of their own; sizes; bad centres."""

import json
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from running import run, tiny
from sklearn.metrics import balanced_accuracy_score

from fedhet_app.config import parse
from fedhet_app.config_checks import NATURAL_IMAGES, ROUTING_METHODS, VOTING_METHODS
from fedhet_app.data import load_dataset
from fedhet_app.data.images import resize
from fedhet_app.data.known import KNOWN, NATURAL
from fedhet_app.errors import FedhetError
from fedhet_app.queries import load_images
from fedhet_app.task import Task
from strategies.panel import accuracies, own_accuracies

NAMES = ["MEL", "NV", "BCC"]
# Centre 7 has two images of one class, centre 9 no test images.
CENTERS = {"train": [3] * 12 + [7] * 2 + [9] * 10, "test": [3] * 6 + [7] * 3}
LABELS = {"train": [0, 1, 2] * 4 + [1] * 2 + [0, 1] * 5, "test": [0, 1, 2] * 2 + [1, 1, 2]}
NATURAL_RUN = {
    "dataset": "fed-isic2019",
    "partition": "natural",
    "num_clients": 3,
    "num_server_rounds": 2,
    "fraction_train": 1.0,
    "max_train_examples": 0,
    "batch_size": 4,
    "embedding": 6,
    "routing__embedding": 8,
    "routing__steps": 2,
    "fedspm__components": 2,
    "fedgmm__dimensions": 4,
}


@pytest.fixture
def save(tmp_path, write_parquet, png):
    """Write both folds; ``test`` replaces columns of the test fold, ``None`` leaves one out."""

    def write(size=(8, 8), test=None):
        folder = tmp_path / "fed-isic2019"
        for part, centers in CENTERS.items():
            pixels = np.random.default_rng(len(part)).integers(0, 256, (len(centers), *size, 3))
            pixels[:, 0, 0, 0] = np.arange(len(centers))
            columns = {
                "image": [png(image) for image in pixels.astype(np.uint8)],
                "center": centers,
                "label": LABELS[part],
            }
            columns |= (test or {}) if part == "test" else {}
            columns = {key: value for key, value in columns.items() if value is not None}
            types = {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
            write_parquet(folder / f"{part}.parquet", columns, **types)
        return folder

    return write


def load(folder, **options):
    return load_dataset("fed-isic2019", data_dir=str(folder), **options)


def rows(split):
    return split.inputs[:, 0, 0, 0].tolist()


def test_both_folds_tell_whose_each_image_is(save):
    dataset = load(save())
    assert rows(dataset.train) == list(range(24))
    assert [[3, 7, 9][group] for group in dataset.train_groups] == CENTERS["train"]
    assert [[3, 7, 9][group] for group in dataset.test_groups] == CENTERS["test"]
    assert dataset.test.labels.tolist() == LABELS["test"]
    assert dataset.class_names == tuple(NAMES)


def test_a_subsample_leaves_the_test_images_with_their_centres(save):
    dataset = load(save(), max_train_examples=9)
    assert len(dataset.train_groups) == 9
    assert dataset.test_groups.tolist() == [0] * 6 + [1] * 3


def test_other_owners_of_the_test_images_are_another_data_set(save):
    first = load(save()).fingerprint
    assert load(save(test={"center": [3] * 5 + [9] * 4})).fingerprint != first


def test_of_femnist_the_held_out_images_are_their_writers(tmp_path, write_parquet, png):
    writers = [*"bbbbbaaaaabbbbb", "c"]
    columns = {
        "image": [png(np.full((2, 2), row, dtype=np.uint8)) for row in range(16)],
        "writer_id": writers,
        "character": [0, 1] * 8,
    }
    write_parquet(tmp_path / "train.parquet", columns, image=datasets.Image())
    dataset = load_dataset("femnist", data_dir=str(tmp_path))
    assert ["abc"[g] for g in dataset.test_groups] == [writers[row] for row in rows(dataset.test)]
    assert np.bincount(dataset.test_groups).tolist() == [1, 2]


def task_of(folder, tmp_path, **options):
    options = {**NATURAL_RUN, "data_dir": str(folder), **options}
    return Task(tiny(tmp_path / "run", **options))


@pytest.mark.parametrize("clients", [2, 3])
def test_a_client_is_tested_on_the_centres_it_trains_on(save, tmp_path, clients):
    task = task_of(save(), tmp_path, num_clients=clients)
    trained = [
        set(task.dataset.train_groups[task.partition.client(i)].tolist()) for i in range(clients)
    ]
    for owner, group in zip(task.test_owners, task.dataset.test_groups, strict=True):
        assert group in trained[owner]
    if clients == 3:
        assert task.test_owners.tolist() == [0] * 6 + [1] * 3


def test_without_a_natural_partition_no_test_image_is_a_clients(save, tmp_path):
    assert task_of(save(), tmp_path, partition="iid").test_owners is None


def test_more_clients_than_centres(save, tmp_path):
    with pytest.raises(FedhetError, match=r"num-clients = 4: the training set has 3 natural cli"):
        task_of(save(), tmp_path, num_clients=4).check()


@pytest.mark.parametrize(
    ("test", "options"),
    [
        ({"center": None}, {}),
        ({"center": [3] * 8 + [5]}, {}),
        ({}, {"max_train_examples": 3, "num_clients": 1, "seed": 0}),
    ],
)
def test_a_test_image_that_is_nobodys(save, tmp_path, test, options):
    folder = save(test=test)
    task = task_of(folder, tmp_path, **options)
    assert task.test_owners is None
    task.check()
    with pytest.raises(
        FedhetError, match=r"dataset = 'fed-isic2019': fedspm must know whose each test example is;"
    ):
        task_of(folder, tmp_path, strategy="fedspm", **options).check()


def test_a_test_image_without_its_centre(save):
    with pytest.raises(FedhetError, match=r"row 8 of the test split has no 'center'; fill it in"):
        load(save(test={"center": [3] * 8 + [None]}))


def test_which_data_sets_a_method_of_personal_models_takes():
    assert set(NATURAL_IMAGES) == {name for name in NATURAL if not KNOWN[name].text}
    for dataset in NATURAL_IMAGES:
        assert parse({"strategy": "fedspm", "partition": "natural", "dataset": dataset}).personal
    for run_config in ({"partition": "iid", "dataset": "femnist"}, {"partition": "natural"}):
        with pytest.raises(
            FedhetError, match=r"use partition = 'dual', or 'natural' with dataset = femnist or fed"
        ):
            parse({"strategy": "fedspm", **run_config})


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", *ROUTING_METHODS, *VOTING_METHODS])
def test_a_poor_centre_trains_and_one_without_test_images_is_not_measured(save, tmp_path, strategy):
    options = {**NATURAL_RUN, "strategy": strategy, "data_dir": str(save())}
    reader = run(tmp_path / "run", **options)
    last, summary = reader.rounds[-1], reader.summary
    assert {row["partition"]: row["examples"] for row in reader.clients} == {0: 12, 1: 2, 2: 10}
    assert set(last["client-accuracy"]) == {"0", "1"}
    own = [last["client-accuracy"][client] for client in "01"]
    assert summary["average-accuracy"] == pytest.approx((12 * own[0] + 2 * own[1]) / 14)
    tests = json.loads((reader.directory / "partition.json").read_text())
    assert tests["test-sizes"] == [6, 3, 0]
    assert tests["test-class-histograms"] == [[2, 2, 2], [0, 2, 1], [0, 0, 0]]
    for name in ("balanced-accuracy", "balanced-average-accuracy"):
        assert 0 <= summary[name] == last[name] <= 1
    assert np.isfinite(summary["final-loss"])


def test_a_global_models_balanced_accuracies(save, tmp_path):
    options = {**NATURAL_RUN, "strategy": "fedavg", "data_dir": str(save())}
    options |= {"capacity-tiers": "1.0", "capacity-probs": "1.0"}
    reader = run(tmp_path / "run", **options)
    task = task_of(options.pop("data_dir"), tmp_path)
    module = task.builder(1.0, task.spec)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in reader.model().items()})
    images, labels = task.test_examples.batch(torch.arange(9))
    said, labels = module.eval()(images).argmax(dim=1).numpy(), labels.numpy()
    assert reader.summary["balanced-accuracy"] == pytest.approx(
        balanced_accuracy_score(labels, said)
    )
    own = [balanced_accuracy_score(labels[at], said[at]) for at in (slice(6), slice(6, 9))]
    assert reader.summary["balanced-average-accuracy"] == pytest.approx((6 * own[0] + own[1]) / 7)


def test_personal_models_balanced_accuracies():
    rng = np.random.default_rng(0)
    labels, said, owners = rng.integers(0, 4, 60), rng.integers(0, 4, 60), rng.integers(0, 3, 60)
    sizes = np.array([5, 1, 2, 9])  # the last client has no test examples
    task = SimpleNamespace(
        dataset=SimpleNamespace(num_classes=6), partition=SimpleNamespace(sizes=sizes)
    )
    system = accuracies(task, labels, said == labels)
    assert system["balanced-accuracy"] == pytest.approx(balanced_accuracy_score(labels, said))
    assert system["accuracy"] == system["system-accuracy"] == np.mean(labels == said)
    hits = {i: (said == labels)[owners == i] for i in range(4)}
    row = own_accuracies(task, owners, labels, hits)
    own = [balanced_accuracy_score(labels[owners == i], said[owners == i]) for i in range(3)]
    assert row["balanced-average-accuracy"] == pytest.approx(np.dot(own, [5, 1, 2]) / 8)


def test_images_are_resized_by_an_antialiased_triangle():
    # The triangle about the centre of the first of two pixels weighs four by 3/4, 3/4, 1/4, 0.
    weights = np.array([[3, 3, 1, 0], [0, 1, 3, 3]]) / 7
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4), dtype=np.uint8)
    small = np.asarray(resize(Image.fromarray(pixels), 2))
    np.testing.assert_allclose(small, weights @ pixels @ weights.T, atol=1)


def test_an_image_size_makes_several_sizes_one(save, tmp_path, write_parquet, png):
    folder = save(size=(8, 12))
    assert load(folder).input_shape == (3, 8, 12)
    dataset = load(folder, image_size=8)
    assert dataset.input_shape == (3, 8, 8)
    np.testing.assert_array_equal(dataset.train.inputs, load(folder).train.inputs[:, :, 2:10])
    assert dataset.fingerprint != load(folder).fingerprint
    columns = {
        "image": [png(np.full((side, side), side, np.uint8)) for side in (4, 6)] * 5,
        "label": [0, 1] * 5,
    }
    for part in ("train", "test"):
        write_parquet(tmp_path / "two" / f"{part}.parquet", columns, image=datasets.Image())
    with pytest.raises(FedhetError, match=r"the images have 2 sizes: .*; set image-size to resize"):
        load_dataset("hub:some/set", data_dir=str(tmp_path / "two"))
    resized = load_dataset("hub:some/set", data_dir=str(tmp_path / "two"), image_size=5)
    assert resized.test.inputs[:, 2, 3, 0].tolist() == [4, 6] * 5


def test_an_image_size_is_for_arrays_too(tmp_path, write_idx, make_images):
    for part in ("train", "t10k"):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", make_images(4, 4, 6))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.array([0, 1, 0, 1]))
    dataset = load_dataset("fashion-mnist", data_dir=str(tmp_path), image_size=4)
    np.testing.assert_array_equal(dataset.train.inputs[..., 0], make_images(4, 4, 6)[:, :, 1:5])
    digits = load_dataset("digits", image_size=16)
    assert digits.input_shape == (1, 16, 16)
    assert (len(digits.train.labels), len(digits.test.labels)) == (1442, 355)


def test_a_query_is_resized_where_the_data_set_is(tmp_path):
    path = tmp_path / "query.png"
    Image.fromarray(np.full((6, 9, 3), 77, dtype=np.uint8)).save(path)
    assert (load_images([path], (4, 4, 3), parse({"image-size": 4})) == 77).all()
    with pytest.raises(FedhetError, match=r"is 9x6, and the model takes 4x4; resize it"):
        load_images([path], (4, 4, 3), parse({}))


def test_text_has_no_image_size():
    text = {"dataset": "shakespeare", "model": "lstm", "image-size": 32}
    with pytest.raises(FedhetError, match=r"image-size = 32: has no effect with dataset = shake"):
        parse(text)
    with pytest.raises(FedhetError, match=r"image-size = -1: must be at least 0"):
        parse({"image-size": -1})


def test_the_real_set_has_flambys_folds(real_data):
    if not (real_data / "fed-isic2019").is_dir():
        pytest.skip("FEDHET_DATA has no fed-isic2019")
    dataset = load_dataset("fed-isic2019", image_size=32)
    assert dataset.input_shape == (3, 32, 32)
    assert dataset.num_classes == 8
    folds = {(3163, 791), (2691, 672), (1807, 452), (655, 164), (351, 88), (9930, 2483)}
    sizes = zip(np.bincount(dataset.train_groups), np.bincount(dataset.test_groups), strict=True)
    found = {(int(train), int(test)) for train, test in sizes}
    assert found <= folds
    assert len(found) >= 5

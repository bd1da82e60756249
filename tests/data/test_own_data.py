"""What a client's own folder may hold, and what is said where it does not fit."""

import os

import numpy as np
import pytest
import torchvision
from PIL import Image

from fedhet_app.data.cache import entry
from fedhet_app.data.holdout import divide
from fedhet_app.data.known import KNOWN
from fedhet_app.data.own import open_own, own_entry
from fedhet_app.errors import FedhetError
from fedhet_app.facts import KNOWN_FACTS, facts_of


def facts(shape, classes=0, names="", size=0):
    return facts_of(
        "own", input_shape=shape, num_classes=classes, class_names=names, image_size=size
    )


def opened(folder, wanted, **options):
    return open_own(own_entry(str(folder), "own", wanted, **options), "own", wanted)


@pytest.fixture
def images(tmp_path, make_images):
    """Two classes in colour, two of three images each, one in a folder deeper down."""
    folder = tmp_path / "images"
    pixels = make_images(5, 6, 8, 3)
    for place, image in zip(("b/1", "b/2", "a/x/0", "a/3", "a/z"), pixels, strict=True):
        path = folder / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    (folder / "a" / "notes.txt").write_text("no image")
    (folder / ".hidden").mkdir()
    return folder


def test_an_image_folder_is_what_torchvision_makes_of_it(images):
    theirs = torchvision.datasets.ImageFolder(images, allow_empty=True)
    theirs.samples = [(path, label) for path, label in theirs.samples if ".hidden" not in path]
    ours = opened(images, facts("3x6x8", names="a,b"))
    names = [theirs.classes[label] for _, label in theirs.samples]
    assert [ours.class_names[label] for label in ours.train.labels] == names
    for row, (path, _) in zip(ours.train.inputs, theirs.samples, strict=True):
        assert np.array_equal(row, np.asarray(Image.open(path).convert("RGB")))
    assert len(ours.test.labels) == 0
    assert ours.input_shape == (3, 6, 8)


def test_classes_have_the_numbers_of_the_run_whichever_are_here(images):
    labels = opened(images, facts("3x6x8", names="z,b,y,a")).train.labels
    assert labels.tolist() == [3, 3, 3, 1, 1]


def test_folders_named_by_numbers_need_no_names(images):
    (images / "a").rename(images / "10")
    (images / "b").rename(images / "2")
    assert opened(images, facts("3x6x8", 11)).train.labels.tolist() == [10, 10, 10, 2, 2]


def test_a_folder_of_test_images_is_the_test_set(images):
    parts = images.parent / "parts"
    parts.mkdir()
    images.rename(parts / "train")
    (parts / "test" / "a").mkdir(parents=True)
    Image.new("RGB", (8, 6), (9, 8, 7)).save(parts / "test" / "a" / "only.png")
    data = opened(parts, facts("3x6x8", names="a,b"))
    assert (len(data.train.labels), data.test.labels.tolist()) == (5, [0])
    assert np.array_equal(data.test.inputs[0], np.full((6, 8, 3), (9, 8, 7)))


def test_a_class_may_be_named_train(images):
    """As one of CIFAR-100's is; its folder holds images, not classes."""
    (images / "b").rename(images / "train")
    data = opened(images, facts("3x6x8", names="a,train"))
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1]


def test_images_are_resized_where_the_run_says_so(images):
    data = opened(images, facts("3x4x4", names="a,b", size=4), image_size=4)
    assert data.train.inputs.shape == (5, 4, 4, 3)


def test_grey_images_become_colour_ones_and_no_other_way_round(images, tmp_path):
    for path in images.rglob("*.png"):
        Image.open(path).convert("L").save(path)
    data = opened(images, facts("3x6x8", names="a,b"))
    assert np.array_equal(data.train.inputs[..., 0], data.train.inputs[..., 2])
    assert opened(images, facts("1x6x8", names="a,b")).train.inputs.shape == (5, 6, 8, 1)


def idx_folder(folder, write_idx, images, labels, train="train", **test):
    write_idx(folder / f"{train}-images-idx3-ubyte.gz", images)
    write_idx(folder / f"{train}-labels-idx1-ubyte.gz", labels)
    for name, (more, numbers) in test.items():
        write_idx(folder / f"{name}-images-idx3-ubyte", more)
        write_idx(folder / f"{name}-labels-idx1-ubyte", numbers)


@pytest.mark.parametrize("name", ["t10k", "test"])
def test_idx_files_are_read_as_they_are(name, tmp_path, write_idx, make_images):
    pixels, labels = make_images(6, 9, 7), np.array([2, 0, 2, 3, 3, 0])
    idx_folder(tmp_path, write_idx, pixels[:4], labels[:4], **{name: (pixels[4:], labels[4:])})
    data = opened(tmp_path, facts("1x9x7", 5))
    assert np.array_equal(data.train.inputs[..., 0], pixels[:4])
    assert np.array_equal(data.test.inputs[..., 0], pixels[4:])
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([2, 0, 2, 3], [3, 0])
    colour = opened(tmp_path, facts("3x9x7", 5))
    assert np.array_equal(colour.train.inputs, pixels[:4, :, :, None].repeat(3, axis=3))


def test_parquet_files_are_read_by_names_or_numbers(tmp_path, write_parquet, png, make_images):
    import datasets

    pixels = make_images(3, 5, 5, 3)
    columns = {"img": [png(image) for image in pixels], "label": [0, 2, 1]}
    kinds = {"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "eel"])}
    write_parquet(tmp_path / "train.parquet", columns, **kinds)
    by_name = opened(tmp_path, facts("3x5x5", names="eel,dog,ant,cat"))
    assert by_name.train.labels.tolist() == [3, 0, 1]
    assert np.array_equal(by_name.train.inputs, pixels)
    kinds["label"] = datasets.Value("int64")
    write_parquet(tmp_path / "train.parquet", columns, **kinds)
    assert opened(tmp_path, facts("3x5x5", 3)).train.labels.tolist() == [0, 2, 1]


CSV = "age,label,dose\n1.5,b,2\n-3,a,0.25\n7,b,1e3\n"


def test_a_table_of_numbers_is_taken_as_it_is(tmp_path):
    (tmp_path / "patients.csv").write_text(CSV)
    data = opened(tmp_path, facts("2", names="a,b"))
    assert data.columns == ("age", "dose")
    assert data.train.inputs.dtype == np.float32
    assert data.train.inputs.tolist() == [[1.5, 2], [-3, 0.25], [7, 1000]]
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.input_shape == (2,)


def test_a_test_table_may_have_its_columns_in_another_order(tmp_path):
    (tmp_path / "train.csv").write_text(CSV)
    (tmp_path / "test.csv").write_text("dose,age,label\n4,5,a\n")
    data = opened(tmp_path, facts("2", names="a,b"))
    assert (data.test.inputs.tolist(), data.test.labels.tolist()) == ([[5, 4]], [0])


def test_numbered_labels_of_any_column(tmp_path):
    (tmp_path / "a.csv").write_text("x,kind\n1,2\n2,0\n")
    data = opened(tmp_path, facts("1", 3), label_column="kind")
    assert data.train.labels.tolist() == [2, 0]


BAD_CSV = {
    "too many columns": (
        CSV.replace("dose", "dose,more").replace("\n1", ",1\n1"),
        "CSV with a head",
    ),
    "another number of columns": ("a,label\n1,a\n", "has 1 columns of features, .* takes 2"),
    "text": ("a,b,label\n1,x,a\n", "column 'b' holds string, not numbers"),
    "a gap": ("a,b,label\n1,2,a\n3,,b\n", "row 2 has no finite number in column 'b'"),
    "infinity": ("a,b,label\n1,inf,a\n", "row 1 has no finite number in column 'b'"),
    "too large for float32": ("a,b,label\n1,1e300,a\n", "row 1 has no finite number"),
    "no label": ("a,b,label\n1,2,a\n1,2,\n", "has classes ''; the run's are a, b"),
    "a numbered label too many": ("a,b,label\n1,2,3\n", "has classes 3 to 3, .* takes 0 to 1"),
    "real labels": ("a,b,label\n1,2,0.5\n", "holds double, neither whole numbers nor text"),
    "no rows": ("a,b,label\n", "has no rows"),
    "a name twice": ("a,a,label\n1,2,a\n", "several columns of one name"),
    "nothing": ("", "cannot be read as CSV"),
    "no label column": ("a,b\n1,2\n", "cannot be guessed; set it to one of the columns a, b"),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_a_table_that_does_not_fit_is_refused(case, tmp_path):
    text, remedy = BAD_CSV[case]
    (tmp_path / "rows.csv").write_text(text)
    refused(tmp_path, facts("2", names="a,b"), remedy)


def refused(folder, wanted, remedy, key=None, **options):
    with pytest.raises(FedhetError, match=remedy) as caught:
        opened(folder, wanted, **options)
    assert caught.value.key in ({key} if key else {"data-path", "label-column"})
    assert len(str(caught.value).splitlines()) == 1


def test_images_that_do_not_fit_are_refused(images):
    refused(images, facts("3x6x9", names="a,b"), "images of 6x8, and the run takes 6x9; resize")
    refused(images, facts("1x6x8", names="a,b"), "images in colour, and the run takes grey ones")
    refused(images, facts("3x6x8", names="a,c"), "has classes 'b'; the run's are a, c; rename")
    refused(images, facts("3x6x8", 2), "has classes 'a', 'b'; the run has numbers alone")
    refused(images, facts("8", 2), "holds images, and the run takes rows of 8 numbers")
    (images / "a").rename(images / "7")
    (images / "b").rename(images / "0")
    refused(images, facts("3x6x8", 7), "has classes 0 to 7, and the run takes 0 to 6")


def test_images_of_several_sizes_need_one_to_be_resized_to(images):
    Image.new("RGB", (9, 9)).save(images / "a" / "3.png")
    refused(images, facts("3x6x8", names="a,b"), "2 sizes: .* set image-size to resize them")


def test_an_image_that_does_not_open_is_named(images):
    (images / "a" / "3.png").write_bytes(b"no image")
    refused(images, facts("3x6x8", names="a,b"), r"a/3\.png does not decode .*; replace or remove")
    (images / "a" / "3.png").unlink()
    cut = (images / "a" / "z.png").read_bytes()[:60]
    (images / "a" / "z.png").write_bytes(cut)
    refused(images, facts("3x6x8", names="a,b"), r"a/z\.png does not decode .*; replace or remove")


def test_idx_files_that_do_not_fit_are_refused(tmp_path, write_idx, make_images):
    pixels = make_images(3, 4, 4)
    idx_folder(tmp_path, write_idx, pixels, np.array([0, 1]))
    refused(tmp_path, facts("1x4x4", 2), "2 labels for the 3 images")
    idx_folder(tmp_path, write_idx, pixels, np.array([0, 1, 2]))
    refused(tmp_path, facts("1x4x4", 2), "has classes 0 to 2, and the run takes 0 to 1")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"\0\0\x08\x03")
    refused(tmp_path, facts("1x4x4", 3), "cannot be read")
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    refused(tmp_path, facts("1x4x4", 3), "no train-labels")


def test_declared_classes_that_a_label_is_outside_of_are_refused(tmp_path, png, make_images):
    import datasets
    import pyarrow.parquet

    kinds = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    table = datasets.Dataset.from_dict(
        {"img": [png(make_images(4, 4))], "label": [1]}, features=kinds
    )
    table.to_parquet(tmp_path / "train.parquet")
    whole = pyarrow.parquet.read_table(tmp_path / "train.parquet")
    spoilt = whole.set_column(1, whole.schema.field("label"), pyarrow.array([5]))
    pyarrow.parquet.write_table(spoilt, tmp_path / "train.parquet")
    refused(tmp_path, facts("1x4x4", names="a,b"), "has classes 5 to 5, and declares 0 to 1")


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda folder: None, "holds no data; put there folders of images"),
        (lambda folder: folder.rmdir(), "is not a folder"),
        (lambda folder: (folder / "cat").mkdir(), "holds no data"),
        (
            lambda folder: [(folder / f"{name}.csv").write_text(CSV) for name in "ab"],
            "holds 2 CSV files; name the one to train on train.csv",
        ),
        (
            lambda folder: [(folder / "a.csv").write_text(CSV), (folder / "train.parquet").touch()],
            "holds parquet and csv; leave one",
        ),
        (
            lambda folder: (folder / "train-00000-of-00002.parquet").touch(),
            "has 1 files of split 'train' where their names promise 2",
        ),
        (lambda folder: (folder / "train.parquet").touch(), "cannot be read .*fetch the file"),
    ],
)
def test_a_folder_without_usable_data_is_refused(make, remedy, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    make(folder)
    refused(folder, facts("3x4x4", 2), remedy, "data-path")


def test_a_relative_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("data", facts("3x4x4", 2), "the node config's data-path is an absolute path")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_refused(images):
    images.chmod(0)
    refused(images, facts("3x6x8", names="a,b"), "cannot be read .Permission denied")


def test_data_are_decoded_once_and_again_when_they_change(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    wanted = facts("2", names="a,b")
    first = own_entry(str(tmp_path), "own", wanted)
    written = (first / "train-inputs.npy").stat().st_mtime_ns
    assert own_entry(str(tmp_path), "own", wanted) == first
    assert (first / "train-inputs.npy").stat().st_mtime_ns == written
    (tmp_path / "a.csv").write_text(CSV + "8,a,8\n")
    second = own_entry(str(tmp_path), "own", wanted)
    assert second != first
    assert open_own(second, "own", wanted).train.inputs[-1].tolist() == [8, 8]


def test_what_is_refused_leaves_nothing_in_the_cache(images):
    refused(images, facts("3x6x8", 2), "has classes")
    assert not list(entry("own", "own", "x").parent.glob("*"))


FACTS = [
    ("digits", {}, (1, 8, 8), 10),
    ("fashion-mnist", {}, (1, 28, 28), 10),
    ("cifar100-20", {}, (3, 32, 32), 20),
    ("cifar10", {"image_size": 64}, (3, 64, 64), 10),
    ("fed-isic2019", {"image_size": 50}, (3, 50, 50), 8),
    ("own", {"input_shape": "30", "num_classes": 4}, (30,), 4),
    ("own", {"input_shape": "1x5x6", "class_names": "a, b ,c"}, (1, 5, 6), 3),
]
NOTHING = {"input_shape": "", "num_classes": 0, "class_names": "", "image_size": 0}


@pytest.mark.parametrize(("name", "options", "shape", "classes"), FACTS)
def test_the_facts_are_those_known_or_those_given(name, options, shape, classes):
    found = facts_of(name, **{**NOTHING, **options})
    assert (found.input_shape, found.num_classes) == (shape, classes)
    assert found.class_names in (None, ("a", "b", "c"))


def test_every_set_of_images_that_has_a_name_has_its_facts():
    assert set(KNOWN_FACTS) == {"digits", *(name for name in KNOWN if not KNOWN[name].text)}
    named = {name: known.class_names for name, known in KNOWN.items() if known.class_names}
    assert named == {"emnist": KNOWN_FACTS["emnist"].class_names}


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "cifar10", "cifar100", "cifar100-20"])
def test_the_facts_known_are_those_of_the_real_data(name, real_data):
    from fedhet_app.data import load_dataset

    real, found = load_dataset(name), facts_of(name, **NOTHING)
    assert (real.input_shape, real.num_classes) == (found.input_shape, found.num_classes)


@pytest.mark.parametrize(
    ("name", "options", "key", "remedy"),
    [
        ("own", {}, "input-shape", "set it to channels x height x width"),
        ("own", {"input_shape": "2x4x4", "num_classes": 3}, "input-shape", "channels x height"),
        ("own", {"input_shape": "3x4", "num_classes": 3}, "input-shape", "channels x height"),
        ("own", {"input_shape": "0", "num_classes": 3}, "input-shape", "30 numbers"),
        ("own", {"input_shape": "4"}, "num-classes", "2 or more, or name them by class-names"),
        ("own", {"input_shape": "4", "num_classes": 1}, "num-classes", "2 or more"),
        ("own", {"input_shape": "4", "class_names": "a"}, "num-classes", "2 or more"),
        ("own", {"input_shape": "4", "class_names": "a,,b"}, "class-names", "none empty"),
        ("own", {"input_shape": "4", "class_names": "a,a"}, "class-names", "each different"),
        (
            "own",
            {"input_shape": "4", "num_classes": 3, "class_names": "a,b"},
            "class-names",
            "has 2 names for the 3 classes",
        ),
        (
            "own",
            {"input_shape": "3x8x9", "num_classes": 3, "image_size": 8},
            "image-size",
            "does not make the input-shape 3x8x9",
        ),
        ("own", {"input_shape": "9", "num_classes": 3, "image_size": 9}, "image-size", "does not"),
        ("cifar10", {"class_names": "a,b"}, "class-names", "has 2 names for the 10 classes"),
        ("fed-isic2019", {}, "image-size", "differ in size"),
        ("shakespeare", {}, "dataset", "is text, and clients' own data are images or rows"),
        ("hub:a/b", {}, "dataset", "is not known.*or 'own'"),
    ],
)
def test_facts_that_are_missing_or_contradict_each_other_are_refused(name, options, key, remedy):
    with pytest.raises(FedhetError, match=remedy) as caught:
        facts_of(name, **{**NOTHING, **options})
    assert caught.value.key == key


@pytest.mark.parametrize(("count", "held"), [(1, 0), (4, 0), (5, 1), (11, 2)])
def test_a_fraction_is_held_out_and_nothing_is_lost(count, held):
    rows = np.arange(count)[::-1] * 3
    kept, test = divide(rows, 0.2, np.random.default_rng(1))
    assert len(test) == held
    assert sorted([*kept, *test]) == sorted(rows)
    assert all(np.diff(part).max(initial=-1) < 0 for part in (kept, test))

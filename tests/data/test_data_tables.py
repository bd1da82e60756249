import io

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from fedhet_app.data import load_dataset
from fedhet_app.errors import FedhetError

IMAGE = datasets.Image()


def classes(*names):
    return datasets.ClassLabel(names=list(names))


@pytest.fixture
def save(tmp_path, write_parquet, png):
    """Write both splits: ``save(images, labels, **types)`` with images as arrays or cells."""

    def write(images, labels, *, test=None, names=("image", "label"), extra=(), **types):
        cells = [cell if isinstance(cell, dict) else png(cell) for cell in images]
        for split, values in (("train", labels), ("test", labels if test is None else test)):
            columns = {names[0]: (cells * 9)[: len(values)], names[1]: values}
            columns.update({name: [1] * len(values) for name in extra})
            write_parquet(tmp_path / f"{split}.parquet", columns, **{names[0]: IMAGE, **types})
        return tmp_path

    return write


def load(folder, **options):
    return load_dataset("hub:some/set", data_dir=str(folder), **options)


def refused(folder, match, **options):
    with pytest.raises(FedhetError, match=match) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)


def test_colour_images_arrive_as_written(save, make_images):
    images = make_images(4, 5, 6, 3)
    dataset = load(save(list(images), [0, 1, 1, 0], label=classes("cat", "dog")))
    np.testing.assert_array_equal(dataset.train.inputs, images)
    np.testing.assert_array_equal(dataset.train.labels, [0, 1, 1, 0])
    assert dataset.input_shape == (3, 5, 6)
    assert dataset.class_names == ("cat", "dog")


def test_grey_images_stay_grey(save, make_images):
    images = make_images(3, 4, 4)
    dataset = load(save(list(images), [0, 1, 0]))
    np.testing.assert_array_equal(dataset.train.inputs, images[..., None])


def test_black_and_white_and_transparent_grey_count_as_grey(save, png, make_images):
    checks = np.indices((4, 4)).sum(axis=0) % 2 * 255
    cells = [png(checks.astype(np.uint8), "1"), png(make_images(1, 4, 4)[0], "LA")]
    images = load(save(cells, [0, 1])).train.inputs
    np.testing.assert_array_equal(images[0, ..., 0], checks)
    np.testing.assert_array_equal(images[1, ..., 0], make_images(1, 4, 4)[0])


def test_palettes_and_transparency_become_three_channels(save, png):
    red = np.zeros((2, 2, 3), dtype=np.uint8)
    red[..., 0] = 255
    dataset = load(save([png(red, "P"), png(red, "RGBA")], [0, 1]))
    np.testing.assert_array_equal(dataset.train.inputs, np.stack([red, red]))


def test_one_colour_image_gives_all_of_them_three_channels(save, make_images):
    grey, colour = make_images(1, 4, 4)[0], make_images(1, 4, 4, 3)[0]
    images = load(save([grey, colour], [0, 1])).train.inputs
    np.testing.assert_array_equal(images[0], np.repeat(grey[..., None], 3, axis=-1))
    np.testing.assert_array_equal(images[1], colour)


def test_photographs_are_turned_as_their_camera_says(save, png):
    wide = Image.new("L", (16, 8))
    exif = Image.Exif()
    exif[0x0112] = 6
    cell = png(wide, form="JPEG", exif=exif)
    assert load(save([cell, cell], [0, 1])).input_shape == (1, 16, 8)


def test_more_images_than_one_chunk_keep_their_order(save, png, tmp_path, write_parquet):
    cells = [png(np.full((1, 1), value % 251, dtype=np.uint8)) for value in range(1500)]
    columns = {"image": cells, "label": [0, 1] * 750}
    write_parquet(tmp_path / "train.parquet", columns, image=IMAGE)
    write_parquet(tmp_path / "test.parquet", columns, image=IMAGE)
    assert load(tmp_path).train.inputs.ravel().tolist() == [value % 251 for value in range(1500)]


def test_shards_are_joined_in_order(save, write_parquet, png, make_images):
    folder = save(list(make_images(2, 3, 3)), [0, 1])
    (folder / "train.parquet").unlink()
    for shard in range(3):
        cells = [png(image) for image in make_images(2, 3, 3, seed=shard)]
        name = f"train-0000{shard}-of-00003.parquet"
        write_parquet(folder / name, {"image": cells, "label": [0, 1]}, image=IMAGE)
    expected = np.concatenate([make_images(2, 3, 3, seed=shard) for shard in range(3)])
    np.testing.assert_array_equal(load(folder).train.inputs[..., 0], expected)


def test_a_folder_named_like_a_partition_adds_no_column(save, make_images, tmp_path):
    save(list(make_images(2, 3, 3)), [0, 1])
    folder = tmp_path / "label=7"
    folder.mkdir()
    for split in ("train", "test"):
        (tmp_path / f"{split}.parquet").rename(folder / f"{split}.parquet")
    assert load(folder).train.labels.tolist() == [0, 1]


def test_files_without_types_are_read_too(tmp_path, png, make_images):
    cells = [png(image) for image in make_images(3, 2, 2)]
    table = pyarrow.table({"picture": cells, "label": ["b", "a", "b"]})
    for split in ("train", "test"):
        pyarrow.parquet.write_table(table, tmp_path / f"{split}.parquet")
    dataset = load(tmp_path)
    np.testing.assert_array_equal(dataset.train.inputs[..., 0], make_images(3, 2, 2))
    assert dataset.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("values", "expected", "names"),
    [
        ([2, 0, 1, 0], [2, 0, 1, 0], None),
        ([30, 7, 9, 7], [2, 0, 1, 0], ("7", "9", "30")),
        ([-1, 1, -1, 1], [0, 1, 0, 1], ("-1", "1")),
        (["b", "a", "c", "a"], [1, 0, 2, 0], ("a", "b", "c")),
        ([True, False, True, True], [1, 0, 1, 1], None),
    ],
)
def test_labels_are_numbered_in_their_sorted_order(save, make_images, values, expected, names):
    test = values[:3]
    dataset = load(save(list(make_images(4, 2, 2)), values, test=test))
    assert dataset.train.labels.tolist() == expected
    assert dataset.test.labels.tolist() == expected[:3]
    assert dataset.num_classes == len(set(values))
    assert dataset.class_names == names


def test_declared_classes_keep_their_numbers(save, make_images):
    dataset = load(save(list(make_images(2, 2, 2)), [2, 0], label=classes("a", "b", "c")))
    assert dataset.train.labels.tolist() == [2, 0]
    assert dataset.num_classes == 3


def test_columns_are_guessed(save, make_images):
    images = list(make_images(2, 2, 2))
    folder = save(images, [1, 0], names=("img", "species"), species=classes("a", "b"))
    assert load(folder).class_names == ("a", "b")
    assert load(save(images, ["x", "y"], names=("image", "Label_Text"))).class_names == ("x", "y")


def test_columns_that_cannot_be_guessed(save, make_images):
    images = list(make_images(2, 2, 2))
    two = save(images, [0, 1], names=("image", "fine_label"), extra=["coarse_label"])
    refused(two, r"label-column = '': cannot be guessed; .*image, fine_label, coarse_label")
    assert load(two, label_column="fine_label").num_classes == 2
    listed = "no such column; the columns are image, fine_label, coarse_label; set"
    refused(two, f"image-column = 'img': {listed} image-column to one of", image_column="img")
    refused(two, f"label-column = 'kind': {listed} label-column to one of", label_column="kind")
    both = {"image_column": "fine_label", "label_column": "fine_label"}
    refused(two, r"image-column = 'fine_label': holds no", **both)


@pytest.mark.parametrize("values", [[0, None], [0.5, 1.5], [[0], [1]], ["a", None]])
def test_labels_that_are_no_classes(save, make_images, values):
    refused(save(list(make_images(2, 2, 2)), values), "label-column = 'label': has values")


def test_images_of_several_sizes(save, make_images):
    folder = save([make_images(1, 2, 3)[0], make_images(1, 2, 2)[0]], [0, 1])
    refused(folder, r"image-column = 'image': .*2 sizes: 3x2 \(2 images\), 2x2 \(2 images\)")


def test_images_of_sixteen_bits(save, png):
    deep = png(np.full((2, 2), 40_000, dtype=np.uint16))
    refused(save([deep, deep], [0, 1]), "mode I;16 have more than 8 bits; convert")


@pytest.mark.parametrize("keep", [0, 20, 200])
def test_images_that_do_not_decode(save, png, make_images, keep):
    good = png(make_images(1, 16, 16)[0])
    bad = {"bytes": good["bytes"][:keep], "path": None}
    folder = save([good, bad], [0, 1])
    refused(folder, r"image-column = 'image': image 1 of the train split of .* does not decode")


def save_cells(folder, cells):
    table = pyarrow.table({"image": cells, "label": [0, 1]})
    for split in ("train", "test"):
        pyarrow.parquet.write_table(table, folder / f"{split}.parquet")
    return folder


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (None, "image 1 of the train split of .*"),
        ({"bytes": None, "path": "nowhere.png"}, "nowhere.png"),
    ],
)
def test_an_image_that_is_missing(tmp_path, png, make_images, bad, named):
    folder = save_cells(tmp_path, [png(make_images(1, 2, 2)[0]), bad])
    refused(folder, f"image-column = 'image': {named} does not decode")


def test_an_image_is_read_from_its_path(tmp_path, make_images):
    Image.fromarray(make_images(1, 2, 2)[0]).save(tmp_path / "a.png")
    cell = {"bytes": None, "path": str(tmp_path / "a.png")}
    images = load(save_cells(tmp_path, [cell, cell])).train.inputs
    np.testing.assert_array_equal(images[0, ..., 0], make_images(1, 2, 2)[0])


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_parquet_file_that_is_cut_short_or_empty_is_named(save, make_images, split):
    folder = save(list(make_images(2, 8, 8)), [0, 1])
    path = folder / f"{split}.parquet"
    content = path.read_bytes()
    for damaged in (content[:-40], b"", content[:200]):
        path.write_bytes(damaged)
        refused(folder, rf"data-dir = .*{split}\.parquet': cannot be read")


def test_a_parquet_file_with_damaged_pages_is_named(save, make_images):
    folder = save(list(make_images(2, 8, 8)), [0, 1])
    content = bytearray((folder / "train.parquet").read_bytes())
    content[4:60] = b"\xff" * 56
    (folder / "train.parquet").write_bytes(bytes(content))
    refused(folder, r"data-dir = .*train\.parquet': cannot be read")


def test_a_test_set_of_other_classes(save, make_images, write_parquet, png):
    images = list(make_images(3, 2, 2))
    refused(save(images, [0, 1, 1], test=[0, 2]), r"test-split = 'test': its labels 2 do not occur")
    refused(save(images, [0, 1, 2], test=[1, 1, 1]), r"test-split = 'test': lacks 0, 2, which the")
    declared = save(images, [0, 1, 2], test=[0, 1], label=classes("a", "b", "c"))
    refused(declared, r"test-split = 'test': lacks 'c', which the training set has; name a split")
    folder = save(images, [0, 1, 0], label=classes("a", "b"))
    columns = {"image": [png(images[0])], "label": [0]}
    for types in ({"label": classes("b", "a")}, {}):
        write_parquet(folder / "test.parquet", columns, image=IMAGE, **types)
        refused(folder, r"test-split = 'test': has other class names")
    write_parquet(folder / "test.parquet", {"image": [png(images[0])], "label": ["0"]}, image=IMAGE)
    refused(folder, r"labels of another type")


def test_a_training_set_without_labels(save, make_images):
    folder = save(list(make_images(2, 2, 2)), [-1, -1], label=classes("a", "b"))
    refused(folder, r"label-column = .*labels -1\.\.-1, declared are 0\.\.1; name another")


def test_an_empty_split(save, make_images):
    folder = save(list(make_images(2, 2, 2)), [0, 1], test=[], label=datasets.Value("int64"))
    refused(folder, r"dataset = 'hub:some/set': its split 'test' is empty")


def test_a_test_split_without_the_columns(save, make_images, write_parquet, png):
    folder = save(list(make_images(2, 2, 2)), [0, 1])
    write_parquet(folder / "test.parquet", {"image": [png(make_images(1, 2, 2)[0])]}, image=IMAGE)
    refused(folder, r"label-column = 'label': missing from the test split, which has image")
    write_parquet(folder / "test.parquet", {"label": [0]})
    refused(folder, r"image-column = 'image'")


def test_cifar10_is_what_its_authors_describe(real_data):
    if not (real_data / "cifar10").is_dir():
        pytest.skip("FEDHET_DATA has no cifar10")
    dataset = load_dataset("cifar10")
    assert dataset.train.inputs.shape == (50_000, 32, 32, 3)
    assert dataset.test.inputs.shape == (10_000, 32, 32, 3)
    assert np.bincount(dataset.train.labels).tolist() == [5000] * 10
    assert dataset.class_names[:3] == ("airplane", "automobile", "bird")
    # The moments everyone normalises CIFAR-10 with.
    np.testing.assert_allclose(dataset.mean / 255, [0.4914, 0.4822, 0.4465], atol=2e-3)
    np.testing.assert_allclose(dataset.std / 255, [0.2470, 0.2435, 0.2616], atol=3e-3)


def test_a_real_column_type_survives(real_data):
    if not (real_data / "fed-isic2019").is_dir():
        pytest.skip("FEDHET_DATA has no fed-isic2019")
    test = pyarrow.parquet.read_table(real_data / "fed-isic2019" / "test.parquet")
    first = Image.open(io.BytesIO(test["image"][0].as_py()["bytes"]))
    dataset = load_dataset("hub:someone/fed-isic2019")
    np.testing.assert_array_equal(dataset.test.inputs[0], np.asarray(first.convert("RGB")))
    assert dataset.test.labels.tolist() == test["label"].to_pylist()

import numpy as np
import torch
from running import model_bytes, run
from torchvision.transforms import functional

from fedhet_app.augmentation import CropFlip, crop_flip
from fedhet_app.training import Images


def some_images(count=6, side=9, channels=3):
    shape = (count, side, side, channels)
    pixels = np.random.default_rng(3).integers(1, 256, size=shape, dtype=np.uint8)
    return torch.from_numpy(pixels)


def by_torchvision(image, top, left, flip):
    moved = functional.pad(image.permute(2, 0, 1), [4])
    moved = functional.crop(moved, top, left, *image.shape[:2])
    return (functional.hflip(moved) if flip else moved).permute(1, 2, 0)


def test_a_crop_and_a_flip_are_those_of_torchvision():
    pixels = some_images()
    top, left = torch.tensor([0, 4, 8, 1, 4, 7]), torch.tensor([4, 4, 0, 8, 3, 2])
    flips = torch.tensor([False, True, False, True, False, True])
    changed = crop_flip(pixels, top, left, flips)
    for i, image in enumerate(pixels):
        expected = by_torchvision(image, int(top[i]), int(left[i]), bool(flips[i]))
        assert torch.equal(changed[i], expected)


def test_every_shift_and_both_sides_are_drawn():
    marked = torch.zeros((4000, 9, 9, 1), dtype=torch.uint8)
    marked[:, 4, 4] = 255  # stays inside whatever the crop
    labels = torch.zeros(4000, dtype=torch.int64)
    one, zero = torch.ones(1), torch.zeros(1)
    images = Images(pixels=marked, labels=labels, scale=one, shift=zero)
    drawn = CropFlip(images=images, rng=np.random.default_rng(1))
    inputs, _ = drawn.batch(torch.arange(4000))
    places = inputs.flatten(1).argmax(dim=1)
    counts = torch.bincount(places, minlength=81)
    # 81 places, uniform: 4000 / 81 each, five standard deviations around it.
    assert counts.min() > 4000 / 81 - 5 * (4000 / 81) ** 0.5
    assert counts.max() < 4000 / 81 + 5 * (4000 / 81) ** 0.5


def test_the_option_changes_a_run_and_runs_alike_give_the_same_bits(tmp_path):
    plain = run(tmp_path / "plain")
    one, two = (run(tmp_path / name, augment="crop-flip") for name in ("one", "two"))
    assert model_bytes(one) == model_bytes(two)
    assert model_bytes(one) != model_bytes(plain)

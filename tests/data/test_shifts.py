import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedhet_app.data.shifts import (
    client_offset,
    draw_permutations,
    shift_images,
    to_colour,
)

# Amplitude 0.2 of 255 levels is 51; of a 3x3 image the middle row and column are left as they are.
RED, BLUE = [51, 0, -51], [-51, 0, 51]
TOP, BOTTOM = [51, 0, -51], [-51, 0, 51]
LEFT, RIGHT = [51, 0, -51], [-51, 0, 51]


@pytest.mark.parametrize(
    ("client", "tint", "vertical", "horizontal"),
    [
        (0, RED, TOP, LEFT),
        (1, BLUE, TOP, LEFT),
        (2, RED, BOTTOM, LEFT),
        (3, BLUE, BOTTOM, LEFT),
        (4, RED, TOP, RIGHT),
        (5, BLUE, TOP, RIGHT),
        (6, RED, BOTTOM, RIGHT),
        (7, BLUE, BOTTOM, RIGHT),
    ],
)
def test_the_bits_of_a_client_are_tint_vertical_and_horizontal(client, tint, vertical, horizontal):
    offset = client_offset(client, 3, 3, 0.2)
    for row, column, channel in np.ndindex(3, 3, 3):
        expected = tint[channel] + vertical[row] + horizontal[column]
        assert offset[row, column, channel] == expected


def test_shading_is_linear_from_edge_to_edge():
    green = client_offset(0, 5, 2, 0.1)[..., 1]
    # 25.5 levels times 1, .5, 0, -.5, -1 down the rows, and +-25.5 over the columns.
    assert green[:, 0].tolist() == [51, 38, 26, 13, 0]
    assert green[:, 1].tolist() == [0, -13, -26, -38, -51]


def test_an_amplitude_of_nothing_shifts_nothing():
    assert not any(client_offset(client, 4, 4, 0.0).any() for client in range(8))


@pytest.mark.parametrize(
    ("component", "grey", "expected"),
    [
        (0, True, [10, 100, 250]),
        (0, False, [10, 100, 250]),
        (1, True, [245, 155, 5]),
        (1, False, [10, 155, 250]),
    ],
)
def test_component_one_inverts_grey_images_and_the_green_of_others(component, grey, expected):
    image = np.array([10, 100, 250], dtype=np.uint8).reshape(1, 1, 1, 3)
    none = np.zeros((1, 1, 3), dtype=np.int16)
    shifted = shift_images(image, np.array([component]), offset=none, grey=grey)
    assert shifted.ravel().tolist() == expected


def test_the_client_follows_the_component_and_values_are_cut():
    images = np.array([0, 60, 250], dtype=np.uint8).reshape(1, 1, 1, 3).repeat(2, axis=0)
    offset = np.array([-40, 100, 30], dtype=np.int16).reshape(1, 1, 3)
    before = images.copy()
    shifted = shift_images(images, np.array([0, 1]), offset=offset, grey=True)
    # 255 - 0 - 40, 255 - 60 + 100 cut to 255, 255 - 250 + 30.
    assert shifted[:, 0, 0].tolist() == [[0, 160, 255], [215, 255, 35]]
    assert shifted.dtype == np.uint8
    np.testing.assert_array_equal(images, before)


def test_every_image_has_its_own_component(make_images):
    images, components = make_images(20, 4, 4, 3), np.arange(20) % 3 // 2
    offset = client_offset(5, 4, 4, 0.3)
    together = shift_images(images, components, offset=offset, grey=False)
    for index in range(20):
        one = slice(index, index + 1)
        alone = shift_images(images[one], components[one], offset=offset, grey=False)
        np.testing.assert_array_equal(together[one], alone)


def test_images_of_28_become_those_of_pillow_at_32(make_images):
    images = make_images(3, 28, 28, 1)
    enlarged = to_colour(images)
    assert enlarged.shape == (3, 32, 32, 3)
    for image, ours in zip(images, enlarged, strict=True):
        theirs = Image.fromarray(image[..., 0]).resize((32, 32), Image.Resampling.BILINEAR)
        # Pillow rounds after each of the two directions.
        assert np.abs(ours[..., 0].astype(int) - np.asarray(theirs)).max() <= 1
        np.testing.assert_array_equal(ours, ours[..., :1].repeat(3, axis=-1))


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (28, 30, 1)])
def test_images_of_other_sizes_keep_theirs(make_images, shape):
    images = make_images(2, *shape)
    expected = images.repeat(3 // shape[-1], axis=-1)
    np.testing.assert_array_equal(to_colour(images), expected)


@settings(max_examples=30)
@given(clients=st.integers(1, 8), classes=st.integers(1, 12), seed=st.integers(0, 2**31 - 1))
def test_permutations_are_bijections_that_fewer_clients_share(clients, classes, seed):
    permutations = draw_permutations(clients, classes, seed)
    assert permutations.shape == (clients, 2, classes)
    assert (np.sort(permutations, axis=-1) == np.arange(classes)).all()
    np.testing.assert_array_equal(permutations, draw_permutations(8, classes, seed)[:clients])


def test_each_component_of_each_client_has_a_permutation_of_its_own():
    permutations = draw_permutations(8, 20, 0).reshape(16, 20)
    assert len(np.unique(permutations, axis=0)) == 16
    assert (permutations != draw_permutations(8, 20, 1).reshape(16, 20)).any(axis=1).all()

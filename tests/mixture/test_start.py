import numpy as np
import pytest

from fedhet_app.errors import FedhetError
from fedhet_app.mixture.start import kmeans_responsibilities
from fedhet_app.seeding import rng_for


def blobs(per_blob=15):
    """Three well separated blobs of bytes, in order."""
    rng = np.random.default_rng(0)
    centres = np.array([[20, 20, 20, 20], [120, 230, 20, 120], [230, 20, 230, 230]])
    noise = rng.integers(-10, 11, size=(3, per_blob, 4))
    return (centres[:, None] + noise).reshape(-1, 4).astype(np.uint8)


def clusters(pixels, components=3, client=0):
    return kmeans_responsibilities(pixels, components, rng_for(0, "clusters", client))


def test_separated_blobs_are_told_apart():
    w = clusters(blobs())
    assert w.dtype == np.float32
    assert w.shape == (45, 3)
    assert set(np.unique(w)) == {0, 1}
    assert (w.sum(axis=1) == 1).all()
    by_blob = w.reshape(3, 15, 3).mean(axis=1)
    assert sorted(map(tuple, by_blob)) == [(0, 0, 1), (0, 1, 0), (1, 0, 0)]


def test_equal_generators_give_equal_clusters_and_leave_the_global_one_alone():
    pixels = np.random.default_rng(1).integers(256, size=(60, 5), dtype=np.uint8)
    state = np.random.get_state()[1].copy()
    np.testing.assert_array_equal(clusters(pixels), clusters(pixels))
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_one_component_takes_everything():
    assert clusters(blobs(), components=1).tolist() == [[1.0]] * 45


def test_fewer_distinct_images_than_components_are_refused():
    pixels = np.repeat(blobs(1)[:2], 10, axis=0)
    with pytest.raises(FedhetError, match=r"fedspm\.components = 3: a client has only 2 distinct"):
        clusters(pixels)
    assert clusters(pixels, components=2).sum(axis=0).tolist() == [10, 10]

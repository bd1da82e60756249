import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cityblock

from fedhet_app.data import Partition, describe, label_histograms, total_variation
from fedhet_app.data.skew import describe_tests


def test_total_variation_by_pencil():
    # Pooled: (5, 3, 0) / 8.  |1 - 5/8| + 3/8 = 6/8, halved 3/8; |1/4 - 5/8| + |3/4 - 3/8|.
    histograms = np.array([[4, 0, 0], [1, 3, 0]])
    np.testing.assert_allclose(total_variation(histograms), [3 / 8, 3 / 8])


def test_clients_with_one_class_each():
    np.testing.assert_allclose(total_variation(np.eye(4, dtype=np.int64) * 7), [0.75] * 4)


def test_clients_in_the_same_proportions_are_no_distance_apart():
    histograms = np.array([[1, 2, 3], [10, 20, 30]])
    np.testing.assert_allclose(total_variation(histograms), [0, 0], atol=1e-15)


rows = st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any)


@given(st.lists(rows, min_size=1, max_size=6).map(np.array))
def test_total_variation_is_half_the_manhattan_distance(histograms):
    pooled = np.sum(histograms, axis=0) / np.sum(histograms)
    expected = [cityblock(row / sum(row), pooled) / 2 for row in histograms]
    found = total_variation(histograms)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (found >= 0).all()
    assert (found <= 1).all()


def test_the_description_is_json_and_complete():
    labels = np.array([0, 1, 1, 0])
    partition = Partition(order=np.array([2, 0, 1, 3]), offsets=np.array([0, 1, 4]))
    description = describe(partition, label_histograms(partition, labels, 2))
    assert json.loads(json.dumps(description)) == description
    assert description["fingerprint"] == partition.fingerprint
    assert description["sizes"] == [1, 3]
    assert description["indices"] == [[2], [0, 1, 3]]
    assert description["class-histograms"] == [[0, 1], [2, 1]]
    np.testing.assert_allclose(description["total-variation"], [0.5, 1 / 6])


def test_the_test_examples_of_the_clients_are_counted_by_class():
    owners, labels = np.array([2, 0, 2, 2]), np.array([1, 0, 1, 0])
    assert describe_tests(owners, labels, (3, 2)) == {
        "test-sizes": [1, 0, 3],
        "test-class-histograms": [[1, 0], [0, 0], [1, 2]],
    }
    assert describe_tests(None, labels, (3, 2)) == {}

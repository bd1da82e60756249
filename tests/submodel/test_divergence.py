import numpy as np
import pytest

from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.submodel.divergence import divergence, rescale, smooth


def test_divergence_by_hand():
    """Two parameters and one buffer; deltas (2, 4) and (-1) give a mean of (0.5, 4)."""
    before = np.array([1, 1, 5], dtype=np.float32)
    updates = [
        Update(index=None, values=np.array([3, 5, 99], dtype=np.float32), weight=1.0),
        Update(index=np.array([0, 2]), values=np.array([0, -7], dtype=np.float32), weight=1.0),
    ]
    found = divergence(updates, before, aggregate(before, updates), num_params=2, eps=0.0)
    np.testing.assert_allclose(found, [2.25 / 16.25, 2.25 / 0.25])


def test_divergence_weighs_the_mean_by_examples():
    before = np.zeros(1, np.float32)
    updates = [
        Update(index=None, values=np.array([4], dtype=np.float32), weight=3.0),
        Update(index=None, values=np.array([0], dtype=np.float32), weight=1.0),
    ]
    found = divergence(updates, before, aggregate(before, updates), num_params=1)
    np.testing.assert_allclose(found, [1 / 9, 1.0], rtol=1e-6)


def test_a_client_alone_and_a_client_that_did_not_move_diverge_by_zero():
    before = np.ones(3, np.float32)
    moved = [Update(index=np.array([1]), values=np.array([4], dtype=np.float32), weight=2.0)]
    still = [Update(index=None, values=before, weight=2.0)]
    assert divergence(moved, before, aggregate(before, moved), num_params=3).tolist() == [0]
    assert divergence(still, before, aggregate(before, still), num_params=3).tolist() == [0]
    assert divergence([], before, aggregate(before, []), num_params=3).shape == (0,)


def test_smoothing_moves_only_the_observed_clients():
    estimates = np.array([1.0, 1.0, 2.0])
    found = smooth(estimates, np.array([6.0, 0.0]), np.array([2, 0]), beta=0.9)
    np.testing.assert_allclose(found, [0.9, 1.0, 2.4])
    assert estimates.tolist() == [1, 1, 2]


def test_rescaling_gives_unit_mean():
    estimates = np.array([1.0, 2.0, 6.0])
    found = rescale(estimates)
    assert found.mean() == pytest.approx(1)
    np.testing.assert_allclose(found / found[0], [1, 2, 6])
    assert estimates.tolist() == [1, 2, 6]


def test_estimates_without_a_scale_stay_zero():
    assert rescale(np.zeros(2)).tolist() == [0, 0]

import numpy as np
import pytest

from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.submodel.divergence import divergence, leave_one_out, rescale, smooth


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


def test_leaving_one_out_by_hand():
    """Weights 1, 2, 1; coordinate 1 is trained by two, coordinate 2 by the first alone."""
    before = np.array([1, 1, 1, 7], dtype=np.float32)
    updates = [
        Update(index=None, values=np.array([3, 5, 9, 50], dtype=np.float32), weight=1.0),
        Update(index=np.array([0, 3]), values=np.array([2, 8], dtype=np.float32), weight=2.0),
        Update(index=np.array([0, 1]), values=np.array([5, 2], dtype=np.float32), weight=1.0),
    ]
    found = leave_one_out(updates, before, aggregate(before, updates), num_params=3, eps=0.0)
    first = ((2 - 2) ** 2 + (4 - 1) ** 2) / (2**2 + 1**2)  # others: (2 * 1 + 4) / 3 and 1
    second = (1 - 3) ** 2 / 3**2  # others: (2 + 4) / 2
    third = ((4 - 4 / 3) ** 2 + (1 - 4) ** 2) / ((4 / 3) ** 2 + 4**2)
    np.testing.assert_allclose(found, [first, second, third])


def test_leaving_one_out_needs_another_client():
    before = np.zeros(2, np.float32)
    apart = [
        Update(index=np.array([0]), values=np.ones(1, np.float32), weight=3.0),
        Update(index=np.array([1]), values=np.ones(1, np.float32), weight=3.0),
    ]
    assert np.isnan(leave_one_out(apart, before, aggregate(before, apart), num_params=2)).all()


def test_the_common_core_is_all_that_is_measured():
    before = np.zeros(4, np.float32)
    updates = [
        Update(index=None, values=np.array([4, 2, 100, 9], dtype=np.float32), weight=1.0),
        Update(index=np.array([0, 1]), values=np.array([0, 2], dtype=np.float32), weight=1.0),
    ]
    core = np.array([0, 1, 3])  # 3 is a buffer
    after = aggregate(before, updates)
    found = divergence(updates, before, after, num_params=3, eps=0.0, core=core)
    np.testing.assert_allclose(found, [4 / 8, 4 / 8])


def contributors(rng, caps, signal, dims=(400, 400, 400, 400)):
    """Updates ``signal`` + noise on nested blocks: identical data whatever the capacity."""
    before = np.zeros(sum(dims), np.float32)
    ends = np.cumsum(dims)
    common = rng.normal(size=sum(dims)) * signal
    updates = []
    for cap in caps:
        size = ends[round(cap * 4) - 1]
        values = (common[:size] + rng.normal(size=size)).astype(np.float32)
        updates.append(Update(index=np.arange(size), values=values, weight=1.0))
    return updates, before, aggregate(before, updates)


def test_without_any_skew_only_the_core_does_not_measure_capacity():
    """Spec 1.5: the paper's estimate follows capacity although all clients' data are alike."""
    rng = np.random.default_rng(5)
    caps = np.repeat([0.25, 0.5, 0.75, 1.0], 5)
    paper, core = [], []
    for _ in range(20):
        updates, before, after = contributors(rng, caps, signal=0.3)
        paper.append(np.corrcoef(divergence(updates, before, after, 1600), caps)[0, 1])
        at_core = divergence(updates, before, after, 1600, core=np.arange(400))
        core.append(np.corrcoef(at_core, caps)[0, 1])
    assert np.mean(paper) < -0.8
    assert abs(np.mean(core)) < 4 / np.sqrt(20 * 17)  # four standard errors of the mean r

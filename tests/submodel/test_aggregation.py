import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.submodel.aggregation import Update, aggregate

SIZE = 23


def bits(vector):
    return vector.view(np.uint32)


@st.composite
def rounds(draw):
    """Draw a vector and up to six updates of random slices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    vector = rng.normal(size=SIZE).astype(np.float32)
    updates = []
    for kept in draw(st.lists(st.integers(0, SIZE), max_size=6)):
        index = None if kept == SIZE else np.sort(rng.choice(SIZE, kept, replace=False))
        values = rng.normal(size=kept).astype(np.float32)
        updates.append(Update(index=index, values=values, weight=float(rng.integers(1, 500))))
    return vector, updates


def positions(update):
    return np.arange(SIZE) if update.index is None else update.index


@given(rounds())
def test_equals_a_slow_double_loop_over_deltas(case):
    vector, updates = case
    result = aggregate(vector, updates)
    for j in range(SIZE):
        total = weight = 0.0
        for update in updates:
            for position, value in zip(positions(update), update.values, strict=True):
                if position == j:
                    total += update.weight * (float(value) - float(vector[j]))
                    weight += update.weight
        delta = total / weight if weight else 0.0
        assert result.covered[j] == (weight > 0)
        assert result.mean_delta[j] == pytest.approx(delta, abs=1e-13)
        assert result.vector[j] == pytest.approx(float(vector[j]) + delta, rel=1e-7, abs=1e-7)


@given(rounds())
def test_what_nobody_trained_keeps_every_bit_and_the_rest_stays_in_range(case):
    vector, updates = case
    result = aggregate(vector, updates)
    low, high = np.full(SIZE, np.inf), np.full(SIZE, -np.inf)
    for update in updates:
        where = positions(update)
        low[where] = np.minimum(low[where], update.values)
        high[where] = np.maximum(high[where], update.values)
    covered = low <= high
    np.testing.assert_array_equal(covered, result.covered)
    np.testing.assert_array_equal(bits(result.vector)[~covered], bits(vector)[~covered])
    assert not result.mean_delta[~covered].any()
    assert (low[covered] <= result.vector[covered]).all()
    assert (result.vector[covered] <= high[covered]).all()


@given(rounds(), st.randoms(use_true_random=False))
def test_order_of_clients_does_not_matter(case, random):
    vector, updates = case
    shuffled = random.sample(updates, len(updates))
    one, other = aggregate(vector, updates), aggregate(vector, shuffled)
    np.testing.assert_allclose(one.mean_delta, other.mean_delta, rtol=0, atol=1e-12)

    def by_content(update):
        return (update.weight, update.values.tobytes(), positions(update).tobytes())

    one = aggregate(vector, sorted(updates, key=by_content))
    other = aggregate(vector, sorted(shuffled, key=by_content))
    np.testing.assert_array_equal(bits(one.vector), bits(other.vector))


@given(rounds())
def test_replies_that_equal_what_was_sent_change_no_bit(case):
    vector, updates = case
    vector[:3] = [-0.0, 0.0, np.float32(1e-45)]
    echoes = [Update(index=u.index, values=vector[positions(u)], weight=u.weight) for u in updates]
    result = aggregate(vector, echoes)
    np.testing.assert_array_equal(bits(result.vector), bits(vector))


def test_full_width_is_the_fedavg_formula():
    rng = np.random.default_rng(0)
    vector = rng.normal(size=SIZE).astype(np.float32)
    clients = rng.normal(size=(4, SIZE)).astype(np.float32)
    examples = np.array([10.0, 1.0, 7.0, 30.0])
    updates = [
        Update(index=None, values=w, weight=n) for w, n in zip(clients, examples, strict=True)
    ]
    expected = np.average(clients.astype(np.float64), axis=0, weights=examples)
    result = aggregate(vector, updates)
    np.testing.assert_array_equal(result.vector, expected.astype(np.float32))
    assert result.covered.all()


def test_a_whole_slice_is_the_same_as_no_index():
    rng = np.random.default_rng(1)
    vector, values = rng.normal(size=(2, SIZE)).astype(np.float32)
    whole = aggregate(vector, [Update(index=None, values=values, weight=3.0)])
    index = np.arange(SIZE)
    sliced = aggregate(vector, [Update(index=index, values=values, weight=3.0)])
    np.testing.assert_array_equal(bits(whole.vector), bits(sliced.vector))


def test_overlap_by_hand_and_arguments_untouched():
    vector = np.array([1, 1, 1], dtype=np.float32)
    updates = [
        Update(index=np.array([0]), values=np.array([4], dtype=np.float32), weight=1.0),
        Update(index=np.array([0, 1]), values=np.array([2, 3], dtype=np.float32), weight=2.0),
    ]
    result = aggregate(vector, updates)
    np.testing.assert_array_equal(result.vector, np.float32([8 / 3, 3, 1]))
    np.testing.assert_allclose(result.mean_delta, [5 / 3, 2, 0])
    assert vector.tolist() == [1, 1, 1]
    assert updates[1].values.tolist() == [2, 3]


def test_updates_that_do_not_fit_are_refused():
    vector, short = np.zeros(3, np.float32), np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=r"update of shape \(1,\), expected \(3,\)"):
        aggregate(vector, [Update(index=None, values=short, weight=1.0)])
    with pytest.raises(ValueError, match=r"update of shape \(1,\), expected \(2,\)"):
        aggregate(vector, [Update(index=np.array([0, 1]), values=short, weight=1.0)])
    with pytest.raises(ValueError, match=r"update of weight 0.0, expected a positive one"):
        aggregate(vector, [Update(index=None, values=vector, weight=0.0)])

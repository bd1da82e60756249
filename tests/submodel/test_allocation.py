import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.seeding import rng_for
from fedhet_app.submodel.allocation import (
    draw_capacities,
    fjord_widths,
    has_fl_widths,
    random_budget_widths,
    uniform_widths,
)
from fedhet_app.submodel.divergence import rescale

TIERS = (0.25, 0.5, 0.75, 1.0)
PROBS = (0.25, 0.4, 0.2, 0.15)
PAPER = {"p_min": 0.4, "gamma": 0.25}

cap_lists = st.lists(st.floats(0.1, 1), min_size=1, max_size=12).map(np.array)


def estimates_for(caps):
    return st.lists(st.floats(0.01, 50), min_size=caps.size, max_size=caps.size).map(np.array)


def test_figure_one_of_the_paper():
    caps, estimates = np.array([0.3, 0.8, 0.5]), np.array([2.1, 0.3, 1.2])
    on = has_fl_widths(caps, estimates, coverage=True, **PAPER)
    off = has_fl_widths(caps, estimates, coverage=False, **PAPER)
    assert on.tolist() == [0.3, 0.8, 0.5]
    np.testing.assert_allclose(off, [0.3, 0.4625, 0.5], atol=1e-8)


@pytest.mark.parametrize(("cap", "ratio"), [(1.0, 2.4), (0.75, 1.4), (0.5, 0.4)])
def test_a_cap_is_reached_at_its_closed_form(cap, ratio):
    def width(own):
        others = np.full(9, (10 - own) / 9)
        caps = np.array([cap] + [1.0] * 9)
        return has_fl_widths(caps, np.array([own, *others]), coverage=False, **PAPER)[0]

    assert width(ratio - 0.04) == pytest.approx(cap - 0.01, abs=1e-7)
    assert width(ratio + 1e-6) == cap
    assert width(ratio + 3) == cap


def test_a_cap_below_the_minimum_is_the_width():
    caps, estimates = np.array([0.25, 1.0]), np.array([0.0, 2.0])
    assert has_fl_widths(caps, estimates, coverage=False, **PAPER)[0] == 0.25


def test_without_gain_every_client_gets_the_minimum_or_its_cap():
    caps, estimates = np.array([0.25, 0.5, 1.0]), np.array([9.0, 1.0, 3.0])
    off = has_fl_widths(caps, estimates, p_min=0.4, gamma=0.0, coverage=False)
    on = has_fl_widths(caps, estimates, p_min=0.4, gamma=0.0, coverage=True)
    assert off.tolist() == [0.25, 0.4, 0.4]
    assert on.tolist() == [0.25, 0.4, 1.0]


@given(st.data(), cap_lists, st.booleans())
def test_rescaled_estimates_give_the_same_widths(data, caps, coverage):
    estimates = data.draw(estimates_for(caps))
    one = has_fl_widths(caps, estimates, coverage=coverage, eps=0.0, **PAPER)
    other = has_fl_widths(caps, rescale(estimates), coverage=coverage, eps=0.0, **PAPER)
    np.testing.assert_allclose(one, other, atol=1e-12)


@given(st.data(), cap_lists, st.booleans(), st.floats(0, 100))
def test_a_wider_divergence_never_narrows_a_client(data, caps, coverage, more):
    estimates = data.draw(estimates_for(caps))
    raised = estimates.copy()
    raised[0] += more
    before = has_fl_widths(caps, estimates, coverage=coverage, **PAPER)
    after = has_fl_widths(caps, raised, coverage=coverage, **PAPER)
    assert after[0] >= before[0] - 1e-12
    assert (after <= caps).all()


def test_fjord_draws_uniformly_from_the_tiers_up_to_the_cap():
    caps = np.repeat([0.2, 0.25, 0.6, 1.0], 4000)
    drawn = fjord_widths(caps, (1.0, 0.5, 0.25, 0.75), rng_for(0, "allocation", 1)).reshape(4, -1)
    assert set(drawn[0]) == {0.2}
    assert set(drawn[1]) == {0.25}
    for widths, tiers in [(drawn[2], TIERS[:2]), (drawn[3], TIERS)]:
        values, counts = np.unique(widths, return_counts=True)
        assert values.tolist() == list(tiers)
        np.testing.assert_allclose(counts / 4000, 1 / len(tiers), atol=0.03)


def test_one_clients_draw_does_not_depend_on_anothers_cap():
    low = fjord_widths(np.array([0.25, 1.0]), TIERS, rng_for(3, "allocation", 1))
    high = fjord_widths(np.array([1.0, 1.0]), TIERS, rng_for(3, "allocation", 1))
    assert low[1] == high[1]


def test_uniform_is_the_width_or_the_cap():
    assert uniform_widths(np.array([0.25, 1.0]), 0.5).tolist() == [0.25, 0.5]


@given(st.integers(0, 1000), st.lists(st.sampled_from(TIERS), min_size=1, max_size=20))
def test_random_widths_meet_the_budget(seed, tiers):
    caps = np.array(tiers)
    reachable = np.where(caps == caps.max(), caps, 0.25).mean()
    for coverage, low in [(True, reachable), (False, 0.25)]:
        budget = (low + 2 * caps.mean()) / 3
        rng = rng_for(seed, "allocation", 1)
        widths = random_budget_widths(caps, budget, coverage=coverage, rng=rng)
        assert widths.mean() == pytest.approx(budget, abs=1e-6)
        assert (widths >= 0.25).all()
        assert (widths <= caps).all()
        if coverage:
            assert (widths[caps == caps.max()] == caps.max()).all()


def test_budgets_out_of_reach_go_to_the_nearest_end():
    caps = np.array([0.1, 0.5, 1.0])

    def widths(budget, coverage):
        rng = rng_for(0, "allocation", 1)
        return random_budget_widths(caps, budget, coverage=coverage, rng=rng)

    np.testing.assert_allclose(widths(0.99, False), caps)
    np.testing.assert_allclose(widths(0.01, False), [0.1, 0.25, 0.25])
    np.testing.assert_allclose(widths(0.01, True), [0.1, 0.25, 1.0])


def test_random_widths_differ_between_clients_of_one_cap():
    caps = np.repeat([0.5, 1.0], 5)
    widths = random_budget_widths(caps, 0.5, coverage=False, rng=rng_for(0, "allocation", 1))
    assert np.unique(widths).size > 5


def test_capacities_follow_their_probabilities():
    caps, promoted = draw_capacities(20_000, TIERS, PROBS, rng_for(0, "capacity"))
    shares = [(caps == tier).mean() for tier in TIERS]
    np.testing.assert_allclose(shares, PROBS, atol=0.015)
    assert not promoted


def test_one_client_is_promoted_when_none_has_the_largest_tier():
    caps, promoted = draw_capacities(6, (0.25, 1.0), (1.0, 0.0), rng_for(0, "capacity"))
    assert promoted
    assert sorted(caps) == [0.25] * 5 + [1.0]


@given(st.integers(0, 500), st.integers(1, 5))
def test_some_client_always_has_the_largest_tier(seed, num_clients):
    caps, _ = draw_capacities(num_clients, TIERS, PROBS, rng_for(seed, "capacity"))
    assert caps.size == num_clients
    assert caps.max() == 1.0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedhet_app.analysis.correlation import (
    paired_difference,
    partial,
    pearson,
    pooled,
    undefined,
    within_tiers,
)

seeds = st.integers(0, 2**32 - 1)


def drawn(rng, n, rho, *shape):
    """Normal pairs (..., n) of correlation rho."""
    a, noise = rng.standard_normal((2, *shape, n))
    return a, rho * a + np.sqrt(1 - rho**2) * noise


def ends(correlation):
    return correlation.low, correlation.high


@given(seed=seeds, n=st.integers(4, 60), rho=st.floats(-0.95, 0.95))
def test_pearson_is_scipys(seed, n, rho):
    a, b = drawn(np.random.default_rng(seed), n, rho)
    ours, theirs = pearson(a, b), stats.pearsonr(a, b)
    assert ours.r == pytest.approx(theirs.statistic)
    assert ends(ours) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert (ours.n, ours.k, ours.weight, ours.reason) == (n, 0, n - 3, "")


@given(seed=seeds, n=st.integers(8, 60), k=st.integers(1, 3))
def test_a_partial_correlation_is_that_of_least_squares_residuals(seed, n, k):
    rng = np.random.default_rng(seed)
    held = 100 + rng.standard_normal((n, k))
    a, b = rng.standard_normal((2, n)) + rng.standard_normal((2, k)) @ held.T
    design = np.column_stack([np.ones(n), held])
    hat = design @ np.linalg.inv(design.T @ design) @ design.T
    expected = np.corrcoef(a - hat @ a, b - hat @ b)[0, 1]
    ours = partial(a, b, held)
    assert ours.r == pytest.approx(expected, abs=1e-6)
    half = 1.959963984540054 / np.sqrt(n - 3 - k)
    expected_ends = np.tanh(np.arctanh(expected) + np.array([-half, half]))
    assert ends(ours) == pytest.approx(expected_ends, abs=1e-6)
    assert (ours.n, ours.k, ours.weight) == (n, k, n - 3 - k)


def test_a_partial_correlation_by_hand():
    """Spec 1.12's closed form with r_ab = 0.8, r_az = 0.6, r_bz = 0: 0.8 / sqrt(0.64) = 1."""
    basis = np.linalg.qr(np.column_stack([np.ones(6), np.eye(6)[:, :3]]))[0][:, 1:]
    z, other, rest = basis.T
    assert partial(0.6 * z + 0.8 * other, other, z).r == pytest.approx(1)
    halfway = partial(0.6 * z + 0.48 * other + 0.64 * rest, other, z)
    assert halfway.r == pytest.approx(0.48 / 0.8)


@given(seed=seeds, scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
def test_units_do_not_matter_and_order_does_not_either(seed, scale, shift):
    rng = np.random.default_rng(seed)
    a, b, z = rng.standard_normal((3, 12))
    plain, turned = partial(a, b, z), partial(b, scale * a + shift, -scale * z)
    assert turned.r == pytest.approx(plain.r, abs=1e-6)
    order = rng.permutation(12)
    assert partial(a[order], b[order], z[order]).r == pytest.approx(plain.r)
    assert -1 <= plain.low < plain.r < plain.high <= 1


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_intervals_cover_the_truth_in_94_to_96_of_100_cases(rho):
    """N = 20 clients, one variable held fixed that drives both others; alone and over 3 seeds."""
    rng = np.random.default_rng(7)
    capacity = rng.choice([0.25, 0.5, 0.75, 1.0], (4000, 3, 20), p=[0.25, 0.4, 0.2, 0.15])
    a, b = drawn(rng, 20, rho, 4000, 3)
    a, b = a - 4 * capacity, b + 2 * capacity
    runs = [
        [partial(*values) for values in zip(*study, strict=True)]
        for study in zip(a, b, capacity, strict=True)
    ]
    assert not any(each.reason for study in runs for each in study)
    for intervals in ([study[0] for study in runs], [pooled(study) for study in runs]):
        covered = np.mean([each.low <= rho <= each.high for each in intervals])
        assert 0.94 <= covered <= 0.96


def test_intervals_within_tiers_cover_the_truth():
    """Nothing but the tier links both; 600 cases of 95 % lie within 92 to 98 of 100."""
    rng = np.random.default_rng(8)
    tiers = np.repeat([0.25, 0.5, 0.75, 1.0], [6, 8, 5, 5])
    a, b = drawn(rng, len(tiers), 0.0, 600)
    results = [within_tiers(x - 9 * tiers, y + 9 * tiers, tiers) for x, y in zip(a, b, strict=True)]
    assert {each.parts for each in results} == {4}
    covered = np.mean([each.low <= 0 <= each.high for each in results])
    assert 0.92 <= covered <= 0.98


def test_pooling_weighs_z_by_what_each_run_is_worth():
    rng = np.random.default_rng(3)
    parts = [partial(*rng.standard_normal((3, n))) for n in (10, 20, 40)]
    weights = np.array([6.0, 16.0, 36.0])
    z = weights @ np.arctanh([each.r for each in parts]) / 58
    both = pooled([*parts, undefined("width is constant", n=5)])
    assert both.r == pytest.approx(np.tanh(z))
    half = 1.959963984540054 / np.sqrt(58)
    assert ends(both) == pytest.approx((np.tanh(z - half), np.tanh(z + half)))
    assert (both.n, both.k, both.weight, both.parts, both.left_out) == (70, 1, 58, 3, 1)
    alone = pooled(parts[:1])
    assert (alone.r, *ends(alone)) == pytest.approx((parts[0].r, *ends(parts[0])))


def test_nothing_to_pool_says_why():
    none = pooled([undefined("width is constant", n=4), undefined("width is constant", n=5)])
    assert np.isnan([none.r, *ends(none)]).all()
    assert (none.reason, none.n, none.left_out, none.sign) == ("width is constant", 9, 2, 0)
    assert pooled([]).reason == "nothing to pool"


def test_a_perfect_correlation_stays_a_number_when_pooled():
    line = np.arange(8.0)
    up, down = pearson(line, 3 * line + 1), pearson(line, -line)
    assert up.r == pytest.approx(1)
    assert up.low > 0.999
    assert down.high < -0.999
    assert pooled([up, up]).sign == 1
    assert pooled([up, down]).r == pytest.approx(0)
    assert pooled([up, down]).sign == 0


def test_ranks_within_tiers_by_hand():
    """Tier 1: ranks 1 2 3 4 5 against 2 1 4 3 5, sum d^2 = 4, rho = 1 - 24/120 = 0.8, weight 2.

    Tier 2: perfectly opposed ranks of 4, rho = -(1 - 6/60) = -0.9, weight 1. Tier 3 has 3 clients,
    in tier 4 the first variable is constant.
    """
    tiers = np.repeat([1.0, 2.0, 3.0, 4.0], [5, 4, 3, 4])
    a = np.array([10, 20, 30, 40, 50, 1, 2, 3, 9, 1, 2, 3, 7, 7, 7, 7.0])
    b = np.array([2, 1, 4, 3, 5, 8, 7, 6, 5, 1, 2, 3, 1, 2, 3, 4.0])
    assert stats.spearmanr(a[:5], b[:5]).statistic == pytest.approx(0.8)
    z = (2 * np.arctanh(0.8) + np.arctanh(-0.9)) / 3
    half = 1.959963984540054 * np.sqrt(1.06 / 3)
    result = within_tiers(a, b, tiers)
    assert result.r == pytest.approx(np.tanh(z))
    assert ends(result) == pytest.approx((np.tanh(z - half), np.tanh(z + half)))
    assert (result.n, result.parts, result.left_out) == (9, 2, 2)


def test_no_usable_tier_says_so():
    result = within_tiers(np.arange(6.0), np.arange(6.0), np.repeat([1.0, 2.0], 3), ("x", "TV"))
    assert result.reason == "in no tier of 4 or more do both x and TV vary"
    assert (result.parts, result.left_out) == (0, 2)


RAMP = np.arange(8.0)
WAVE = np.array([1.0, 5, 2, 8, 3, 9, 4, 7])
UNDEFINED = {
    "one client": ([0.3], [0.1], [1.0], "N = 1, where an interval takes 5"),
    "no client": ([], [], [], "N = 0, where an interval takes 5"),
    "constant estimate": (np.ones(8), WAVE, RAMP, "estimate is constant"),
    "constant but for rounding": (np.ones(8) + 1e-16 * RAMP, WAVE, RAMP, "estimate is constant"),
    "all zero": (np.zeros(8), WAVE, RAMP, "estimate is constant"),
    "constant TV": (WAVE, np.ones(8), RAMP, "TV is constant"),
    "constant capacity": (WAVE, RAMP, np.ones(8), "capacity is constant"),
    "width is capacity": (2 * RAMP + 1, WAVE, RAMP, "capacity determines estimate"),
    "TV is capacity": (WAVE, -RAMP, RAMP, "capacity determines TV"),
    "not finite": (WAVE, [np.nan, *RAMP[1:]], RAMP, "TV has values that are not finite"),
    "twice the same": (
        WAVE,
        RAMP**2,
        np.column_stack([RAMP, 2 * RAMP]),
        "the variables held fixed determine one another",
    ),
}


@pytest.mark.parametrize("case", UNDEFINED)
def test_what_is_undefined_says_which_variable_is_to_blame(case):
    a, b, held, reason = UNDEFINED[case]
    result = partial(np.array(a), np.array(b), np.array(held), ("estimate", "TV", "capacity"))
    assert result.reason == reason
    assert np.isnan([result.r, result.low, result.high]).all()
    assert (result.sign, result.weight) == (0, 0)


def test_numbers_of_any_size_are_correlated():
    expected = pearson(WAVE, RAMP).r
    for scale in (1e-200, 1e200):
        assert pearson(scale * WAVE, RAMP).r == pytest.approx(expected)


def test_a_paired_difference_has_students_interval():
    x, y = np.array([0.70, 0.74, 0.81, 0.66]), np.array([0.69, 0.70, 0.80, 0.68])
    ours = paired_difference(x, y)
    theirs = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert (ours.mean, ours.sd) == pytest.approx((0.01, np.sqrt(0.0018 / 3)))
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs))
    assert (ours.n, ours.reason) == (4, "")


def test_too_few_pairs_say_so():
    one = paired_difference(np.array([0.7]), np.array([0.6]))
    assert one.mean == pytest.approx(0.1)
    assert one.reason == "one pair has no spread"
    none = paired_difference(np.array([]), np.array([]))
    assert none.reason == "no pairs"
    assert np.isnan([one.sd, one.low, one.high, none.mean, none.sd, none.low, none.high]).all()

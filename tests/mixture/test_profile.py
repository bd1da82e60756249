import numpy as np
import pytest
from scipy.optimize import brentq, linprog, root
from scipy.special import log_softmax, logsumexp, softmax

from fedhet_app.mixture.constraints import constraints_of
from fedhet_app.mixture.profile import (
    feasible_by_lp,
    gradient,
    objective,
    profile_objective,
    shift,
    solve_multipliers,
    surrogate_gradient,
    surrogate_objective,
)

ENDS = (-0.999, -0.334), (-0.333, 1.999)  # between the poles of (6)


def paired(seed, pairs=20, columns=3):
    """Scores whose multipliers are known: rows in pairs that cancel each other in (6).

    With v = exp(s) - 1 and d = 1 + lambda v, the mate of v is -v / (1 + 2 lambda v).
    """
    rng = np.random.default_rng(seed)
    lambda_ = rng.dirichlet(np.ones(columns)) / 4
    v = rng.uniform(-0.5, 0.7, size=(pairs, columns))
    mates = -v / (1 + 2 * v @ lambda_)[:, None]
    return np.log1p(np.concatenate([v, mates])), lambda_


def drawn(seed, n=24, clients=2, components=2):
    """Scores near those of ``paired``, random responsibilities, and every row's own columns."""
    rng = np.random.default_rng(seed)
    s, _ = paired(seed, pairs=n // 2, columns=clients * components)
    owners = np.arange(n) % clients
    columns = owners[:, None] * components + np.arange(components)
    w = rng.dirichlet(np.ones(components), size=n)
    tau = np.array([w[owners == i].sum(axis=0) for i in range(clients)]).ravel()
    return s, w, columns, tau


def derivative(function, s, step=1e-5):
    """Central differences in every score."""
    result = np.empty_like(s)
    for index in np.ndindex(s.shape):
        moved = np.zeros_like(s)
        moved[index] = step
        result[index] = (function(s + moved) - function(s - moved)) / (2 * step)
    return result


def solved(s, tau):
    found = solve_multipliers(s, tau / len(s), tolerance=1e-10)
    assert found.feasible
    return found.lambda_


@pytest.mark.parametrize("seed", range(8))
def test_multipliers_of_constructed_cases_are_found_and_meet_the_constraints(seed):
    s, expected = paired(seed)
    found = solve_multipliers(s, np.full(3, 1 / 3))
    d = 1 + (np.exp(s) - 1) @ found.lambda_
    r = 1 / (len(s) * d)
    assert found.feasible
    assert found.smallest_weight == pytest.approx(d.min(), rel=1e-9)
    assert (r > 0).all()
    assert abs(r.sum() - 1) < 1e-8
    assert np.abs(r @ np.exp(s) - 1).max() < 1e-8
    assert found.residual < 1e-8
    np.testing.assert_allclose(found.lambda_, expected, atol=1e-8)


def test_two_rows_by_hand():
    """exp(s) - 1 of 1 and -1/2: lambda = 1/2, d = 3/2 and 3/4, r = 1/3 and 2/3."""
    s = np.log([[2.0], [0.5]])
    found = solve_multipliers(s, np.array([1.0]))
    assert found.lambda_ == pytest.approx([0.5])
    assert found.smallest_weight == pytest.approx(0.75)
    assert feasible_by_lp(s)


def test_a_root_with_a_negative_weight_is_no_solution():
    """exp(s) - 1 of 1 and 2: the only root of (6), -3/4, has d = 1/4 and -1/2."""
    s = np.log([[2.0], [3.0]])
    assert constraints_of(s).violation(np.array([-0.75])) == np.inf
    for start in (-0.75, 0.5):
        assert not solve_multipliers(s, np.array([start])).feasible
    assert not feasible_by_lp(s)


def test_the_solution_is_found_from_a_root_with_a_negative_weight():
    """exp(s) - 1 of 1, 3 and -1/2 has one root of (6) in (-1, -1/3), and the one that counts."""
    v = np.array([1.0, 3.0, -0.5])
    wrong, right = (brentq(lambda x: (v / (1 + x * v)).sum(), *ends) for ends in ENDS)
    found = solve_multipliers(np.log1p(v)[:, None], np.array([wrong]))
    assert found.feasible
    assert found.lambda_ == pytest.approx([right])


def test_scores_beyond_the_range_of_exp_by_hand():
    """With an infinite ratio, 1 / lambda = (1/2) / (1 - lambda / 2): lambda = 1 and d_2 = 1/2."""
    s = np.array([[900.0], [np.log(0.5)]])
    found = solve_multipliers(s, np.array([0.7]))
    assert found.feasible
    assert found.lambda_ == pytest.approx([1.0])
    assert found.smallest_weight == pytest.approx(0.5)
    # log d of the two: 900 and log 1/2; the rows' own scores are the same.
    f = objective(s, found.lambda_, np.ones((2, 1)), np.zeros((2, 1), dtype=int))
    assert f == pytest.approx(0.0, abs=1e-9)


def smallest_possible_weight(s):
    """The largest smallest r that satisfies (4), by linear programming; negative if none does."""
    n, q = s.shape
    vectors = np.exp(s) - 1
    sums = np.zeros((q + 1, n + 1))  # unknowns: r, and the smallest of them
    sums[:q, :n], sums[q, :n] = vectors.T, 1.0
    below = np.hstack([-np.eye(n), np.ones((n, 1))])
    found = linprog(
        np.append(np.zeros(n), -1.0),
        A_ub=below,
        b_ub=np.zeros(n),
        A_eq=sums,
        b_eq=np.append(np.zeros(q), 1.0),
        bounds=[(None, None)] * (n + 1),
    )
    return -found.fun if found.status == 0 else -1.0


def test_linear_programming_and_the_solver_agree_on_what_is_feasible():
    verdicts = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        s = rng.normal(size=(14, 4)) + rng.normal(scale=0.7, size=4)
        feasible = smallest_possible_weight(s) > 1e-9
        assert feasible_by_lp(s) == feasible
        assert solve_multipliers(s, np.full(4, 0.25)).feasible == feasible
        verdicts.append(feasible)
    assert 5 < sum(verdicts) < 35


@pytest.mark.parametrize("seed", [10, 11])
def test_least_squares_solve_what_the_root_solver_does_not(seed):
    rng = np.random.default_rng(seed)
    s = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 6))
    s += shift(s, np.full(6, 200 / 6))
    start, constraints = np.full(6, 1 / 6), constraints_of(s)
    hybrid = root(constraints.equations, start, jac=True, method="hybr", tol=1e-12)
    assert constraints.violation(hybrid.x) > 0.1
    found = solve_multipliers(s, start)
    assert found.feasible
    assert smallest_possible_weight(s) > 0
    r = 1 / (200 * (1 + (np.exp(s) - 1) @ found.lambda_))
    assert np.abs(r @ np.exp(s) - 1).max() < 1e-8


def test_equal_columns_are_solved_although_their_multipliers_are_not_unique():
    s, lambda_ = paired(0)
    twice = np.concatenate([s, s[:, :1]], axis=1)
    found = solve_multipliers(twice, np.full(4, 0.25))
    assert found.feasible
    assert feasible_by_lp(twice)
    assert found.lambda_[0] + found.lambda_[3] == pytest.approx(lambda_[0], abs=1e-8)


def fitted(components=2, clients=2, per_client=40, seed=0):
    """Scores gamma + xi x at the maximum of the surrogate, which is concave in them."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(clients), per_client)
    x = np.hstack([np.ones((len(owners), 1)), rng.normal(size=(len(owners), 2))])
    x[:, 1] += 0.7 * owners
    w = softmax(2 * x @ rng.normal(size=(3, components)), axis=1)  # components that differ
    soft = np.zeros((len(owners), clients * components))
    for i in range(clients):
        soft[owners == i, i * components : (i + 1) * components] = w[owners == i]
    tau = soft.sum(axis=0)

    def slopes(flat):
        s = x @ flat.reshape(3, -1)
        return (x.T @ (softmax(s + np.log(tau), axis=1) - soft)).ravel() / len(x)

    found = root(slopes, np.zeros(3 * len(tau)), method="lm", tol=1e-14)
    assert np.abs(slopes(found.x)).max() < 1e-13
    columns = owners[:, None] * components + np.arange(components)
    return x @ found.x.reshape(3, -1), w, columns, tau


def test_at_a_critical_point_of_the_surrogate_the_multipliers_are_tau_over_n():
    s, w, columns, tau = fitted()
    shifted = s + shift(s, tau)
    found = solve_multipliers(shifted, np.full(len(tau), 0.1))
    assert found.feasible
    np.testing.assert_allclose(found.lambda_, tau / len(s), atol=1e-6)
    np.testing.assert_allclose(
        gradient(shifted, found.lambda_, w, columns),
        surrogate_gradient(s, tau, w, columns),
        atol=1e-7,
    )


def test_without_the_shift_the_weights_at_tau_over_n_miss_a_sum_of_one_only():
    s, _, _, tau = fitted()
    r = 1 / (tau * np.exp(s)).sum(axis=1)
    np.testing.assert_allclose(r @ np.exp(s), 1.0, atol=1e-12)
    off = s + 0.1 + shift(s, tau)
    assert constraints_of(off).violation(tau / len(s)) == pytest.approx(1 - np.exp(-0.1))


def test_the_shift_does_not_change_the_surrogate_but_the_objective():
    s, w, columns, tau = drawn(3)
    before = surrogate_objective(s, tau, w, columns)
    assert surrogate_objective(s + 0.01, tau, w, columns) == pytest.approx(before, abs=1e-12)
    assert shift(s + 5.0, tau) == pytest.approx(shift(s, tau) - 5.0)
    moved = objective(s + 0.01, solved(s + 0.01, tau), w, columns)
    assert abs(moved - objective(s, solved(s, tau), w, columns)) > 1e-6


def test_the_shift_makes_the_weights_at_tau_over_n_sum_to_one():
    s, _, _, tau = drawn(4)
    d = (tau / len(s) * np.exp(s + shift(s, tau))).sum(axis=1)  # sum of lambda is one
    assert (1 / (len(s) * d)).sum() == pytest.approx(1.0, abs=1e-12)


def test_the_objectives_are_the_sums_of_the_paper():
    s, w, columns, tau = drawn(0)
    lambda_ = solved(s, tau)
    own = sum(w[j, c] * s[j, columns[j, c]] for j in range(24) for c in range(2))
    d = [1 + sum(lambda_[k] * (np.exp(s[j, k]) - 1) for k in range(4)) for j in range(24)]
    totals = [sum(tau[k] * np.exp(s[j, k]) for k in range(4)) for j in range(24)]
    assert objective(s, lambda_, w, columns) == pytest.approx(-(own - np.log(d).sum()) / 24)
    assert surrogate_objective(s, tau, w, columns) == pytest.approx(
        -(own - np.log(totals).sum()) / 24
    )
    log_mix = np.random.default_rng(1).normal(size=24)
    likelihood = sum(np.log(1 / (24 * d[j])) + log_mix[j] for j in range(24))
    assert profile_objective(s, lambda_, log_mix) == pytest.approx(-likelihood / 24)


def test_gradients_are_those_of_finite_differences_with_the_multipliers_solved_anew():
    s, w, columns, tau = drawn(1, n=12)
    expected = derivative(lambda s: objective(s, solved(s, tau), w, columns), s)
    np.testing.assert_allclose(gradient(s, solved(s, tau), w, columns), expected, atol=1e-8)
    expected = derivative(lambda s: surrogate_objective(s, tau, w, columns), s)
    np.testing.assert_allclose(surrogate_gradient(s, tau, w, columns), expected, atol=1e-8)


def test_objectives_with_a_negative_weight_are_not_a_number():
    s, w, columns, _ = drawn(1)
    inadmissible = np.full(4, -50.0)
    assert np.isnan(objective(s, inadmissible, w, columns))
    assert np.isnan(profile_objective(s, inadmissible, np.zeros(24)))


def mixture(s, w, columns, seed=5):
    """Own scores, log (pi_c P_c(y|x)), and the responsibilities that follow from them."""
    rng = np.random.default_rng(seed)
    fixed = np.log(rng.dirichlet(np.ones(w.shape[1]), size=len(s)))
    joint = fixed + np.take_along_axis(s, columns, axis=1)
    return fixed, np.exp(log_softmax(joint, axis=1))


@pytest.mark.parametrize("seed", range(10))
def test_the_profiled_likelihood_falls_no_less_than_the_objective(seed):
    """F(zeta) - F(zeta_t) <= f(phi) - f(phi_t), and equal gradients at phi_t (Lemmas 1 and 2)."""
    s, w, columns, tau = drawn(seed)
    fixed, w = mixture(s, w, columns)
    moved = s + np.random.default_rng(seed + 100).normal(scale=0.1, size=s.shape)

    def profiled(s):
        log_mix = logsumexp(fixed + np.take_along_axis(s, columns, axis=1), axis=1)
        return profile_objective(s, solved(s, tau), log_mix)

    def plain(s):
        return objective(s, solved(s, tau), w, columns)

    assert profiled(moved) - profiled(s) <= plain(moved) - plain(s) + 1e-12
    step = np.zeros_like(s)
    step[seed] = 1e-5
    slope = (profiled(s + step) - profiled(s - step)) / 2e-5
    assert slope == pytest.approx(gradient(s, solved(s, tau), w, columns)[seed].sum(), abs=1e-8)

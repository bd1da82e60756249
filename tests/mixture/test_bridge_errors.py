import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.mixture.bridge import accumulation, bridge, delta, epsilon, gamma2_hat, running


def array(*values):
    return np.array(values, dtype=np.float64)


def test_gamma2_is_the_95_percent_quantile_of_the_valid_ratios():
    """Ratios 0, 1, ..., 20 have their 95 % quantile at 19; a vanishing surrogate does not count."""
    surrogate = np.append(np.full(21, 0.5), 1e-9)
    gradient = np.append(0.5 * np.arange(21), 7.0)
    assert gamma2_hat(gradient, surrogate) == pytest.approx(19.0)


def test_gamma2_without_a_valid_round_is_not_a_number():
    assert np.isnan(gamma2_hat(array(1.0), array(1e-9)))
    assert np.isnan(gamma2_hat(array(), array()))


def test_the_errors_by_hand():
    assert epsilon(array(5, 1), array(2, 2), 1.5).tolist() == [2.0, 0.0]
    # f fell by 1 and rose by 1; f~ fell by 3 and rose by 2.
    assert delta(array(4, 4), array(3, 5), array(9, 9), array(6, 11)).tolist() == [2.0, 0.0]


def test_running_sums_by_hand():
    assert running(array(1, 3, 8)).tolist() == [1, 2, 4]
    assert running(array(1, 3, 5, 7), power=0.5) == pytest.approx([1, 4 / 2**0.5, 9 / 3**0.5, 8])


def rounds(**changed):
    columns = {
        "gradient_norm2": array(4, 99, 2),
        "surrogate_gradient_norm2": array(2, 99, 1),
        "f": array(0, 0, 0),
        "f_next": array(1, 99, 3),
        "surrogate": array(0, 0, 0),
        "surrogate_next": array(0, 99, 1),
        "feasible": np.array([True, False, True]),
    }
    return bridge(**{**columns, **changed})


def test_infeasible_rounds_are_left_out_and_counted():
    found = rounds()
    assert found.infeasible == pytest.approx(1 / 3)
    assert found.gamma2 == pytest.approx(2.0)
    assert found.gradient.tolist() == [4, 3]
    assert found.epsilon == pytest.approx([0, 0])
    assert found.delta == pytest.approx([1, 3 / 2**0.5])


def test_what_was_measured_in_infeasible_rounds_may_be_anything():
    measured = rounds(f=array(0, np.nan, 0), gradient_norm2=array(4, np.nan, 2))
    assert measured.gradient.tolist() == rounds().gradient.tolist()


def test_without_a_feasible_round_there_are_no_curves():
    none = rounds(feasible=np.zeros(3, dtype=bool))
    assert none.infeasible == 1
    assert np.isnan(none.gamma2)
    assert [len(curve) for curve in (none.gradient, none.epsilon, none.delta)] == [0, 0, 0]


@given(st.integers(1, 60), st.floats(0, 0.99))
def test_accumulation_counts_the_gradients_in_all_steps(steps, momentum):
    """Step k moves by sum over e <= k of mu^(k-e) g_e: both loops, as the method runs."""
    counted = [0.0] * steps
    for k in range(steps):
        for e in range(k + 1):
            counted[e] += momentum ** (k - e)
    a, s = accumulation(momentum, steps)
    assert a == pytest.approx(sum(counted), rel=1e-9)
    assert s == pytest.approx(sum(count**2 for count in counted), rel=1e-9)


def test_without_momentum_both_are_the_steps():
    assert [accumulation(0.0, steps) for steps in (1, 2, 50)] == [(1, 1), (2, 2), (50, 50)]


def test_two_steps_by_hand():
    assert accumulation(0.5, 2) == (1.5 + 1, 1.5**2 + 1)

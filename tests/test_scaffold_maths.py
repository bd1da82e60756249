"""SCAFFOLD's formulas on problems whose answers are known."""

import numpy as np
import pytest

from client_apps.scaffold import next_control
from fedhet_app.mixture.bridge import accumulation
from fedhet_app.submodel.aggregation import Update, aggregate
from strategies.scaffold import scaled_step

CLIENTS, COHORT, STEPS, LR, ROUNDS = 20, 10, 50, 0.01, 60


def test_the_next_control_by_hand():
    """Two steps of lr 0.25 moved 1 to 0 and 2 to 5: the mean gradients were 2 and -6."""
    renewed = next_control(
        np.array([0.5, 1.0], np.float32),
        np.array([0.25, -2.0], np.float32),
        before=np.array([1.0, 2.0], np.float32),
        after=np.array([0.0, 5.0], np.float32),
        lr_sum=2 * 0.25,
    )
    assert renewed.tolist() == [0.5 - 0.25 + 2.0, 1.0 + 2.0 - 6.0]


def test_the_next_control_is_the_mean_gradient_the_client_met():
    rng = np.random.default_rng(0)
    own, server, start, gradients = (rng.normal(size=shape) for shape in (4, 4, 4, (7, 4)))
    y = start.copy()
    for gradient in gradients:
        y -= 0.03 * (gradient - own + server)
    renewed = next_control(own, server, before=start, after=y, lr_sum=7 * 0.03)
    np.testing.assert_allclose(renewed, gradients.mean(axis=0), atol=1e-12)


def test_a_server_step_of_half_the_length_by_hand():
    vector = np.array([1.0, 2.0, 10.0], np.float32)  # the last one is a buffer
    updates = [
        Update(index=None, values=np.array(values, np.float32), weight=1.0)
        for values in ([3.0, 2.0, 20.0], [1.0, 6.0, 30.0])
    ]
    after = aggregate(vector, updates)
    assert scaled_step(vector, after, 2, 0.5).tolist() == [1.5, 3.0, 25.0]
    assert scaled_step(vector, after, 2, 1.0).tolist() == [2.0, 4.0, 25.0]


def federated(momentum, corrected):
    """SCAFFOLD on f_i(y) = sum(h_i * (y - b_i)^2) / 2; returns the error and the controls."""
    rng = np.random.default_rng(1)
    curvature = rng.uniform(0.5, 1.5, size=(CLIENTS, 3))
    optimum = rng.normal(size=(CLIENTS, 3)) * 2
    best = (curvature * optimum).sum(axis=0) / curvature.sum(axis=0)
    x, server = np.zeros(3), np.zeros(3)
    own = np.zeros((CLIENTS, 3))
    for _ in range(ROUNDS):
        moves, changes = [], []
        for i in rng.choice(CLIENTS, size=COHORT, replace=False):
            y, buffer = x.copy(), np.zeros(3)
            for _ in range(STEPS):
                gradient = curvature[i] * (y - optimum[i])
                buffer = momentum * buffer + gradient - own[i] + server
                y -= LR * buffer
            steps, _ = accumulation(momentum if corrected else 0.0, STEPS)
            renewed = next_control(own[i], server, before=x, after=y, lr_sum=LR * steps)
            changes.append(renewed - own[i])
            own[i] = renewed
            moves.append(y - x)
        x = x + np.mean(moves, axis=0)
        server = server + np.sum(changes, axis=0) / CLIENTS
    return np.abs(x - best).max(), server, own


@pytest.mark.parametrize(("momentum", "corrected"), [(0.0, False), (0.9, True)])
def test_it_finds_the_optimum_of_unlike_clients(momentum, corrected):
    error, server, own = federated(momentum, corrected)
    assert error < 0.05
    np.testing.assert_allclose(server, own.mean(axis=0), atol=1e-12)


def test_momentum_uncorrected_diverges():
    error, _, _ = federated(0.9, corrected=False)
    assert error > 1e6

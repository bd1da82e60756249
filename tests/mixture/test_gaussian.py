"""Gaussians from clients' sums, against SciPy, scikit-learn and pooled data."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fedhet_app.mixture.gaussian import (
    Gaussians,
    could_be_moments,
    joint_posterior,
    log_densities,
    m_step,
    moments,
    principal_axes,
)

SETTINGS = settings(max_examples=30)
SEEDS = st.integers(0, 2**32)
CUTS = [0, 70, 100, 240]


def mixture(rng, count=3, d=4):
    factors = rng.normal(size=(count, d, d)) / 2
    return Gaussians(
        means=rng.normal(size=(count, d)),
        covariances=factors @ factors.swapaxes(1, 2) + 0.3 * np.eye(d),
    )


def features(rng, d=4):
    """Three clients' examples, far apart."""
    return np.concatenate([rng.normal(size=(b - a, d)) + 2 * a / 100 for a, b in pairs()])


def pairs():
    return list(pairwise(CUTS))


def federated_sums(z, q):
    """What the clients' moments add up to."""
    each = [moments(torch.tensor(z[a:b]), torch.tensor(q[a:b])).numpy() for a, b in pairs()]
    return np.sum(each, axis=0)


@SETTINGS
@given(SEEDS)
def test_densities_are_scipys(seed):
    rng = np.random.default_rng(seed)
    z, gaussians = features(rng), mixture(rng)
    expected = [
        multivariate_normal(mean, covariance).logpdf(z)
        for mean, covariance in zip(gaussians.means, gaussians.covariances, strict=True)
    ]
    found = log_densities(torch.tensor(z), gaussians)
    np.testing.assert_allclose(found.numpy(), np.transpose(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_federated_step_is_scikit_learns_on_pooled_data(covariance):
    rng = np.random.default_rng(5)
    z, before = features(rng), mixture(rng)
    if covariance == "diagonal":
        variances = before.covariances.diagonal(axis1=1, axis2=2)
        before = Gaussians(means=before.means, covariances=variances[:, :, None] * np.eye(4))
        precisions = 1 / variances
    else:
        precisions = np.linalg.inv(before.covariances)
    pi = np.array([0.2, 0.5, 0.3])
    pooled = GaussianMixture(
        3,
        covariance_type="full" if covariance == "full" else "diag",
        weights_init=pi,
        means_init=before.means,
        precisions_init=precisions,
        reg_covar=0.1,
        max_iter=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        pooled.fit(z)
    densities = log_densities(torch.tensor(z), before)
    q = joint_posterior(torch.tensor(pi).log()[:, None], densities)[..., 0]
    after, _ = m_step(
        federated_sums(z, q.numpy()), before, epsilon=0.1, diagonal=covariance == "diagonal"
    )
    np.testing.assert_allclose(q.mean(dim=0), pooled.weights_, rtol=1e-9)
    np.testing.assert_allclose(after.means, pooled.means_, rtol=1e-8)
    found = after.covariances
    if covariance == "diagonal":
        assert (found[:, ~np.eye(4, dtype=bool)] == 0).all()
        found = found.diagonal(axis1=1, axis2=2)
    np.testing.assert_allclose(found, pooled.covariances_, rtol=1e-8, atol=1e-12)


def test_clients_that_lie_apart_widen_the_covariance():
    """Two clients, one point each side of the origin: no scatter within, 9 between (pencil)."""
    z = np.array([[3.0], [3.0], [-3.0], [-3.0]])
    ones = torch.ones(2, 1)
    sums = sum(moments(torch.tensor(z[i : i + 2]), ones).numpy() for i in (0, 2))
    before = Gaussians(means=np.array([[7.0]]), covariances=np.ones((1, 1, 1)))
    after, _ = m_step(sums, before, epsilon=0.5, diagonal=False)
    assert after.means.tolist() == [[0.0]]
    assert after.covariances.tolist() == [[[9.5]]]


@SETTINGS
@given(SEEDS)
def test_axes_are_those_of_pooled_features(seed):
    rng = np.random.default_rng(seed)
    h = features(rng) @ rng.normal(size=(4, 4))
    projection = principal_axes(federated_sums(h, np.ones((len(h), 1)))[0], 3)
    z = (h - projection.center) @ projection.axes.T
    expected = PCA(3, whiten=True).fit_transform(h) * np.sqrt(len(h) / (len(h) - 1))
    np.testing.assert_allclose(np.abs(z), np.abs(expected), atol=1e-5)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-8)
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(3), atol=1e-7)


def test_a_direction_without_variance_is_left_at_zero():
    rng = np.random.default_rng(0)
    h = rng.normal(size=(240, 2)) @ rng.normal(size=(2, 5)) + 1
    projection = principal_axes(federated_sums(h, np.ones((240, 1)))[0], 3)
    assert (projection.axes[2] == 0).all()
    z = (h - projection.center) @ projection.axes.T
    np.testing.assert_allclose(z.std(axis=0), [1, 1, 0], atol=1e-6)


@SETTINGS
@given(SEEDS)
def test_the_joint_posterior_is_bayes_rule(seed):
    rng = np.random.default_rng(seed)
    pi, densities = rng.dirichlet(np.ones(6)).reshape(3, 2), rng.normal(size=(9, 3))
    likelihoods = rng.normal(size=(9, 2))
    table = np.log(pi) + densities[:, :, None] + likelihoods[:, None]
    expected = softmax(table, axis=(1, 2))
    q = joint_posterior(*map(torch.tensor, (np.log(pi), densities, likelihoods)))
    np.testing.assert_allclose(q, expected, rtol=1e-10)
    np.testing.assert_allclose(q.sum(dim=(1, 2)), 1.0)


@SETTINGS
@given(SEEDS)
def test_with_equal_classifiers_the_gaussians_alone_decide(seed):
    """Whatever the label's probability, q over Gaussians is what it is without a label."""
    rng = np.random.default_rng(seed)
    log_pi = torch.tensor(np.log(rng.dirichlet(np.ones(6)).reshape(3, 2)))
    densities = torch.tensor(rng.normal(size=(9, 3)))
    equal = torch.tensor(rng.normal(size=(9, 1))).expand(-1, 2)
    torch.testing.assert_close(
        joint_posterior(log_pi, densities, equal), joint_posterior(log_pi, densities)
    )


def test_a_gaussian_that_nobody_uses_keeps_its_mean_and_takes_the_covariance_of_all():
    rng = np.random.default_rng(2)
    z, before = features(rng), mixture(rng)
    q = np.zeros((len(z), 3))
    q[:, 0], q[:3, 0], q[:3, 2] = 1, 0, 1  # Gaussian 2 has 3 examples, fewer than d + 1
    after, _ = m_step(federated_sums(z, q), before, epsilon=0.1, diagonal=False)
    of_all = np.cov(z.T, bias=True) + 0.1 * np.eye(4)
    for a in (1, 2):
        assert (after.means[a] == before.means[a]).all()
        np.testing.assert_allclose(after.covariances[a], of_all, rtol=1e-9)
    np.testing.assert_allclose(after.means[0], z[3:].mean(axis=0))


def test_a_covariance_that_epsilon_does_not_repair_stays_as_it_was():
    z = np.outer(np.linspace(-1, 1, 240), np.ones(4))
    before = mixture(np.random.default_rng(0), count=1)
    sums = federated_sums(z, np.ones((240, 1)))
    after, unusable = m_step(sums, before, epsilon=0.1, diagonal=False)
    assert np.linalg.eigvalsh(after.covariances[0])[0] == pytest.approx(0.1)
    assert unusable == []
    huge = 1e38 * sums  # their covariance is beyond single precision
    for spoilt, epsilon in ((sums, 1e-12), (huge, 0.1)):
        spoilt[:, 0, 0] = 240
        after, unusable = m_step(spoilt, before, epsilon=epsilon, diagonal=False)
        assert unusable == [0]
        assert (after.means == before.means).all()
        assert (after.covariances == before.covariances).all()


@SETTINGS
@given(SEEDS, st.floats(1e-44, 1e3))
def test_moments_of_examples_are_believed_after_rounding(seed, weight):
    rng = np.random.default_rng(seed)
    sums = federated_sums(features(rng), weight * rng.uniform(size=(240, 3)))
    assert could_be_moments(sums.astype(np.float32).astype(np.float64))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda sums: -sums,
        lambda sums: sums + np.eye(5, k=1),
        lambda sums: sums - 300 * np.diag([0, 0, 0, 0, 1.0]),
        lambda sums: sums - 300 * np.diag([0, 0, 0, -1e10, 1.0]),
    ],
    ids=["negative", "not symmetric", "too little scatter", "too little beside much"],
)
def test_moments_that_no_examples_have_are_not_believed(spoil):
    sums = federated_sums(np.random.default_rng(1).normal(size=(240, 4)), np.ones((240, 1)))
    assert not could_be_moments(spoil(sums))

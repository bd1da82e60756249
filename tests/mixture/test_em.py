import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from torch.nn import functional as F

from fedhet_app.mixture.em import (
    component_posterior,
    effective_components,
    log_mixture,
    log_weights,
    mixture_probabilities,
    purity,
    responsibilities,
    supervised_loss,
)

SEEDS = st.integers(0, 2**32)


def client(seed, n=17, components=3, classes=5, scale=3.0):
    """Logits, labels, scores and mixing weights of one client, as NumPy arrays in float64."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(scale=scale, size=(n, components, classes)),
        rng.integers(classes, size=n),
        rng.normal(scale=scale, size=(n, components)),
        rng.dirichlet(np.ones(components)) + 1e-6,
    )


def tensors(logits, labels, scores, pi):
    return (
        torch.from_numpy(logits),
        torch.from_numpy(labels),
        torch.from_numpy(scores),
        log_weights(torch.from_numpy(pi)),
    )


def log_joint(logits, labels, scores, pi):
    """The logarithm of pi_c exp(s_c(x)) P_c(y|x), shape (n, C), one example at a time."""
    rows = [
        np.log(pi) + ratio + own[:, label] - logsumexp(own, axis=1)
        for own, label, ratio in zip(logits, labels, scores, strict=True)
    ]
    return np.array(rows)


@given(SEEDS)
def test_responsibilities_are_bayes_rule(seed):
    case = client(seed)
    joint = log_joint(*case)
    expected = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    w = responsibilities(*tensors(*case))
    assert w.dtype == torch.float32
    np.testing.assert_allclose(w.numpy(), expected, atol=1e-7)


@given(SEEDS, st.sampled_from([1.0, 30.0, 1e4]))
def test_responsibilities_and_posteriors_sum_to_one_whatever_the_scores(seed, scale):
    logits, labels, scores, log_pi = tensors(*client(seed, scale=scale))
    for weights in (
        responsibilities(logits, labels, scores, log_pi),
        component_posterior(scores, log_pi),
    ):
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.double().sum(dim=1), 1.0, atol=1e-6)


@given(SEEDS, st.integers(1, 5))
def test_identical_components_get_exactly_equal_weights(seed, components):
    logits, labels, scores, _ = client(seed, components=1)
    log_pi = log_weights(torch.full((components,), 1 / components))
    w = responsibilities(
        torch.from_numpy(logits).float().expand(-1, components, -1),
        torch.from_numpy(labels),
        torch.from_numpy(scores).float().expand(-1, components),
        log_pi,
    )
    assert torch.equal(w, torch.full_like(w, 1 / components))


@given(SEEDS)
def test_the_likelihood_of_the_mixture_is_the_sum_over_its_components(seed):
    case = client(seed)
    expected = logsumexp(log_joint(*case), axis=1)
    np.testing.assert_allclose(log_mixture(*tensors(*case)), expected, rtol=1e-6, atol=1e-6)


def test_without_a_label_bayes_rule_by_hand():
    scores, pi = torch.tensor([[0.0, np.log(3.0)], [0.0, 0.0]]), torch.tensor([0.75, 0.25])
    posterior = component_posterior(scores, log_weights(pi))
    np.testing.assert_allclose(posterior, [[0.5, 0.5], [0.75, 0.25]], atol=1e-7)


def test_a_dead_component_has_a_finite_logarithm_and_no_weight():
    log_pi = log_weights(torch.tensor([1.0, 0.0]))
    assert log_pi.tolist() == pytest.approx([0.0, np.log(1e-8)])
    assert component_posterior(torch.zeros(1, 2), log_pi)[0, 1] < 1e-7


@given(SEEDS)
def test_the_mixture_predicts_by_total_probability(seed):
    logits, _, scores, pi = client(seed)
    posterior = np.exp(scores) * pi / (np.exp(scores) * pi).sum(axis=1, keepdims=True)
    expected = np.zeros((len(logits), logits.shape[2]))
    for c in range(len(pi)):
        shares = np.exp(logits[:, c])
        expected += posterior[:, c : c + 1] * shares / shares.sum(axis=1, keepdims=True)
    torch_posterior = component_posterior(
        torch.from_numpy(scores), log_weights(torch.from_numpy(pi))
    )
    mixed = mixture_probabilities(torch.from_numpy(logits), torch_posterior)
    np.testing.assert_allclose(mixed, expected, atol=1e-6)
    np.testing.assert_allclose(mixed.sum(dim=1), 1.0, atol=1e-6)


@given(SEEDS)
def test_the_supervised_loss_is_the_weighted_mean_of_cross_entropies(seed):
    logits, labels, scores, _ = client(seed)
    w = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    no_ratios = log_joint(logits, labels, np.zeros_like(scores), np.ones(3))
    expected = -(w * no_ratios).sum() / len(labels)
    loss = supervised_loss(*(torch.from_numpy(array) for array in (logits, labels, w)))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@given(SEEDS, st.integers(1, 130))
def test_with_one_component_the_loss_is_cross_entropy_and_its_gradient_to_the_bit(seed, batch):
    logits, labels, _, _ = client(seed, n=batch, components=1)
    ours = torch.from_numpy(logits).float().requires_grad_()
    plain = ours.detach()[:, 0].clone().requires_grad_()
    loss = supervised_loss(ours, torch.from_numpy(labels), torch.ones(batch, 1))
    expected = F.cross_entropy(plain, torch.from_numpy(labels))
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.equal(ours.grad[:, 0], plain.grad)


def expected_log(case, w):
    """Q1 + Q3 and the part of Q2 that depends on the client's own scores (Eq. 8)."""
    return (w * log_joint(*case)).sum()


@given(SEEDS, SEEDS)
def test_the_likelihood_rises_at_least_as_much_as_its_lower_bound(seed, other):
    """Q(zeta') - Q(zeta) <= pl(zeta') - pl(zeta), w taken at zeta; the r_ij cancel (Lemma 1)."""
    old, new = client(seed), client(other)
    new = (new[0], old[1], *new[2:])
    w = responsibilities(*tensors(*old)).double().numpy()
    rise = logsumexp(log_joint(*new), axis=1).sum() - logsumexp(log_joint(*old), axis=1).sum()
    assert expected_log(new, w) - expected_log(old, w) <= rise + 1e-4


@pytest.mark.parametrize(
    ("pi", "expected"), [([0.5, 0.5], 2), ([1, 0, 0], 1), ([0.5, 0.25, 0.25], 2**1.5)]
)
def test_effective_components_by_hand(pi, expected):
    assert effective_components(torch.tensor(pi)) == pytest.approx(expected)


def test_purity_by_hand():
    """Groups {0, 0, 1}, {1} and {0, 1}: the commonest components make up 2 + 1 + 1 of 6."""
    w = torch.eye(3)[[0, 0, 0, 1, 2, 2]]
    truth = torch.tensor([0, 0, 1, 1, 0, 1])
    assert purity(w, truth) == pytest.approx(4 / 6)


@given(SEEDS)
def test_purity_is_never_below_the_majority_and_one_for_the_truth(seed):
    rng = np.random.default_rng(seed)
    w = torch.from_numpy(rng.dirichlet(np.ones(3), size=20))
    truth = torch.from_numpy(rng.integers(2, size=20))
    assert torch.bincount(truth).max() / len(truth) <= purity(w, truth) <= 1
    assert purity(torch.eye(2)[truth], truth) == 1

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.mixture.routing import (
    client_log_weights,
    confusion,
    majority,
)

SEEDS = st.integers(0, 2**32)


def queries(seed, n=13, clients=5, components=3):
    rng = np.random.default_rng(seed)
    return (
        torch.from_numpy(rng.normal(scale=2, size=(n, clients, components))),
        torch.from_numpy(rng.uniform(0.1, 50, size=(clients, components))),
    )


@given(SEEDS)
def test_the_rule_is_the_argmax_of_the_summed_joint_softmax(seed):
    scores, tau = queries(seed)
    joint = (tau * scores.exp()).flatten(1)
    summed = (joint / joint.sum(dim=1, keepdim=True)).view(scores.shape).sum(dim=2)
    probabilities = client_log_weights(scores, tau, prior=True).softmax(dim=1)
    np.testing.assert_allclose(probabilities, summed, atol=1e-12)
    assert torch.equal(
        client_log_weights(scores, tau, prior=True).argmax(dim=1), summed.argmax(dim=1)
    )


@given(SEEDS, st.booleans())
def test_the_weights_are_those_of_equation_10(seed, prior):
    scores, tau = queries(seed)
    sizes = tau.sum(dim=1)
    pi = tau / sizes[:, None]
    expected = (pi * scores.exp()).sum(dim=2).log()
    if prior:
        expected += sizes.log()
    weights = client_log_weights(scores, tau, prior)
    np.testing.assert_allclose(weights, expected, atol=1e-12)


@given(SEEDS, st.booleans(), st.permutations(range(5)))
def test_permuting_the_clients_permutes_the_routing(seed, prior, order):
    scores, tau = queries(seed)
    before = client_log_weights(scores, tau, prior).softmax(dim=1)
    after = client_log_weights(scores[:, order], tau[order], prior).softmax(dim=1)
    np.testing.assert_allclose(after, before[:, order], atol=1e-12)
    np.testing.assert_allclose(after.sum(dim=1), 1.0, atol=1e-12)


def test_the_prior_decides_where_the_densities_do_not():
    """Densities 1 and 2 with 30 and 10 examples: 30 > 20, but 1 < 2."""
    scores = torch.tensor([[[0.0], [np.log(2.0)]]])
    tau = torch.tensor([[30.0], [10.0]])
    assert client_log_weights(scores, tau, prior=True).argmax(dim=1).tolist() == [0]
    assert client_log_weights(scores, tau, prior=False).argmax(dim=1).tolist() == [1]


def test_a_client_without_responsibilities_is_never_chosen_and_finite():
    weights = client_log_weights(torch.zeros(1, 2, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), True)
    assert torch.isfinite(weights).all()
    assert weights.argmax(dim=1).tolist() == [1]


def votes(*classes, strength=0.9, num_classes=4):
    """One query: every voter puts one class first, with a probability of its own."""
    rest = (1 - strength) / (num_classes - 1)
    rows = torch.full((len(classes), 1, num_classes), rest)
    rows[torch.arange(len(classes)), 0, list(classes)] = strength
    return rows


def test_most_votes_win_even_against_more_probability():
    loud, quiet = votes(3, strength=0.97), votes(1, 1, strength=0.4)
    for tie in ("smallest", "prob"):
        assert majority(torch.cat([loud, quiet]), tie).tolist() == [1]


def test_ties_go_to_the_smallest_class_as_torch_mode_does():
    ballot = votes(3, 1, 1, 3)
    assert majority(ballot, "smallest").tolist() == [1]
    assert torch.mode(torch.tensor([3, 1, 1, 3])).values.item() == 1


def test_ties_go_to_the_largest_summed_probability_among_those_tied():
    ballot = torch.cat(
        [votes(3, 3, strength=0.9), votes(1, 1, strength=0.5), votes(0, strength=0.99)]
    )
    assert majority(ballot, "prob").tolist() == [3]
    assert majority(ballot, "smallest").tolist() == [1]


@given(SEEDS)
def test_identical_voters_say_what_one_says(seed):
    one = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(6), size=9))
    for tie in ("smallest", "prob"):
        assert torch.equal(majority(one.expand(8, -1, -1), tie), one.argmax(dim=1))


def test_the_confusion_counts_by_hand():
    true, chosen = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 1])
    assert confusion(true, chosen, 3).tolist() == [[1, 1, 0], [0, 3, 0], [0, 0, 0]]


@pytest.mark.parametrize("num_clients", [1, 4])
def test_the_confusion_of_no_queries_is_zero(num_clients):
    none = torch.empty(0, dtype=torch.int64)
    assert confusion(none, none, num_clients).tolist() == [[0] * num_clients] * num_clients

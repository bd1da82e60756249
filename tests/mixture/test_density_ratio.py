import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fedhet_app.mixture.density_ratio import drm_loss, log_tau

CLIENTS, COMPONENTS, BATCH, OWN = 4, 3, 11, 2


def batch(seed):
    rng = np.random.default_rng(seed)
    return (
        torch.from_numpy(rng.normal(scale=3, size=(BATCH, CLIENTS, COMPONENTS))),
        torch.from_numpy(rng.uniform(0.1, 50, size=(CLIENTS, COMPONENTS))),
        torch.from_numpy(rng.dirichlet(np.ones(COMPONENTS), size=BATCH)),
    )


def surrogate(scores, tau, w, own):
    """Q2~_i as it stands in the paper: a sum over examples."""
    fitted = (w * scores[:, own]).sum()
    return fitted - (tau * scores.exp()).sum(dim=(1, 2)).log().sum()


@given(st.integers(0, 2**32))
def test_the_loss_is_the_surrogate_up_to_its_constant(seed):
    scores, tau, w = batch(seed)
    constant = (w * tau[OWN].log()).sum()
    expected = -(surrogate(scores, tau, w, OWN) + constant) / BATCH
    assert drm_loss(scores, log_tau(tau), w, OWN).item() == pytest.approx(
        expected.item(), abs=1e-12
    )


@given(st.integers(0, 2**32), st.floats(-50, 50))
def test_a_constant_added_to_every_gamma_does_not_matter(seed, constant):
    scores, tau, w = batch(seed)
    before = drm_loss(scores, log_tau(tau), w, OWN).item()
    assert drm_loss(scores + constant, log_tau(tau), w, OWN).item() == pytest.approx(
        before, abs=1e-11
    )


@given(st.integers(0, 2**32))
def test_with_one_component_it_is_cross_entropy_on_the_client(seed):
    scores, tau, _ = batch(seed)
    scores, sizes = scores[:, :, :1], tau[:, :1]
    logits = scores[:, :, 0] + sizes[:, 0].log()
    expected = F.cross_entropy(logits, torch.full((BATCH,), OWN))
    loss = drm_loss(scores, log_tau(sizes), torch.ones(BATCH, 1), OWN)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)


def test_a_component_without_examples_does_not_break_the_loss():
    scores = torch.zeros(1, 2, 2)
    tau = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
    loss = drm_loss(scores, log_tau(tau), torch.tensor([[1.0, 0.0]]), 0)
    assert loss.item() == pytest.approx(-np.log(3 / 4), abs=1e-6)

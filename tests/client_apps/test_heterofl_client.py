"""HeteroFL's masked loss and scaler against a few lines of NumPy and torch."""

import numpy as np
import pytest
import torch
from running import model_bytes, run
from torch import nn
from torch.nn.functional import conv2d, linear, max_pool2d
from user_models import build_flatten, image_spec

from client_apps import heterofl
from fedhet_app.models import initial_module
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.slicing import Slicer


def test_absent_labels_have_a_logit_of_zero_and_learn_nothing():
    model = FlatModule(nn.Linear(2, 3))
    model.load(np.array([1, 0, 0, 2, 3, 3, 0.5, 0, 7], dtype=np.float32))
    inputs, labels = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([0, 1])
    objective = heterofl.masked_cross_entropy(torch.tensor([False, False, True]))
    loss = objective(lambda module, x: module.module(x), model, inputs, labels)
    logits = np.array([[1.5, 4.0, 0.0], [0.5, 2.0, 0.0]])  # the third is 16 and 10 unmasked
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert loss.item() == pytest.approx(-np.log(softmax[[0, 1], [0, 1]]).mean(), rel=1e-5)
    errors = (softmax - np.eye(3)[[0, 1]]) / 2
    errors[:, 2] = 0
    expected = np.concatenate([(errors.T @ inputs.numpy()).ravel(), errors.sum(0)])
    np.testing.assert_allclose(model.grad.numpy(), expected, atol=1e-6)


def test_outputs_of_cut_layers_are_divided_by_the_width_before_what_follows():
    width = 0.5
    layers = Slicer(build_flatten, image_spec()).cut_layers()
    module = initial_module(lambda _, spec: build_flatten(width, spec), image_spec(), "default", 0)
    images = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = module(images)
    with heterofl.scaled_outputs(module, layers, width):
        trained = module(images)
    convolution, hidden, classifier = module[0], module[4], module[6]
    features = conv2d(images, convolution.weight, convolution.bias, padding=1) / width
    features = max_pool2d(features.relu(), 2).flatten(1)
    states = (linear(features, hidden.weight, hidden.bias) / width).relu()
    torch.testing.assert_close(trained, linear(states, classifier.weight, classifier.bias))
    assert not torch.allclose(trained, plain)
    torch.testing.assert_close(module(images), plain, rtol=0, atol=0)


def test_hooks_are_gone_after_a_client_that_failed():
    module = nn.Sequential(nn.Linear(1, 1))
    with pytest.raises(ZeroDivisionError), heterofl.scaled_outputs(module, ("0",), 0.5):
        raise ZeroDivisionError
    assert not module[0]._forward_hooks


@pytest.mark.parametrize("option", ["heterofl__scaler", "heterofl__masked_classifier"])
def test_each_option_changes_the_run(option, tmp_path):
    options = {"strategy": "heterofl", "norm": "none"}
    plain = run(tmp_path / "plain", **options)
    other = run(tmp_path / "option", **options, **{option: True})
    assert model_bytes(plain) != model_bytes(other)

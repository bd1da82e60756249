import numpy as np
import pytest
import torch

from fedhet_app.errors import FedhetError
from fedhet_app.models import ModelSpec, builder_for, cnn, lstm, mlp
from fedhet_app.models.encoders import build_encoder
from fedhet_app.submodel.slicing import Slicer

ROWS = ModelSpec(input_shape=(5,), num_classes=3)


@pytest.mark.parametrize("width", [0.1, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("shape", [(5,), (3, 4, 6)])
def test_rows_and_images_become_logits(width, shape):
    module = builder_for("mlp")(width, ModelSpec(input_shape=shape, num_classes=3))
    assert module(torch.randn(2, *shape)).shape == (2, 3)


def test_a_slice_is_the_leading_units_with_whole_inputs_and_classifier_rows():
    """Against plain NumPy indexing of the full network's matrices."""
    slicer, full = Slicer(mlp.build, ROWS), mlp.build(1.0, ROWS)
    vector = np.concatenate([p.detach().numpy().ravel() for p in full.parameters()])
    part = vector[slicer.index(0.25)]
    h1, h2, out = full.hidden1, full.hidden2, full.classifier
    expected = [
        h1.weight[:16],
        h1.bias[:16],
        h2.weight[:16, :16],
        h2.bias[:16],
        out.weight[:, :16],
        out.bias,
    ]
    flat = np.concatenate([tensor.detach().numpy().ravel() for tensor in expected])
    assert np.array_equal(part, flat)


def test_units_roll_together_in_both_layers_they_belong_to():
    slicer, names = Slicer(mlp.build, ROWS), np.arange(Slicer(mlp.build, ROWS).size)
    index = names[slicer.index(0.5, 40)]
    first = np.arange(5 * 64).reshape(64, 5)
    rolled = sorted((40 + np.arange(32)) % 64)
    assert index[: 32 * 5].tolist() == first[rolled].ravel().tolist()


def test_an_embedding_keeps_its_rows():
    spec = ModelSpec(input_shape=(5,), num_classes=3, embedding=7)
    assert mlp.build(0.5, spec).embedding.weight.shape == (7, 32)


def test_networks_say_what_they_do_not_take():
    text = ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95)
    with pytest.raises(FedhetError, match=r"model = 'mlp': takes images or rows of numbers.*lstm"):
        mlp.build(1.0, text)
    with pytest.raises(FedhetError, match=r"model = 'cnn': takes images, .* only mlp reads them"):
        cnn.build(1.0, ROWS)
    with pytest.raises(FedhetError, match=r"'small': takes images, .* only mlp reads them"):
        build_encoder("small", 8, ROWS)
    with pytest.raises(FedhetError, match="model = 'lstm': takes text"):
        lstm.build(1.0, ROWS)

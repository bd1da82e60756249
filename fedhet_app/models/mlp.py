"""Multilayer perceptron: two hidden layers and one linear classifier, for rows of numbers.

Images are flattened to such rows. The input columns stay whole at every width; both hidden layers
are cut.
"""

import math
from collections import OrderedDict

from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.models.embedding import classifier_layers
from fedhet_app.models.layers import scaled
from fedhet_app.models.spec import ModelSpec

UNITS = (64, 64)


def build(width: float, spec: ModelSpec) -> nn.Module:
    """Return the network of one width; inputs, embedding and classifier rows stay whole.

    Args:
        width: Fraction of the units of both hidden layers, in (0, 1].
        spec: Input shape (F,) or (C, H, W), classes and embedding.

    Returns:
        A module from rows (B, F), or images (B, C, H, W), to (B, num_classes) logits.

    Raises:
        FedhetError: The data set is text.
    """
    if spec.vocabulary:
        remedy = "takes images or rows of numbers, and the data set is text: only lstm reads it"
        raise FedhetError("model", "mlp", remedy)
    inputs = math.prod(spec.input_shape)
    a, b = (scaled(units, width) for units in UNITS)
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden1=nn.Linear(inputs, a),
            relu1=nn.ReLU(),
            hidden2=nn.Linear(a, b),
            relu2=nn.ReLU(),
            **classifier_layers(b, spec),
        )
    )

"""Networks as a user would write them: one function of width and spec, no table of parameters."""

import torch
from torch import nn

from fedhet_app.models import ModelSpec, channel_multiple, cnn, norm_layer, resnet, scaled

VOCABULARY = 11
EMBEDDING = 5


def build_flatten(width, spec):
    """Convolution, flatten, hidden linear layer, classifier."""
    inputs, height, breadth = spec.input_shape
    channels, hidden = scaled(6, width), scaled(10, width)
    return nn.Sequential(
        nn.Conv2d(inputs, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * (height // 2) * (breadth // 2), hidden),
        nn.ReLU(),
        nn.Linear(hidden, spec.num_classes),
    )


class _Residual(nn.Module):
    def __init__(self, inputs, outputs, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = norm_layer(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x):
        out = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


def build_residual(width, spec):
    """Two residual blocks with 1x1 shortcuts."""
    multiple = channel_multiple(spec.norm)
    first, second = scaled(8, width, multiple), scaled(16, width, multiple)
    return nn.Sequential(
        _Residual(spec.input_shape[0], first, spec.norm),
        _Residual(first, second, spec.norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(second, spec.num_classes),
    )


class _Recurrent(nn.Module):
    def __init__(self, kind, hidden, num_classes):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        self.layers = kind(EMBEDDING, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, x):
        states, _ = self.layers(self.embedding(x.flatten(1).long()))
        return self.output(states[:, -1])


def build_lstm(width, spec):
    """Embedding and output rows whole, two LSTM layers."""
    return _Recurrent(nn.LSTM, scaled(12, width), spec.num_classes)


def build_gru(width, spec):
    """Embedding and output rows whole, two GRU layers."""
    return _Recurrent(nn.GRU, scaled(12, width), spec.num_classes)


def image_spec(norm="none", preset="small", **embedding):
    return ModelSpec(input_shape=(2, 8, 8), num_classes=3, norm=norm, preset=preset, **embedding)


def token_spec():
    return ModelSpec(input_shape=(1, 1, 6), num_classes=3)


NETWORKS = {
    "cnn-none": (cnn.build, image_spec("none")),
    "cnn-gn": (cnn.build, image_spec("gn")),
    "cnn-bn": (cnn.build, image_spec("bn")),
    "cnn-sbn": (cnn.build, image_spec("sbn")),
    "cnn-embedding": (cnn.build, image_spec("gn", embedding=5, embed_norm="ln-relu")),
    "resnet8-none": (resnet.build_resnet8, image_spec("none")),
    "resnet8-gn": (resnet.build_resnet8, image_spec("gn")),
    "resnet8-embedding": (resnet.build_resnet8, image_spec("gn", embedding=5)),
    "flatten": (build_flatten, image_spec()),
    "residual-none": (build_residual, image_spec("none")),
    "residual-gn": (build_residual, image_spec("gn")),
    "residual-bn": (build_residual, image_spec("bn")),
    "lstm": (build_lstm, token_spec()),
    "gru": (build_gru, token_spec()),
}


def build_wide(width, spec):
    """Two linear layers of so many units that the width decides on tens of megabytes."""
    units = scaled(3600, width)
    inputs, height, breadth = spec.input_shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs * height * breadth, units),
        nn.ReLU(),
        nn.Linear(units, units),
        nn.ReLU(),
        nn.Linear(units, spec.num_classes),
    )

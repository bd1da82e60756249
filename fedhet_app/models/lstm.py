"""A two-layer LSTM that predicts the symbol behind a window of text.

Embedding of size 8 -> two LSTM layers -> last step -> one linear layer: the network of LEAF's
Shakespeare task (arXiv:1812.01097). Embedding, output rows and output bias are whole at every
width; the hidden units are cut inside each gate. At the ``paper`` size a quarter width has 7.2 %
and a half width 26.2 % of the parameters.
"""

from torch import Tensor, nn

from fedhet_app.errors import FedhetError
from fedhet_app.models.layers import scaled
from fedhet_app.models.spec import ModelSpec

PRESETS: dict[str, int] = {"small": 128, "paper": 256}

_EMBEDDING = 8
_LAYERS = 2


class NextSymbol(nn.Module):
    """Predicts the next symbol.

    Args:
        vocabulary: Number of symbols that are read.
        hidden: Units of each layer.
        num_classes: Number of symbols that are predicted.
    """

    def __init__(self, vocabulary: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _EMBEDDING)
        self.lstm = nn.LSTM(_EMBEDDING, hidden, num_layers=_LAYERS, batch_first=True)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, symbols: Tensor) -> Tensor:
        """Return the logits (B, num_classes) of windows of symbols (B, L)."""
        states, _ = self.lstm(self.embedding(symbols))  # (B, L, hidden)
        logits: Tensor = self.output(states[:, -1])
        return logits


def build(width: float, spec: ModelSpec) -> nn.Module:
    """Return the network of one width; embedding and output rows stay whole.

    Args:
        width: Fraction of the units of both layers, in (0, 1].
        spec: Input shape (L,), vocabulary, classes and preset.

    Returns:
        A module from (B, L) symbols to (B, num_classes) logits.

    Raises:
        FedhetError: The preset is unknown, the data set is no text, or an embedding is asked for.
    """
    if spec.preset not in PRESETS:
        raise FedhetError("preset", spec.preset, f"unknown; use one of {', '.join(PRESETS)}")
    if not spec.vocabulary:
        raise FedhetError("model", "lstm", "takes text, and the data set is none; use cnn or mlp")
    if spec.embedding:
        raise FedhetError("embedding", spec.embedding, "has no effect with model = lstm; use 0")
    return NextSymbol(spec.vocabulary, scaled(PRESETS[spec.preset], width), spec.num_classes)

"""The layers at the end of an image network: an optional embedding, then the classifier.

The embedding's rows, like the classifier's, are whole at every width: only its columns are sliced.
"""

from collections.abc import Callable

from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.models.spec import ModelSpec

EMBED_NORMS: dict[str, Callable[[int], dict[str, nn.Module]]] = {
    "none": lambda size: {},
    "ln-relu": lambda size: {"embedding_norm": nn.LayerNorm(size), "embedding_relu": nn.ReLU()},
}


def classifier_layers(features: int, spec: ModelSpec) -> dict[str, nn.Module]:
    """Return the layers from features (B, F) to logits (B, num_classes), by name and in order.

    Args:
        features: F, at the width of the network.
        spec: Classes, embedding and its norm.

    Raises:
        FedhetError: The embedding's norm is unknown, or there is no embedding to normalise.
    """
    if spec.embed_norm not in EMBED_NORMS:
        remedy = f"unknown; use one of {', '.join(EMBED_NORMS)}"
        raise FedhetError("embed-norm", spec.embed_norm, remedy)
    layers: dict[str, nn.Module] = {}
    if spec.embedding:
        layers["embedding"] = nn.Linear(features, spec.embedding)
        layers |= EMBED_NORMS[spec.embed_norm](spec.embedding)
    elif spec.embed_norm != "none":
        raise FedhetError(
            "embed-norm", spec.embed_norm, "needs an embedding; set embedding above 0"
        )
    layers["classifier"] = nn.Linear(spec.embedding or features, spec.num_classes)
    return layers

"""Networks that come in every width, and the look-up of a network by name."""

import importlib

from fedhet_app.errors import FedhetError, one_line
from fedhet_app.models import cnn, lstm, mlp, resnet
from fedhet_app.models.contract import build_on_meta, check_logits
from fedhet_app.models.embedding import EMBED_NORMS
from fedhet_app.models.encoders import ENCODERS
from fedhet_app.models.initial import INITS, initial_module
from fedhet_app.models.layers import GROUP_SIZE, NORMS, channel_multiple, norm_layer, scaled
from fedhet_app.models.mixture import Predictor, Router, build_predictor, build_router
from fedhet_app.models.spec import Builder, ModelSpec

__all__ = [
    "EMBED_NORMS",
    "ENCODERS",
    "GROUP_SIZE",
    "INITS",
    "MODELS",
    "NORMS",
    "Builder",
    "ModelSpec",
    "Predictor",
    "Router",
    "build_on_meta",
    "build_predictor",
    "build_router",
    "builder_for",
    "channel_multiple",
    "check_logits",
    "initial_module",
    "norm_layer",
    "scaled",
]

MODELS: dict[str, Builder] = {
    "cnn": cnn.build,
    "resnet8": resnet.build_resnet8,
    "resnet18": resnet.build_resnet18,
    "lstm": lstm.build,
    "mlp": mlp.build,
}


def builder_for(name: str) -> Builder:
    """Return the builder of a network.

    Args:
        name: A key of ``MODELS``, or ``package.module:function`` of the user's own.

    Raises:
        FedhetError: The name is neither, or what it names cannot be imported or called.
    """
    if name in MODELS:
        return MODELS[name]
    path, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*path.split("."), attribute)):
        known = ", ".join(MODELS)
        raise FedhetError("model", name, f"unknown; use {known} or package.module:function")
    # The user's module may raise any error there is.
    try:
        builder = getattr(importlib.import_module(path), attribute, None)
    except Exception as error:
        remedy = f"cannot import {path}; mend it or name another module: {one_line(error)}"
        raise FedhetError("model", name, remedy) from error
    if not callable(builder):
        raise FedhetError("model", name, f"{path} has no function {attribute}(width, spec)")
    found: Builder = builder
    return found

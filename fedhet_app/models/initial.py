"""The initial weights of a run."""

from collections.abc import Callable
from types import MethodType

from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.models.spec import Builder, ModelSpec
from fedhet_app.seeding import torch_seeded


def _keep(module: nn.Module) -> None:
    pass


def _kaiming(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _torch(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(reset := getattr(layer, "reset_parameters", None), MethodType):
            reset()


INITS: dict[str, Callable[[nn.Module], None]] = {
    "default": _keep,
    "kaiming": _kaiming,
    "torch": _torch,
}


def initial_module(
    builder: Builder, spec: ModelSpec, init: str, seed: int, *keys: int
) -> nn.Module:
    """Build the full network with the initial weights of a seed.

    Args:
        builder: Builds the network of a width.
        spec: What the network is built from.
        init: ``default`` keeps what the network draws for itself; ``kaiming`` redraws the weights
            of convolutions and linear layers from N(0, 2 / fan_in) and zeroes their biases;
            ``torch`` lets every layer draw as torch's layers do, which undoes a network's own
            choices, such as a ResNet's blocks that start as nothing but their shortcut.
        seed: The run's seed.
        *keys: Tell several models of one run apart.

    Raises:
        FedhetError: The initialisation is unknown.
    """
    if init not in INITS:
        raise FedhetError("init", init, f"unknown; use one of {', '.join(INITS)}")
    with torch_seeded(seed, "init", *keys):
        module = builder(1.0, spec)
        INITS[init](module)
    return module

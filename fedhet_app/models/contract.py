"""What every builder owes, checked without a single number: on torch's meta device."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedhet_app.errors import FedhetError, one_line
from fedhet_app.models.spec import Builder, ModelSpec

_BATCH = 2


def build_on_meta(builder: Builder, width: float, spec: ModelSpec) -> nn.Module:
    """Return the network of one width, on the meta device: no weight is drawn or stored.

    Args:
        builder: Builds the network of a width.
        width: Fraction of the channels, in (0, 1].
        spec: What the network is built from.

    Raises:
        FedhetError: The builder fails, returns no module, or one whose shapes are still open.
    """
    try:
        with torch.device("meta"):
            module = builder(width, spec)
    except FedhetError:
        raise
    # The user's code may raise any error there is.
    except Exception as error:
        remedy = (
            f"cannot be built as build(width, spec) at width {width:g} on the meta device; "
            f"read no tensor's values: {one_line(error)}"
        )
        raise FedhetError("model", _name(builder), remedy) from error
    if not isinstance(module, nn.Module):
        remedy = f"must return a torch.nn.Module, not {type(module).__name__}"
        raise FedhetError("model", _name(builder), remedy)
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise FedhetError("model", _name(builder), "has lazy layers; give each its input size")
    return module


@torch.no_grad()
def check_logits(builder: Builder, width: float, spec: ModelSpec) -> None:
    """Send two examples of the data's shape through the network of one width.

    Args:
        builder: Builds the network of a width.
        width: Fraction of the channels, in (0, 1].
        spec: What the network is built from.

    Raises:
        FedhetError: The network cannot be built, does not take the examples, or gives anything but
            logits (2, num_classes).
    """
    module = build_on_meta(builder, width, spec).eval()
    given = f"examples of shape {spec.input_shape} at width {width:g}"
    try:
        with torch.device("meta"):
            logits = module(spec.example_inputs(_BATCH))
    except Exception as error:
        remedy = f"its forward fails for {given} on the meta device: {one_line(error)}"
        raise FedhetError("model", _name(builder), remedy) from error
    wanted = (_BATCH, spec.num_classes)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != wanted:
        shape = tuple(getattr(logits, "shape", ())) or type(logits).__name__
        remedy = f"gives {shape} for {_BATCH} {given}; must give logits of shape {wanted}"
        raise FedhetError("model", _name(builder), remedy)


def _name(builder: Builder) -> str:
    return str(getattr(builder, "__qualname__", repr(builder)))

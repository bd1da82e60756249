"""The two networks of FedSPM: class probabilities and density ratios, one per component.

FedSPM ("FedSPM: Routing-Enabled Federated Learning under Dual Heterogeneity via Semiparametric
Mixture"), Section 2.1: component c of client i has the classifier
P_ic(k|x) = softmax_k(alpha_ikc + beta_ikc . g_c(x)) (Eq. 2) and the density ratio
log dP_ic/dG(x) = gamma_ic + xi_ic . h_c(x) (Eq. 3). Each of the encoders g and h is one for all
components (1x) or one per component (Cx). An encoder's parameters come first, so that what clients
share leads the flat vector and a client's own heads follow. With C = 1 both are FedDRM's.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedhet_app.errors import FedhetError
from fedhet_app.models.encoders import build_encoder
from fedhet_app.models.spec import Builder, ModelSpec


class Heads(nn.Module):
    """The linear classifiers of all components: ``weight`` beta (C, K, d), ``bias`` alpha (C, K).

    Args:
        layers: One classifier per component, whose values are copied.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        zeros = torch.zeros(layers[0].out_features)
        biases = [zeros if layer.bias is None else layer.bias.detach() for layer in layers]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.stack(biases))


class Table(nn.Module):
    """The density ratios of all clients and components: ``xi`` (m, C, d) and ``gamma`` (m, C).

    Args:
        layers: One layer from d to m per component, whose weights are copied; gamma is zero.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.xi = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers], dim=1))
        self.gamma = nn.Parameter(torch.zeros(layers[0].out_features, len(layers)))


class Predictor(nn.Module):
    """The classifiers of all components of one client.

    Args:
        encoders: One network g, or one per component, from (B, *input_shape) to (B, d).
        heads: The classifiers.
    """

    def __init__(self, encoders: Sequence[nn.Module], heads: Heads) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C, K) of examples (B, *input_shape) (Eq. 2 before its softmax)."""
        weight, bias = self.heads.weight, self.heads.bias
        if len(self.encoders) == 1:
            flat = F.linear(self.encoders[0](x), weight.flatten(0, 1), bias.flatten())
            return flat.view(-1, *bias.shape)
        logits = torch.baddbmm(bias.unsqueeze(1), _features(self.encoders, x), weight.mT)
        return logits.transpose(0, 1)


class Router(nn.Module):
    """The density ratios of all clients' components.

    Args:
        encoders: One network h, or one per component, from (B, *input_shape) to (B, d).
        table: The ratios' parameters.
    """

    def __init__(self, encoders: Sequence[nn.Module], table: Table) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        """Return s (B, m, C) = gamma + xi . h_c(x) of examples (B, *input_shape) (Eq. 3)."""
        xi, gamma = self.table.xi, self.table.gamma
        if len(self.encoders) == 1:
            flat = F.linear(self.encoders[0](x), xi.flatten(0, 1), gamma.flatten())
            return flat.view(-1, *gamma.shape)
        return torch.einsum("cbd,mcd->bmc", _features(self.encoders, x), xi) + gamma


def build_predictor(
    builder: Builder,
    spec: ModelSpec,
    *,
    components: int,
    per_component: bool,
    identical: bool = False,
) -> Predictor:
    """Build the classifiers of all components, drawing from torch's generator.

    Component 1 is the network as its builder draws it, so that with one component the initial
    logits are those of the network itself.

    Args:
        builder: Builds the network whose layers before ``classifier`` are the encoder.
        spec: What it is built from.
        components: C, at least 1.
        per_component: Whether each component has an encoder of its own (Cx).
        identical: Whether all components start as the first.

    Raises:
        FedhetError: The network has no linear layer named ``classifier``.
    """
    networks = _drawn(lambda: builder(1.0, spec), components if per_component else 1, identical)
    layers = [_behead(network) for network in networks]
    first = layers[0]
    if not per_component:
        size = first.in_features, first.out_features
        layers += [first if identical else nn.Linear(*size) for _ in range(components - 1)]
    return Predictor(networks, Heads(layers))


def build_router(
    spec: ModelSpec,
    *,
    encoder: str,
    embedding: int,
    num_clients: int,
    components: int,
    per_component: bool,
    identical: bool = False,
) -> Router:
    """Build the density ratios of all clients' components, drawing from torch's generator.

    Args:
        spec: The input shape.
        encoder: A key of ``encoders.ENCODERS``.
        embedding: Size d of what the encoder puts out.
        num_clients: m.
        components: C, at least 1.
        per_component: Whether each component has an encoder of its own (Cx).
        identical: Whether all components start as the first.

    Raises:
        FedhetError: The encoder is unknown, or it cannot take the data set's examples.
    """
    count = components if per_component else 1
    encoders = _drawn(lambda: build_encoder(encoder, embedding, spec), count, identical)
    # xi must not start at zero: the encoder would get no gradient.
    layers = [nn.Linear(embedding, num_clients, bias=False) for _ in range(components)]
    return Router(encoders, Table(layers[:1] * components if identical else layers))


def _features(encoders: nn.ModuleList, x: Tensor) -> Tensor:
    """Return the features (C, B, d) of all components' encoders."""
    return torch.stack([encoder(x) for encoder in encoders])


def _drawn(draw: Callable[[], nn.Module], count: int, identical: bool) -> list[nn.Module]:
    first = draw()
    rest = (copy.deepcopy(first) if identical else draw() for _ in range(count - 1))
    return [first, *rest]


def _behead(network: nn.Module) -> nn.Linear:
    """Take the classifier off a network, which then gives features (B, d)."""
    classifier = getattr(network, "classifier", None)
    if not isinstance(classifier, nn.Linear):
        remedy = "has no nn.Linear named classifier; name the layer that gives the logits so"
        raise FedhetError("model", type(network).__name__, remedy)
    network.classifier = nn.Identity()
    return classifier

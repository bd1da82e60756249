"""Predictor and router of a mixture: every logit and every density ratio from its own tensors."""

import numpy as np
import pytest
import torch
import user_models
from torch import nn
from torch.nn.functional import cross_entropy

from fedhet_app.errors import FedhetError
from fedhet_app.models import (
    ENCODERS,
    ModelSpec,
    Predictor,
    build_predictor,
    build_router,
    builder_for,
    initial_module,
)
from fedhet_app.models.encoders import build_encoder
from fedhet_app.models.mixture import Heads
from fedhet_app.seeding import torch_seeded
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import flatten, layout_of
from fedhet_app.submodel.shared import shared_index

SPEC = ModelSpec(input_shape=(2, 16, 16), num_classes=5, embedding=6)
CLIENTS, COMPONENTS, SIZE = 4, 3, 7


def predictor(*, model="cnn", spec=SPEC, seed=0, **options):
    arguments = {"components": COMPONENTS, "per_component": False} | options
    with torch_seeded(seed, "init"):
        return build_predictor(builder_for(model), spec, **arguments)


def router(*, spec=SPEC, seed=0, **options):
    arguments = {
        "encoder": "small",
        "embedding": SIZE,
        "num_clients": CLIENTS,
        "components": COMPONENTS,
        "per_component": False,
    } | options
    with torch_seeded(seed, "init"):
        return build_router(spec, **arguments)


def images(count=5, spec=SPEC):
    return torch.randn(count, *spec.input_shape, generator=torch.Generator().manual_seed(1))


def of_components(module, x):
    """Features (C, B, d) in double precision, an encoder for each component."""
    features = [encoder(x).detach().double().numpy() for encoder in module.encoders]
    return np.stack(features * (COMPONENTS if len(features) == 1 else 1))


@pytest.mark.parametrize("per_component", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_logits_are_an_affine_function_of_the_components_features(per_component, flat):
    module, x = predictor(per_component=per_component), images()
    module.heads.bias.data.normal_()
    weight, bias = (p.detach().double().numpy() for p in module.heads.parameters())
    assert (weight.shape, bias.shape) == ((COMPONENTS, 5, 6), (COMPONENTS, 5))
    expected = np.einsum("cbd,ckd->bck", of_components(module, x), weight) + bias
    found = (FlatModule(module).module if flat else module)(x)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("per_component", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_density_ratios_are_an_affine_function_of_the_components_features(per_component, flat):
    module, x = router(per_component=per_component), images()
    module.table.gamma.data.normal_()
    xi, gamma = (p.detach().double().numpy() for p in module.table.parameters())
    assert (xi.shape, gamma.shape) == ((CLIENTS, COMPONENTS, SIZE), (CLIENTS, COMPONENTS))
    expected = np.einsum("cbd,mcd->bmc", of_components(module, x), xi) + gamma
    found = (FlatModule(module).module if flat else module)(x)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)


def test_one_encoder_serves_as_its_copies_would():
    shared, x = predictor(), images()
    copies = predictor(per_component=True, identical=True)
    copies.heads.load_state_dict(shared.heads.state_dict())
    for encoder in copies.encoders:
        encoder.load_state_dict(shared.encoders[0].state_dict())
    torch.testing.assert_close(copies(x), shared(x))


@pytest.mark.parametrize("build", [predictor, router])
@pytest.mark.parametrize(("per_component", "encoders"), [(False, 1), (True, COMPONENTS)])
def test_each_encoder_runs_once(build, per_component, encoders):
    module, calls = build(per_component=per_component), []
    for encoder in module.encoders:
        encoder.register_forward_hook(lambda *call: calls.append(call))
    module(images())
    assert len(module.encoders) == len(calls) == encoders


@pytest.mark.parametrize("model", ["cnn", "resnet8"])
@pytest.mark.parametrize("per_component", [False, True])
def test_the_first_component_starts_as_the_plain_network(model, per_component):
    x = images()
    plain = initial_module(builder_for(model), SPEC, "default", 0)(x)
    mixture = predictor(model=model, per_component=per_component)(x)
    torch.testing.assert_close(mixture[:, 0], plain)
    torch.testing.assert_close(predictor(model=model, components=1)(x)[:, 0], plain)
    for other in range(1, COMPONENTS):
        assert not torch.allclose(mixture[:, other], plain, atol=0.01)


@pytest.mark.parametrize(("build", "axis"), [(predictor, 1), (router, 2)])
@pytest.mark.parametrize("per_component", [False, True])
def test_identical_components_are_equal_to_the_bit(build, axis, per_component):
    first, *others = build(per_component=per_component, identical=True)(images()).unbind(axis)
    assert len(others) == COMPONENTS - 1
    assert all(torch.equal(other, first) for other in others)
    first, *others = build(per_component=per_component)(images()).unbind(axis)
    assert not any(torch.allclose(other, first, atol=0.01) for other in others)


def test_heads_and_density_ratios_are_drawn_as_linear_layers_are():
    heads = predictor(components=400).heads
    xi, gamma = router(components=400, embedding=25).table.parameters()
    for values, fan_in in ((heads.weight, 6), (heads.bias, 6), (xi, 25)):
        limit = 1 / np.sqrt(fan_in)
        assert values.abs().max().item() == pytest.approx(limit, rel=0.01)
        assert values.std().item() == pytest.approx(limit / np.sqrt(3), rel=0.05)
    assert not gamma.any()


def test_heads_of_a_classifier_without_bias_start_with_zero_bias():
    heads = Heads([nn.Linear(2, 3, bias=False), nn.Linear(2, 3)])
    assert [bool(row.any()) for row in heads.bias] == [False, True]


@pytest.mark.parametrize("build", [predictor, router])
@pytest.mark.parametrize("per_component", [False, True])
def test_initial_values_follow_the_seed(build, per_component):
    first, same, other = (
        flatten(build(per_component=per_component, seed=seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("build", [predictor, router])
@pytest.mark.parametrize("per_component", [False, True])
def test_shapes_are_known_without_a_number(build, per_component):
    with torch.device("meta"):
        module = build(per_component=per_component)
        assert module(torch.zeros(2, *SPEC.input_shape)).is_meta
    assert layout_of(module) == layout_of(build(per_component=per_component))


@pytest.mark.parametrize("build", [predictor, router])
@pytest.mark.parametrize("per_component", [False, True])
def test_encoders_lead_the_vector(build, per_component):
    entries = layout_of(build(per_component=per_component)).entries
    first = next(n for n, entry in enumerate(entries) if not entry.name.startswith("encoders."))
    behind = {"predictor": ["heads.weight", "heads.bias"], "router": ["table.xi", "table.gamma"]}
    assert [entry.name for entry in entries[first:]] == behind[build.__name__]


@pytest.mark.parametrize(("norm", "buffers"), [("gn", 0), ("bn", 2 * (16 + 32 + 64 + 128))])
def test_all_but_the_heads_is_shared(norm, buffers):
    spec = ModelSpec(input_shape=(2, 16, 16), num_classes=5, norm=norm, embedding=6)
    layout = layout_of(predictor(spec=spec))
    own = COMPONENTS * (5 * 6 + 5)
    encoder = layout.num_params - own
    expected = [*range(encoder), *range(encoder + own, encoder + own + buffers)]
    assert shared_index(layout).tolist() == expected


@pytest.mark.parametrize("per_component", [False, True])
def test_every_parameter_of_a_predictor_gets_a_gradient(per_component):
    module = predictor(per_component=per_component)
    cross_entropy(module(images(8)).flatten(0, 1), torch.arange(8 * COMPONENTS) % 5).backward()
    assert [name for name, p in module.named_parameters() if not p.grad.any()] == []


def test_every_parameter_of_a_residual_predictor_gets_a_gradient_after_one_step():
    """At first a block is its shortcut: only its second norm learns."""
    module, labels = predictor(model="resnet8"), torch.arange(8 * COMPONENTS) % 5
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    untouched = []
    for _ in range(2):
        optimiser.zero_grad()
        cross_entropy(module(images(8)).flatten(0, 1), labels).backward()
        untouched.append({n for n, p in module.named_parameters() if not p.grad.any()})
        optimiser.step()
    inside = ("conv1.weight", "norm1.weight", "norm1.bias", "conv2.weight")
    names = {f"encoders.0.stage{stage}.0.{name}" for stage in (1, 2, 3) for name in inside}
    assert untouched == [names, set()]


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("per_component", [False, True])
def test_every_parameter_of_a_router_gets_a_gradient(encoder, per_component):
    module = router(encoder=encoder, per_component=per_component)
    scores = module(images(32)).flatten(1)  # over all clients' components
    cross_entropy(scores, torch.arange(32) % (CLIENTS * COMPONENTS)).backward()
    assert [name for name, p in module.named_parameters() if not p.grad.any()] == []


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("sides", [(16, 16), (17, 30), (28, 28), (33, 19)])
def test_embeddings_are_bounded_and_not_negative(encoder, sides):
    spec = ModelSpec(input_shape=(1, *sides), num_classes=2)
    found = build_encoder(encoder, 9, spec)(100 * images(6, spec))
    assert found.shape == (6, 9)
    assert found.min() >= 0
    assert found.max() > 0
    assert (found.norm(dim=1) <= 3 + 1e-5).all()  # sqrt(9)


def test_size_of_the_lenet_encoder_by_hand():
    spec = ModelSpec(input_shape=(3, 32, 32), num_classes=2)
    count = sum(p.numel() for p in build_encoder("lenet", 10, spec).parameters())
    first, second = 3 * 32 * 25 + 3 * 32, 32 * 64 * 25 + 3 * 64
    assert count == first + second + (1600 * 10 + 10) + 2 * 10


@pytest.mark.parametrize(("encoder", "side"), [("small", 8), ("lenet", 16)])
def test_the_smallest_image_of_an_encoder(encoder, side):
    def spec(side):
        return ModelSpec(input_shape=(1, side + 3, side), num_classes=2)

    assert build_encoder(encoder, 4, spec(side))(torch.randn(2, 1, side + 3, side)).shape == (2, 4)
    message = rf"routing.encoder = '{encoder}': needs images of {side}x{side} or more"
    with pytest.raises(FedhetError, match=message):
        router(encoder=encoder, spec=spec(side - 1))


def test_encoders_are_listed_and_take_images():
    with pytest.raises(
        FedhetError, match=r"routing.encoder = 'vgg': unknown; use one of small, lenet"
    ):
        router(encoder="vgg")
    text = ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95)
    with pytest.raises(FedhetError, match=r"routing.encoder = 'small': takes images, and the data"):
        router(spec=text)


def test_a_network_of_the_users_own_needs_a_classifier_by_that_name():
    def build_named(width, spec):
        module = user_models.build_flatten(width, spec)
        layers = {f"layer{number}": layer for number, layer in enumerate(module[:-1])}
        named = nn.Sequential()
        for name, layer in {**layers, "classifier": module[-1]}.items():
            named.add_module(name, layer)
        return named

    spec = user_models.image_spec()
    mixture = build_predictor(build_named, spec, components=2, per_component=False)
    assert isinstance(mixture, Predictor)
    assert mixture(torch.randn(4, 2, 8, 8)).shape == (4, 2, 3)
    with pytest.raises(FedhetError, match=r"model = 'Sequential': has no nn.Linear named classif"):
        build_predictor(user_models.build_flatten, spec, components=2, per_component=False)

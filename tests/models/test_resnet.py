"""Residual networks against torchvision's, and the embedding before any classifier."""

import math

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from fedhet_app.errors import FedhetError
from fedhet_app.models import (
    GROUP_SIZE,
    MODELS,
    NORMS,
    ModelSpec,
    builder_for,
    check_logits,
    initial_module,
)
from fedhet_app.seeding import torch_seeded
from fedhet_app.submodel.cost import cost_table

CIFAR = ModelSpec(input_shape=(3, 32, 32), num_classes=10)
RESNETS = ("resnet8", "resnet18")


def spec(side=8, **options):
    return ModelSpec(input_shape=(2, side, side), num_classes=5, **options)


def shapes(module):
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


def test_resnet18_is_torchvisions_with_a_small_stem():
    reference = torchvision.models.resnet18(
        num_classes=10, norm_layer=lambda channels: nn.GroupNorm(channels // 4, channels)
    )
    reference.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.maxpool = nn.Identity()
    module = initial_module(builder_for("resnet18"), CIFAR, "default", 0)
    with torch.no_grad(), torch_seeded(0, "init"):
        for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
            ours.normal_(std=1 / math.sqrt(max(1, ours[0].numel())))
            theirs.copy_(ours)
        x = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(module(x), reference(x), rtol=1e-4, atol=1e-4)


def test_cost_of_resnet18():
    full, quarter, half = cost_table(builder_for("resnet18"), CIFAR, [1.0, 0.25, 0.5])
    assert full.params == 11_173_962
    assert full.macs / 1e6 == pytest.approx(555, abs=1)
    for cost, percent in ((quarter, (6.27, 6.31)), (half, (25.03, 25.08))):
        shares = (100 * cost.params / full.params, 100 * cost.macs / full.macs)
        assert shares == pytest.approx(percent, abs=0.05)


def test_cost_of_resnet8_by_hand():
    (cost,) = cost_table(builder_for("resnet8"), CIFAR, [1.0])
    first = (3 * 16 + 16 * 16 + 16 * 16) * 9
    second = (16 * 32 + 32 * 32) * 9 + 16 * 32
    third = (32 * 64 + 64 * 64) * 9 + 32 * 64
    norms = 2 * (3 * 16 + 3 * 32 + 3 * 64)
    assert cost.params == first + second + third + norms + 64 * 10 + 10
    assert cost.macs == first * 32**2 + second * 16**2 + third * 8**2 + 64 * 10


@pytest.mark.parametrize("name", RESNETS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("width", "side"), [(0.05, 8), (0.6075, 13), (1.0, 28)])
def test_any_image_from_eight_pixels_gives_logits(name, norm, width, side):
    check_logits(builder_for(name), width, spec(side, norm=norm))


def test_blocks_of_a_stage_share_their_channels():
    kept = {name: shape[0] for name, shape in shapes(MODELS["resnet18"](0.3, spec())).items()}
    for stage, channels in enumerate((20, 40, 80, 156), start=1):  # ceil(.3 C) in whole groups
        found = {count for name, count in kept.items() if name.startswith(f"stage{stage}.")}
        assert found == {channels}
        assert channels % GROUP_SIZE == 0


def test_a_block_starts_as_its_shortcut():
    module = initial_module(builder_for("resnet8"), CIFAR, "default", 3)
    first = module.get_submodule("stage1.0")
    x = torch.randn(2, 16, 6, 6)
    assert torch.equal(first(x), torch.relu(x))
    second = module.get_submodule("stage2.0")
    torch.testing.assert_close(second(x), torch.relu(second.get_submodule("shortcut")(x)))


def test_convolutions_start_with_variance_two_over_fan_out():
    module = initial_module(builder_for("resnet18"), CIFAR, "default", 1)
    weight = module.get_submodule("stage4.0.conv1").weight
    assert weight.shape == (512, 256, 3, 3)
    assert weight.var().item() == pytest.approx(2 / (512 * 9), rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=1e-4)


def test_without_norm_convolutions_have_biases_that_start_at_zero():
    module = initial_module(builder_for("resnet8"), spec(norm="none"), "default", 1)
    biases = [p for name, p in module.named_parameters() if name.endswith("bias")]
    assert len(biases) == 10  # 9 convolutions and the classifier
    assert [bool(bias.any()) for bias in biases] == [False] * 9 + [True]


def test_initial_weights_follow_the_seed():
    first, same, other = (
        torch.cat([p.flatten() for p in module.parameters()])
        for module in (
            initial_module(builder_for("resnet8"), CIFAR, "default", seed) for seed in (4, 4, 5)
        )
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", RESNETS)
def test_data_that_a_residual_network_cannot_take(name):
    with pytest.raises(FedhetError, match=rf"model = '{name}': needs images of 8x8 or more.*7, 7"):
        builder_for(name)(1.0, spec(7))
    text = ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95)
    with pytest.raises(FedhetError, match=rf"model = '{name}': takes images.*only lstm reads it"):
        builder_for(name)(1.0, text)
    with pytest.raises(FedhetError, match=r"norm = 'ln': unknown; use one of gn"):
        builder_for(name)(1.0, spec(norm="ln"))


@pytest.mark.parametrize(("name", "features"), [("cnn", 128), ("resnet8", 64), ("resnet18", 512)])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_only_columns_of_the_embedding_depend_on_the_width(name, features, width):
    found = shapes(builder_for(name)(width, spec(embedding=6, embed_norm="ln-relu")))
    assert list(found.items())[-6:] == [
        ("embedding.weight", (6, int(features * width))),
        ("embedding.bias", (6,)),
        ("embedding_norm.weight", (6,)),
        ("embedding_norm.bias", (6,)),
        ("classifier.weight", (5, 6)),
        ("classifier.bias", (5,)),
    ]


@pytest.mark.parametrize("embed_norm", ["none", "ln-relu"])
def test_logits_behind_an_embedding(embed_norm):
    options = {"embedding": 6, "embed_norm": embed_norm}
    module = initial_module(builder_for("resnet8"), spec(**options), "default", 2)
    seen = []
    module.get_submodule("flatten").register_forward_hook(lambda *call: seen.append(call[-1]))
    logits = module(torch.randn(4, 2, 8, 8)).detach().numpy()
    values = {name: p.detach().numpy() for name, p in module.named_parameters()}
    hidden = seen[0].detach().numpy() @ values["embedding.weight"].T + values["embedding.bias"]
    if embed_norm == "ln-relu":
        centred = hidden - hidden.mean(axis=1, keepdims=True)
        hidden = np.maximum(0, centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5))
    expected = hidden @ values["classifier.weight"].T + values["classifier.bias"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_embeddings_that_make_no_sense():
    with pytest.raises(FedhetError, match=r"embed-norm = 'bn': unknown; use one of none, ln-relu"):
        builder_for("cnn")(1.0, spec(embedding=6, embed_norm="bn"))
    with pytest.raises(FedhetError, match=r"embed-norm = 'ln-relu': needs an embedding; set emb"):
        builder_for("resnet8")(1.0, spec(embed_norm="ln-relu"))
    text = ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95, embedding=6)
    with pytest.raises(FedhetError, match=r"embedding = 6: has no effect with model = lstm; use 0"):
        builder_for("lstm")(1.0, text)


def test_init_torch_starts_the_blocks_as_torch_layers_do():
    own, plain = (
        initial_module(builder_for("resnet8"), CIFAR, init, 3) for init in ("default", "torch")
    )
    for name, parameter in plain.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        if parameter.dim() == 4:  # uniform within 1 / sqrt(fan_in)
            bound = (parameter[0].numel()) ** -0.5
            assert bound * 0.9 < parameter.abs().max() <= bound, name
    assert any(not p.any() for n, p in own.named_parameters() if "norm" in n and "weight" in n)

import pytest
import torch
import user_models
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.errors import FedhetError
from fedhet_app.models import (
    GROUP_SIZE,
    MODELS,
    NORMS,
    ModelSpec,
    builder_for,
    channel_multiple,
    cnn,
    initial_module,
    norm_layer,
    scaled,
)

DIGITS = ModelSpec(input_shape=(1, 8, 8), num_classes=10)


@pytest.mark.parametrize(
    ("channels", "width", "multiple", "kept"),
    [
        (100, 0.55, 1, 55),
        (100, 0.07, 1, 7),
        (100, 0.551, 1, 56),
        (16, 0.25, 4, 4),
        (16, 0.4, 4, 8),
        (64, 0.6075, 1, 39),
        (10, 0.001, 1, 1),
        (10, 0.95, 4, 10),
        (10, 1.0, 1, 10),
    ],
)
def test_scaled_is_the_ceiling_in_whole_groups(channels, width, multiple, kept):
    assert scaled(channels, width, multiple) == kept


@given(st.integers(1, 2000), st.integers(1, 100))
def test_scaled_is_exact_for_whole_percentages(channels, percent):
    assert scaled(channels, percent / 100) == -(-channels * percent // 100)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [0.05, 0.25, 0.6075, 1.0])
@pytest.mark.parametrize("side", [8, 13])
def test_cnn_maps_any_image_from_eight_pixels_to_logits(norm, width, side):
    spec = ModelSpec(input_shape=(3, side, side), num_classes=7, norm=norm)
    module = cnn.build(width, spec)
    assert module(torch.randn(2, 3, side, side)).shape == (2, 7)
    assert module.get_submodule("classifier").weight.shape[0] == 7
    assert module.get_submodule("block1.conv").weight.shape[1] == 3


def test_cnn_refuses_images_that_three_poolings_would_use_up():
    spec = ModelSpec(input_shape=(1, 28, 7), num_classes=2)
    with pytest.raises(FedhetError, match=r"model = 'cnn': needs images of 8x8 or more.*28, 7"):
        cnn.build(1.0, spec)


def test_cnn_lists_its_presets():
    spec = ModelSpec(input_shape=(1, 8, 8), num_classes=2, preset="huge")
    with pytest.raises(FedhetError, match=r"preset = 'huge': unknown; use one of small, paper"):
        cnn.build(1.0, spec)


def test_inner_groups_are_normalised_alike_whatever_is_outside():
    wide, narrow = norm_layer("gn", 12), norm_layer("gn", GROUP_SIZE)
    x = torch.randn(3, 12, 5, 5)
    torch.testing.assert_close(wide(x)[:, :GROUP_SIZE], narrow(x[:, :GROUP_SIZE]))
    assert channel_multiple("gn") == GROUP_SIZE
    assert channel_multiple("none") == 1


def test_norms_are_listed_and_groups_must_be_whole():
    with pytest.raises(FedhetError, match=r"norm = 'ln': unknown; use one of gn, bn, sbn, none"):
        norm_layer("ln", 8)
    with pytest.raises(FedhetError, match=r"norm = 'gn': needs channels in multiples of 4: 10"):
        norm_layer("gn", 10)


def test_builders_are_found_by_name_and_by_import_path():
    assert builder_for("cnn") is MODELS["cnn"]
    assert builder_for("user_models:build_lstm") is user_models.build_lstm


@pytest.mark.parametrize("name", ["cnm", "", "torch.nn", ":build", ".user_models:build", "a:b:c"])
def test_unknown_models_list_the_valid_forms(name):
    with pytest.raises(
        FedhetError, match=r"unknown; use cnn, resnet8, resnet18, lstm, mlp or package"
    ):
        builder_for(name)


def test_models_that_cannot_be_imported_say_why(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rubbish.py").write_text("def build(width:\n")
    with pytest.raises(FedhetError, match=r"cannot import no_such_module; .*: No module named"):
        builder_for("no_such_module:build")
    with pytest.raises(FedhetError, match=r"cannot import rubbish; .*: SyntaxError: ") as caught:
        builder_for("rubbish:build")
    assert "\n" not in str(caught.value)
    with pytest.raises(FedhetError, match=r"user_models has no function build\(width, spec\)"):
        builder_for("user_models:build")
    with pytest.raises(FedhetError, match=r"user_models has no function EMBEDDING"):
        builder_for("user_models:EMBEDDING")


@pytest.mark.parametrize("init", ["default", "kaiming", "torch"])
def test_initial_weights_follow_the_seed_alone(init):
    def weights(seed):
        module = initial_module(cnn.build, DIGITS, init, seed)
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    before = torch.get_rng_state()
    first = weights(42)
    torch.rand(3)
    assert torch.equal(first, weights(42))
    assert not torch.equal(first, weights(43))
    torch.set_rng_state(before)


def test_initialisation_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    initial_module(cnn.build, DIGITS, "kaiming", 1)
    assert torch.equal(before, torch.get_rng_state())


def test_kaiming_has_variance_two_over_fan_in_and_zero_biases():
    spec = ModelSpec(input_shape=(1, 8, 8), num_classes=10, norm="none", preset="paper")
    module = initial_module(cnn.build, spec, "kaiming", 0)
    conv = module.get_submodule("block4.conv")
    assert conv.weight.var().item() == pytest.approx(2 / (256 * 9), rel=0.02)
    assert conv.weight.mean().item() == pytest.approx(0, abs=1e-3)
    biases = [p for name, p in module.named_parameters() if name.endswith("bias")]
    assert len(biases) == 5
    assert not any(bias.any() for bias in biases)


def test_unknown_initialisations_list_the_valid_ones():
    with pytest.raises(FedhetError, match=r"init = 'zero': unknown; use one of default, kai"):
        initial_module(cnn.build, DIGITS, "zero", 0)

from dataclasses import replace

import pytest
import torchinfo
import user_models

from fedhet_app.models import ModelSpec, cnn, lstm
from fedhet_app.submodel.cost import cost_table

CIFAR = ModelSpec(input_shape=(3, 32, 32), num_classes=10, preset="paper")
EMNIST = ModelSpec(input_shape=(1, 28, 28), num_classes=62, preset="paper")
TEXT = ModelSpec(input_shape=(80,), num_classes=95, preset="paper", vocabulary=95)


@pytest.mark.parametrize(
    ("spec", "params", "million_macs", "quarter", "half"),
    [
        (CIFAR, 1_558_026, 58.4, (6.37, 6.82), (25.16, 25.76)),
        (EMNIST, 1_583_550, 40.0, (6.67, 6.48), (25.56, 25.30)),
    ],
)
def test_paper_size_network_has_the_papers_cost(spec, params, million_macs, quarter, half):
    full, *narrow = cost_table(cnn.build, spec, [1.0, 0.25, 0.5])
    assert full.params == params
    assert full.macs / 1e6 == pytest.approx(million_macs, abs=0.05)
    for cost, percent in zip(narrow, (quarter, half), strict=True):
        shares = (100 * cost.params / full.params, 100 * cost.macs / full.macs)
        assert shares == pytest.approx(percent, abs=0.006)
    (bare,) = cost_table(cnn.build, replace(spec, norm="none"), [1.0])
    assert full.params - bare.params == 2 * (64 + 128 + 256 + 512)
    assert [cost.width for cost in narrow] == [0.25, 0.5]


def test_paper_size_lstm_has_the_papers_cost():
    full, quarter, half = cost_table(lstm.build, TEXT, [1.0, 0.25, 0.5])
    assert full.params == 823_895
    assert full.macs == 80 * (4 * 256 * (8 + 256) + 4 * 256 * (256 + 256)) + 256 * 95
    for cost, percent in ((quarter, (7.18, 6.45)), (half, (26.19, 25.27))):
        shares = (100 * cost.params / full.params, 100 * cost.macs / full.macs)
        assert shares == pytest.approx(percent, abs=0.006)


# What torchinfo counts beside the products: a bias once for each output it is added to, and one for
# each weight of a normalisation or an embedding.
CIFAR_BIASES = 64 * 32**2 + 128 * 16**2 + 256 * 8**2 + 512 * 4**2 + 10
EMNIST_BIASES = 64 * 28**2 + 128 * 14**2 + 256 * 7**2 + 512 * 3**2 + 62
NORMS = 2 * (64 + 128 + 256 + 512)


@pytest.mark.parametrize(
    ("builder", "spec", "beside"),
    [
        (cnn.build, CIFAR, CIFAR_BIASES + NORMS),
        (cnn.build, EMNIST, EMNIST_BIASES + NORMS),
        (lstm.build, TEXT, 80 * 2 * 2 * 4 * 256 + 95 + 95 * 8),
    ],
)
def test_a_counting_library_agrees(builder, spec, beside):
    (cost,) = cost_table(builder, spec, [1.0])
    counted = torchinfo.summary(
        builder(1.0, spec).eval(), input_data=spec.example_inputs(1), verbose=0
    )
    assert cost.params == counted.total_params
    assert cost.macs + beside == counted.total_mult_adds


def test_macs_and_bytes_by_hand():
    """2 -> 3 channels of 3x3 on 8x8, pooled to 4x4, then 48 -> 5 -> 3."""
    (cost,) = cost_table(user_models.build_flatten, user_models.image_spec(), [0.5])
    assert cost.macs == 64 * 3 * 2 * 9 + 48 * 5 + 5 * 3
    assert cost.params == (3 * 2 * 9 + 3) + (48 * 5 + 5) + (5 * 3 + 3)
    assert cost.bytes == 4 * cost.params


def test_buffers_travel_but_are_no_parameters():
    spec = user_models.image_spec("bn")
    (cost,) = cost_table(cnn.build, spec, [1.0])
    assert cost.bytes == 4 * (cost.params + 2 * (16 + 32 + 64 + 128))


def test_recurrent_networks_are_counted_step_by_step():
    """Six steps of two LSTM layers of three units, then three logits."""
    (cost,) = cost_table(user_models.build_lstm, user_models.token_spec(), [0.25])
    first, second = 4 * 3 * (5 + 3), 4 * 3 * (3 + 3)
    assert cost.macs == 6 * (first + second) + 3 * 3

import numpy as np
import pytest
import user_models
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from user_models import NETWORKS

from fedhet_app.errors import FedhetError
from fedhet_app.models import cnn, initial_module, scaled
from fedhet_app.submodel.index import index_between
from fedhet_app.submodel.layout import flatten, layout_of, unflatten
from fedhet_app.submodel.rolling import window
from fedhet_app.submodel.slicing import Slicer

SLICERS = {name: Slicer(*case) for name, case in NETWORKS.items()}
SPEC = user_models.image_spec()


def rolled(full, sub, narrowest, shift):
    layouts = layout_of(full), layout_of(sub)
    narrow = layout_of(narrowest)
    return index_between(full, *layouts, narrowest=narrow, shift=shift).tolist()


def test_a_window_wraps_around():
    assert window(5, 3, 1).tolist() == [1, 2, 3]
    assert window(5, 3, 4).tolist() == [0, 1, 4]
    assert window(5, 3, 5 + 4).tolist() == [0, 1, 4]


def test_rows_and_the_columns_behind_them_roll_alike_by_hand():
    def build(hidden):
        return nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 3))

    # Hidden units 0 and 3 of 4: their rows and biases, then their columns and all three biases.
    first, second = [0, 1, 6, 7, 8, 11], [12, 15, 16, 19, 20, 23, 24, 25, 26]
    assert rolled(build(4), build(2), build(1), 3) == first + second


def test_groups_roll_as_one():
    # Three groups of two; one unit further on, the last two are kept.
    assert rolled(nn.Linear(1, 6), nn.Linear(1, 4), nn.Linear(1, 2), 1)[:4] == [2, 3, 4, 5]


def test_columns_of_a_flattened_channel_roll_as_one():
    full, sub, narrowest = (nn.Linear(c * 3, 1, bias=False) for c in (4, 2, 1))
    assert rolled(full, sub, narrowest, 3) == [0, 1, 2, 9, 10, 11]


def test_rows_of_recurrent_layers_roll_in_every_gate():
    full, sub, narrowest = (nn.LSTMCell(1, hidden, bias=False) for hidden in (3, 2, 1))
    rows = [gate * 3 + unit for gate in range(4) for unit in (0, 2)]
    hidden = [12 + row * 3 + column for row in rows for column in (0, 2)]
    assert rolled(full, sub, narrowest, 2) == rows + hidden


@pytest.mark.parametrize("shift", [1, 7, 130])
def test_convolutions_keep_numpys_rolled_channels_in_every_layer(shift):
    full = initial_module(cnn.build, SPEC, "default", 0)
    slicer = Slicer(cnn.build, SPEC)
    part = unflatten(slicer.layout(0.4), flatten(full)[slicer.index(0.4, shift)])
    inputs = np.arange(2)
    for number, channels in enumerate((16, 32, 64, 128), start=1):
        outputs = np.sort(np.roll(np.arange(channels), -shift)[: int(np.ceil(0.4 * channels))])
        conv = full.get_submodule(f"block{number}.conv")
        expected = conv.weight.detach().numpy()[np.ix_(outputs, inputs)]
        np.testing.assert_array_equal(part[f"block{number}.conv.weight"], expected)
        bias = conv.bias.detach().numpy()[outputs]
        np.testing.assert_array_equal(part[f"block{number}.conv.bias"], bias)
        inputs = outputs
    expected = full.get_submodule("classifier").weight.detach().numpy()[:, inputs]
    np.testing.assert_array_equal(part["classifier.weight"], expected)


@given(st.sampled_from(sorted(NETWORKS)), st.floats(0.02, 0.9), st.integers(1, 500))
@settings(max_examples=60)
def test_a_rolled_slice_is_ascending_and_as_large_as_the_leading_one(case, width, shift):
    slicer = SLICERS[case]
    index = slicer.index(width, shift)
    if index is None:
        assert slicer.index(width) is None
        return
    assert index.size == slicer.layout(width).size
    assert (np.diff(index) > 0).all()
    assert index[0] >= 0
    assert index[-1] < slicer.size


def test_a_whole_turn_is_no_shift():
    slicer = SLICERS["cnn-gn"]  # 4, 8, 16, 32 groups
    np.testing.assert_array_equal(slicer.index(0.3, 32), slicer.index(0.3))
    assert not np.array_equal(slicer.index(0.3, 16), slicer.index(0.3))
    assert slicer.index(1.0, 5) is None


@pytest.mark.parametrize("advance", [0, 1, 2, 6])
@pytest.mark.parametrize("widths", [(0.2,), (0.1, 0.4), (0.5, 1.0)])
@pytest.mark.parametrize("case", ["cnn-gn", "flatten", "residual-bn", "gru"])
def test_what_rolling_reaches_is_the_union_over_many_rounds(case, widths, advance):
    slicer = SLICERS[case]
    seen = np.zeros(slicer.size, dtype=bool)
    for number in range(40):
        for width in widths:
            index = slicer.index(width, advance * number)
            seen[slice(None) if index is None else index] = True
    share = (~seen[: slicer.num_params(1.0)]).mean()
    assert slicer.unreached(widths, advance) == pytest.approx(share)


def test_two_layers_without_a_common_divisor_meet_late_but_everywhere():
    def build(width, spec):
        first, second = scaled(31, width), scaled(37, width)
        return nn.Sequential(nn.Linear(2, first), nn.Linear(first, second), nn.Linear(second, 3))

    slicer = Slicer(build, SPEC)
    assert slicer.unreached([0.01], 1) == 0
    # Multiples of 31 never move the first layer's window: one of its 31 units is ever trained.
    shares = [2 + 1, 37, 37, 3 * 37, 3]
    total = 31 * 2 + 31 + 37 * 31 + 37 + 3 * 37 + 3
    assert slicer.unreached([0.01], 31) == pytest.approx(1 - sum(shares) / total)


def test_channels_too_far_apart_never_share_a_window():
    def build(width, spec):
        return nn.Linear(scaled(8, width), scaled(16, width), bias=False)

    # Shift s keeps inputs s, s + 1 modulo 8 and outputs s to s + 3 modulo 16; what pairs up is
    # decided by (output - input) modulo 8, which runs from -1 to 3.
    assert Slicer(build, SPEC).unreached([0.25], 1) == 3 / 8


def test_networks_whose_widths_hold_no_whole_units_cannot_roll():
    def build(width, spec):
        return nn.Linear(2, max(4, scaled(16, width)))

    slicer = Slicer(build, SPEC)
    with pytest.raises(FedhetError, match=r"model = 'weight': keeps 5 of 16, .* cannot roll"):
        slicer.index(0.3, 1)
    with pytest.raises(FedhetError, match=r"keeps 5 of 16, no whole number of the 4"):
        slicer.unreached([0.3], 1)
    assert slicer.index(0.3).size == 5 * 3
    assert slicer.unreached([0.3]) == 11 / 16
    assert slicer.unreached([0.5], 1) == 0


@given(st.sampled_from(sorted(NETWORKS)), st.floats(0.02, 1), st.floats(0.02, 1))
@settings(max_examples=40)
def test_a_slice_within_a_wider_one_is_the_same_slice(case, p, q):
    slicer = SLICERS[case]
    narrow, wide = sorted((p, q))
    vector = np.arange(slicer.size)
    inner, outer = (
        vector if index is None else vector[index]
        for index in (slicer.index(narrow), slicer.index(wide))
    )
    np.testing.assert_array_equal(outer[slicer.within(narrow, wide)], inner)

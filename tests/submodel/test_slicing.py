import numpy as np
import pytest
import torch
import user_models
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from user_models import NETWORKS

from fedhet_app.errors import FedhetError
from fedhet_app.models import GROUP_SIZE, ModelSpec, cnn, initial_module, scaled
from fedhet_app.submodel.layout import flatten, layout_of, unflatten
from fedhet_app.submodel.slicing import Slicer, slice_index

SLICERS = {name: Slicer(*case) for name, case in NETWORKS.items()}


def test_leading_rows_and_columns_by_hand():
    index = slice_index(nn.Linear(4, 3), nn.Linear(2, 2))
    assert index.tolist() == [0, 1, 4, 5, 12, 13]


def test_convolution_blocks_are_indexed_in_stored_order():
    index = slice_index(nn.Conv2d(2, 2, (1, 2), bias=False), nn.Conv2d(1, 1, (1, 2), bias=False))
    assert index.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("kind", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1), (nn.LSTM, 4)]
)
def test_recurrent_rows_lead_in_every_gate(kind, gates):
    full, sub = kind(1, 3), kind(1, 2)
    tensors = {name: torch.zeros_like(p) for name, p in full.named_parameters()}
    name = next(name for name in tensors if name.startswith("weight_ih"))
    rows = [q * 3 + h for q in range(gates) for h in range(2)]
    assert slice_index(full, sub)[: 2 * gates].tolist() == rows
    assert tensors[name].shape == (gates * 3, 1)


def test_flattened_columns_belong_to_leading_channels():
    spec = user_models.image_spec()
    index = slice_index(user_models.build_flatten(1.0, spec), user_models.build_flatten(0.5, spec))
    full = layout_of(user_models.build_flatten(1.0, spec))
    names = np.empty(full.size, dtype=object)
    for entry in full.entries:
        names[entry.offset : entry.offset + entry.size] = entry.name
    offset = next(entry.offset for entry in full.entries if entry.name == "4.weight")
    taken = index[names[index] == "4.weight"] - offset
    rows, columns = np.divmod(taken, 6 * 16)
    assert set(rows) == set(range(5))
    assert set(columns // 16) == set(range(3))
    assert taken.size == 5 * 3 * 16


@pytest.mark.parametrize("case", NETWORKS)
def test_full_width_is_the_whole_vector(case):
    builder, spec = NETWORKS[case]
    module = builder(1.0, spec)
    np.testing.assert_array_equal(slice_index(module, module), np.arange(layout_of(module).size))
    assert SLICERS[case].index(1.0) is None
    assert SLICERS[case].size == layout_of(module).size


@given(st.sampled_from(sorted(NETWORKS)), st.floats(0.02, 1), st.floats(0.02, 1))
@settings(max_examples=60)
def test_slices_nest(case, p, q):
    slicer = SLICERS[case]
    narrow, wide = (_positions(slicer, width) for width in sorted((p, q)))
    assert np.isin(narrow, wide).all()
    assert (np.diff(narrow) > 0).all()
    assert narrow.size == slicer.layout(min(p, q)).size


def _positions(slicer, width):
    index = slicer.index(width)
    return np.arange(slicer.size) if index is None else index


@pytest.mark.parametrize("case", NETWORKS)
def test_a_slice_holds_the_leading_part_of_every_tensor(case):
    builder, spec = NETWORKS[case]
    full, slicer = initial_module(builder, spec, "default", 0), SLICERS[case]
    layout = slicer.layout(0.5)
    part = unflatten(layout, flatten(full)[slicer.index(0.5)])
    gates = {"lstm": 4, "gru": 3}.get(case, 1)
    for name, tensor in unflatten(layout_of(full), flatten(full)).items():
        shape = part[name].shape
        blocks = gates if name.startswith("layers.") else 1
        per_gate = tensor.reshape(blocks, -1, *tensor.shape[1:])[:, : shape[0] // blocks]
        expected = per_gate.reshape(-1, *tensor.shape[1:])[(slice(None), *map(slice, shape[1:]))]
        np.testing.assert_array_equal(part[name], expected)


def test_depthwise_convolutions_are_cut():
    full, sub = nn.Conv2d(4, 8, 1, groups=4, bias=False), nn.Conv2d(2, 4, 1, groups=2, bias=False)
    assert slice_index(full, sub).tolist() == [0, 1, 2, 3]


class _Named(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.add_module(name, nn.Linear(2, 2))


REFUSED = [
    (_Named("a"), _Named("b"), r"model = '_Named': its parameters have other names"),
    (nn.Linear(2, 2), nn.Linear(2, 3), r"weight has shape \(2, 2\).*\(3, 2\).*may grow"),
    (nn.Conv2d(1, 1, 2), nn.Conv1d(1, 1, 2), r"may grow"),
    (
        nn.LSTM(2, 4, bidirectional=True),
        nn.LSTM(2, 2, bidirectional=True),
        r"model = 'LSTM': weight_ih_l0 cannot be cut: the layer is bidirectional",
    ),
    (nn.LSTM(2, 4, proj_size=2), nn.LSTM(2, 3, proj_size=2), r"projection; use proj_size=0"),
    (nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(2, 2, 1, groups=2), r"weight.*has 2 groups"),
    (nn.MultiheadAttention(4, 2), nn.MultiheadAttention(2, 2), r"stack query, key and value"),
]


@pytest.mark.parametrize(("full", "sub", "message"), REFUSED)
def test_networks_that_cannot_be_cut_are_refused(full, sub, message):
    with pytest.raises(FedhetError, match=message):
        slice_index(full, sub)


def test_layers_of_one_width_may_be_of_any_kind():
    full = nn.Sequential(nn.LSTM(2, 3, bidirectional=True), nn.Linear(2, 4))
    sub = nn.Sequential(nn.LSTM(2, 3, bidirectional=True), nn.Linear(2, 3))
    assert slice_index(full, sub).size == layout_of(sub).size


def test_widths_of_equal_shapes_share_one_read_only_index():
    slicer = Slicer(cnn.build, user_models.image_spec("gn"))
    index = slicer.index(0.26)
    assert index is slicer.index(0.27)
    with pytest.raises(ValueError, match="read-only"):
        index[0] = 1


def test_realised_share_and_largest_ratio_by_hand():
    def build(width, spec):
        return nn.Linear(3, scaled(8, width, GROUP_SIZE))

    slicer = Slicer(build, user_models.image_spec())
    assert slicer.num_params(0.3) == 4 * 3 + 4
    assert slicer.realised(0.3) == 0.5
    assert slicer.largest_ratio(0.3) == 0.5
    assert slicer.largest_ratio(1.0) == 1.0


def test_the_largest_ratio_counts_layers_that_rounding_leaves_whole():
    slicer = Slicer(cnn.build, ModelSpec(input_shape=(1, 8, 8), num_classes=10))
    # Of 16, 32, 64, 128 channels in groups of 4: 0.8 keeps 16, 28, 52, 104; 0.3 keeps 8, 12, ...
    assert slicer.largest_ratio(0.8) == 1.0
    assert slicer.largest_ratio(0.3) == 0.5
    assert slicer.largest_ratio(0.25) == 0.25

    def two_channels(width, spec):
        return nn.Sequential(nn.Linear(3, scaled(8, width)), nn.Linear(scaled(8, width), 2))

    def narrow_layer(width, spec):
        return nn.Sequential(two_channels(width, spec), nn.Linear(2, scaled(2, width)))

    assert Slicer(two_channels, user_models.image_spec()).largest_ratio(0.75) == 0.75
    assert Slicer(narrow_layer, user_models.image_spec()).largest_ratio(0.75) == 1.0


def test_networks_that_read_data_while_being_built_are_refused():
    def build(width, spec):
        return nn.Linear(2, int(torch.ones(1).item()))

    with pytest.raises(FedhetError, match=r"model = .*build.*meta device; read no tensor's values"):
        Slicer(build, user_models.image_spec())

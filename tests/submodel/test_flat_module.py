import copy

import numpy as np
import pytest
import torch
import user_models
from torch import nn
from torch.nn import functional
from torch.optim.sgd import sgd

from fedhet_app.errors import FedhetError
from fedhet_app.models import cnn, initial_module
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import flatten, layout_of, unflatten

CASES = list(user_models.NETWORKS.values())


def batches(spec, count, size=5):
    generator = torch.Generator().manual_seed(7)
    high = user_models.VOCABULARY
    for _ in range(count):
        x = torch.randint(high, (size, *spec.input_shape), generator=generator).float()
        yield x, torch.randint(spec.num_classes, (size,), generator=generator)


def test_layout_puts_parameters_before_float_buffers_and_leaves_integers_out():
    module = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Linear(4, 1))
    layout = layout_of(module)
    found = [(e.name, e.shape, e.offset, e.size, e.is_parameter) for e in layout.entries]
    assert found == [
        ("0.weight", (3, 2, 1, 1), 0, 6, True),
        ("0.bias", (3,), 6, 3, True),
        ("1.weight", (3,), 9, 3, True),
        ("1.bias", (3,), 12, 3, True),
        ("2.weight", (1, 4), 15, 4, True),
        ("2.bias", (1,), 19, 1, True),
        ("1.running_mean", (3,), 20, 3, False),
        ("1.running_var", (3,), 23, 3, False),
    ]
    assert (layout.num_params, layout.size) == (20, 26)


def test_layout_needs_no_data():
    with torch.device("meta"):
        module = cnn.build(1.0, user_models.image_spec("bn"))
    assert layout_of(module) == layout_of(cnn.build(1.0, user_models.image_spec("bn")))


def test_convolution_weights_are_stored_channels_last():
    module = nn.Conv2d(2, 2, (1, 3), bias=False)
    weight = np.arange(12, dtype=np.float32).reshape(2, 2, 1, 3)
    module.weight.data = torch.from_numpy(weight)
    expected = [weight[o, i, 0, w] for o in range(2) for w in range(3) for i in range(2)]
    assert flatten(module).tolist() == expected


@pytest.mark.parametrize(("builder", "spec"), CASES)
def test_unflatten_gives_torchs_own_arrays(builder, spec):
    module = initial_module(builder, spec, "default", 3)
    arrays = unflatten(layout_of(module), flatten(module))
    floats = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    assert arrays.keys() == floats.keys()
    for name, tensor in floats.items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy())
        assert arrays[name].flags.c_contiguous


def test_vectors_of_another_size_are_refused():
    module = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"shape \(1,\) for a layout of size 3"):
        unflatten(layout_of(module), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"shape \(1,\) for a module of 3"):
        FlatModule(module).load(np.zeros(1, np.float32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_other_number_types_are_refused(dtype):
    with pytest.raises(FedhetError, match=r"model = 'Linear': weight is torch.*must be float32"):
        layout_of(nn.Linear(2, 1, dtype=dtype))


def test_integer_parameters_are_refused():
    module = nn.Module()
    module.codes = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(FedhetError, match=r"codes is torch.int64"):
        layout_of(module)


def test_module_is_a_view_of_the_vector():
    flat = FlatModule(initial_module(cnn.build, user_models.image_spec("bn"), "default", 0))
    conv = flat.module.get_submodule("block2.conv")
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert conv.weight.grad.stride() == conv.weight.stride()
    flat.vector.fill_(2.0)
    flat.grad.fill_(3.0)
    assert all((p == 2).all() and (p.grad == 3).all() for p in flat.module.parameters())
    assert (flat.module.get_submodule("block1.norm").running_var == 2).all()


def test_load_and_numpy_copy():
    flat = FlatModule(nn.Linear(2, 1))
    sent = np.array([1, 2, 3], dtype=np.float32)
    sent.setflags(write=False)
    flat.load(sent)
    received = flat.numpy()
    np.testing.assert_array_equal(received, sent)
    received[:] = 0
    flat.params.mul_(2)
    assert flat.module.weight.tolist() == [[2, 4]]
    assert flat.module.bias.tolist() == [6]
    assert sent.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("builder", "spec"), CASES)
def test_flat_steps_equal_torchs_optimiser_on_an_untouched_copy(builder, spec):
    reference = initial_module(builder, spec, "default", 5)
    flat = FlatModule(copy.deepcopy(reference))
    # The same kernels: batch normalisation would amplify another order of summation.
    reference.to(memory_format=torch.channels_last)
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}
    optimiser = torch.optim.SGD(reference.parameters(), **settings)
    momentum = [None]
    for x, y in batches(spec, 5):
        optimiser.zero_grad()
        functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
        flat.grad.zero_()
        functional.cross_entropy(flat.module(x), y).backward()
        step = {**settings, "dampening": 0.0, "nesterov": False, "maximize": False}
        sgd([flat.params], [flat.grad], momentum, foreach=False, **step)
    np.testing.assert_allclose(flat.numpy(), flatten(reference), atol=1e-6)
    np.testing.assert_array_equal(flat.numpy(), flatten(flat.module))


def test_running_statistics_land_in_the_vector():
    flat = FlatModule(user_models.build_residual(1.0, user_models.image_spec("bn")))
    before = flat.numpy()
    x, _ = next(batches(user_models.image_spec(), 1))
    flat.module(x)
    changed = flat.numpy() != before
    assert not changed[: flat.layout.num_params].any()
    assert changed[flat.layout.num_params :].all()

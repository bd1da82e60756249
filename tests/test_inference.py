"""Static batch norm: what it normalises by while training, and what its networks predict with."""

import json

import numpy as np
import pytest
import torch
from running import run, tiny
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import batch_norm
from user_models import image_spec

from fedhet_app import finished
from fedhet_app.inference import as_it_predicts, build_statistics
from fedhet_app.models import ModelSpec, cnn, norm_layer
from fedhet_app.submodel.layout import layout_of
from fedhet_app.task import Task
from fedhet_app.training import Images

STATIC = {"strategy": "heterofl", "norm": "sbn", "evaluate_every": 1}


def images_of(count, seed=0):
    rng = np.random.default_rng(seed)
    return Images(
        pixels=torch.from_numpy(rng.integers(0, 255, (count, 8, 8, 2), dtype=np.uint8)),
        labels=torch.from_numpy(rng.integers(0, 3, count)),
        scale=torch.full((2,), 1 / 64),
        shift=torch.full((2,), -2.0),
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_layer_takes_the_statistics_of_its_batch_and_keeps_none(training):
    layer = norm_layer("sbn", 3).train(training)
    x = 5 + 2 * torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    nn.init.constant_(layer.bias, 0.5)
    values = x.numpy()
    mean, var = values.mean((0, 2, 3), keepdims=True), values.var((0, 2, 3), keepdims=True)
    expected = (values - mean) / np.sqrt(var + 1e-5) + 0.5
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-5)
    assert not list(layer.buffers())


def test_one_value_per_channel_becomes_the_bias():
    layer = norm_layer("sbn", 2)
    nn.init.constant_(layer.bias, 0.5)
    found = layer(torch.tensor([[[[3.0]], [[-7.0]]]])).flatten().tolist()
    assert found == pytest.approx([0.5, 0.5], abs=1e-3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_norm(torch.ones(1, 2, 1, 1), None, None, training=True)


def test_a_last_batch_of_one_example_is_trained(tmp_path):
    options = {"num_clients": 1, "fraction_train": 1.0, "partition": "iid", "batch_size": 16}
    options |= {"max_train_examples": 33, "local_steps": 0, "local_epochs": 1}
    reader = run(tmp_path / "run", **STATIC, **options)
    assert [row["steps"] for row in reader.clients] == [3] * 3
    assert reader.summary["rejected"] == 0


def test_statistics_are_the_mean_over_batches_of_one_pass():
    module = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Dropout(0.9), nn.BatchNorm2d(3))
    images = images_of(200)  # two batches of a hundred
    for _ in range(2):  # what was there before does not count
        build_statistics(module, images)
    inputs, _ = images.batch(torch.arange(200))
    outputs = module[0](inputs).detach().numpy()
    halves = [outputs[:100], outputs[100:]]
    mean = np.mean([half.mean((0, 2, 3)) for half in halves], axis=0)
    var = np.mean([half.var((0, 2, 3), ddof=1) for half in halves], axis=0)
    np.testing.assert_allclose(module[2].running_mean.numpy(), mean, atol=1e-5)
    np.testing.assert_allclose(module[2].running_var.numpy(), var, rtol=1e-4)
    assert not module.training


def test_every_width_predicts_with_statistics_of_its_own(tmp_path):
    task = Task(tiny(tmp_path, **STATIC))
    vector = task.initial_vector()
    assert not [entry for entry in task.slicer.layout(1.0).entries if not entry.is_parameter]
    full, half = (as_it_predicts(task, vector, width).module for width in (1.0, 0.5))
    first, second = ("block1.norm", "block2.norm")
    inner = full.get_submodule(first).running_mean[:8]
    torch.testing.assert_close(half.get_submodule(first).running_mean, inner)
    inner = full.get_submodule(second).running_mean[:16]
    assert not torch.allclose(half.get_submodule(second).running_mean, inner, atol=1e-3)
    conv = full.get_submodule("block3.conv").weight[:32, :16]
    assert torch.equal(half.get_submodule("block3.conv").weight, conv)


def test_networks_without_such_layers_predict_as_they_are(tmp_path):
    task = Task(tiny(tmp_path, norm="sbn", model="user_models:build_flatten"))
    vector = task.initial_vector()
    np.testing.assert_array_equal(as_it_predicts(task, vector, 1.0).numpy(), vector)
    other = Task(tiny(tmp_path, norm="gn"))
    vector = other.initial_vector()
    model = as_it_predicts(other, vector, 0.5)
    np.testing.assert_array_equal(model.numpy(), vector[other.slicer.index(0.5)])


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_a_finished_run_is_measured_and_exported_with_statistics(width, tmp_path):
    reader = run(tmp_path / "run", **STATIC)
    assert not [name for name in reader.model() if "running" in name]
    model = finished.load(reader.directory)
    measured = finished.evaluate(model, width)
    assert measured.accuracy == reader.rounds[-1]["slice-accuracy"][f"{width:g}"]
    assert measured.accuracy > 0.2

    file = tmp_path / "device.safetensors"
    finished.export(model, width, file)
    with safe_open(file, "pt") as content:
        header = {key: json.loads(value) for key, value in content.metadata().items()}
    assert header["norm"] == "bn"
    spec = ModelSpec(
        input_shape=tuple(header["input-shape"]), num_classes=header["num-classes"], norm="bn"
    )
    device = cnn.build(header["width"], spec).eval()
    device.load_state_dict(load_file(file), strict=False)
    assert {entry.name for entry in layout_of(device).entries} == set(load_file(file))
    test = model.task.test_examples
    inputs, labels = test.batch(torch.arange(len(test.labels)))
    accuracy = (device(inputs).argmax(1) == labels).float().mean().item()
    assert accuracy == pytest.approx(measured.accuracy, abs=1e-3)


def test_static_batch_norm_costs_what_batch_norm_costs():
    static, tracked = (layout_of(cnn.build(1.0, image_spec(norm))) for norm in ("sbn", "bn"))
    assert static.num_params == static.size == tracked.num_params < tracked.size

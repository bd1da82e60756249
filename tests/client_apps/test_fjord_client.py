"""FjORD's local steps against autograd through slices of plain weights."""

from collections import Counter

import numpy as np
import pytest
import torch
from running import model_bytes, run, tiny
from torch import nn
from torch.nn.functional import cross_entropy, linear, log_softmax, softmax
from user_models import image_spec

from client_apps import fjord
from fedhet_app.models import initial_module, scaled
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import flatten
from fedhet_app.submodel.slicing import Slicer
from fedhet_app.task import Task
from fedhet_app.training import Images, batches, local_sgd
from fedhet_app.wire import TrainRequest

WIDTHS = (0.25, 0.5)
DRAWN = (1, 2, 0, 0, 2, 1)


def build(width, spec):
    hidden = scaled(8, width)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, spec.num_classes)
    )


def nested_parts(slicer):
    for width in WIDTHS:
        index = torch.tensor(slicer.within(width, 1.0))
        yield fjord.Nested(FlatModule(build(width, image_spec())), index)


def examples():
    rng = np.random.default_rng(4)
    return Images(
        pixels=torch.from_numpy(rng.integers(0, 255, (12, 2, 2, 1), dtype=np.uint8)),
        labels=torch.from_numpy(rng.integers(0, 3, 12)),
        scale=torch.full((1,), 1 / 64),
        shift=torch.full((1,), -2.0),
    )


def published_steps(module, images, config, distillation):
    """Ordered dropout as slices of the widest layers' weights, stepped by torch's optimiser."""
    _, first, _, second = module
    optimiser = torch.optim.SGD(
        module.parameters(), lr=0.1, momentum=config.momentum, weight_decay=config.weight_decay
    )

    def logits(inputs, kept):
        hidden = linear(inputs.flatten(1), first.weight[:kept], first.bias[:kept]).relu()
        return linear(hidden, second.weight[:, :kept], second.bias)

    order = batches(np.arange(12), config.batch_size, len(DRAWN), np.random.default_rng(9))
    losses = []
    for chosen, drawn in zip(order, DRAWN, strict=True):
        inputs, labels = images.batch(torch.from_numpy(chosen))
        optimiser.zero_grad()
        kept = (2, 4, 8)[drawn]
        against_labels = cross_entropy(logits(inputs, 8 if distillation else kept), labels)
        loss = against_labels
        if distillation and kept < 8:
            teacher = softmax(logits(inputs, 8).detach(), dim=1)
            loss = loss - (teacher * log_softmax(logits(inputs, kept), dim=1)).sum(1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), config.clip_norm)
        optimiser.step()
        losses.append(against_labels.item())
    return np.mean(losses)


@pytest.mark.parametrize("distillation", [False, True])
def test_steps_are_those_of_ordered_dropout_on_whole_weights(distillation, tmp_path):
    config = tiny(tmp_path, batch_size=4, local_steps=len(DRAWN), clip_norm=0.4, weight_decay=0.01)
    module = initial_module(build, image_spec(), "default", 2)
    images, model = examples(), FlatModule(build(1.0, image_spec()))
    model.load(flatten(module))
    parts = [*nested_parts(Slicer(build, image_spec())), None]
    order = iter(DRAWN)
    objective = fjord.OrderedDropout(draw=lambda: parts[next(order)], distillation=distillation)
    result = local_sgd(
        model,
        images,
        np.arange(12),
        config=config,
        lr=0.1,
        rng=np.random.default_rng(9),
        objective=objective,
    )
    loss = published_steps(module, images, config, distillation)
    np.testing.assert_allclose(model.numpy(), flatten(module), atol=2e-6)
    assert result.loss == pytest.approx(loss, rel=1e-5)


def objective_of_a_client(monkeypatch, task, width):
    """What ``fjord.train`` hands to the local loop."""
    seen = []
    monkeypatch.setattr(fjord.local, "train", lambda *_, objective: seen.append(objective))
    size = task.slicer.layout(width).size
    request = TrainRequest(server_round=3, width=width, vector=np.zeros(size, np.float32))
    fjord.train(task, 1, request)
    return seen[0]


def sizes_drawn(objective, count):
    parts = (objective._draw() for _ in range(count))
    return Counter(None if part is None else part.model.layout.size for part in parts)


@pytest.mark.parametrize(("width", "narrower"), [(1.0, (0.25, 0.5)), (0.5, (0.25,)), (0.2, ())])
def test_a_tier_up_to_the_clients_own_is_drawn_uniformly_for_each_batch(
    width, narrower, tmp_path, monkeypatch
):
    options = {"capacity_tiers": "0.25,0.5,1.0", "capacity_probs": "0.3,0.3,0.4"}
    task = Task(tiny(tmp_path, strategy="fjord", fjord__draw="batch", **options))
    objective = objective_of_a_client(monkeypatch, task, width)
    counts = sizes_drawn(objective, 3000)
    assert set(counts) == {None, *(task.slicer.layout(tier).size for tier in narrower)}
    shares = [count / 3000 for count in counts.values()]
    assert shares == pytest.approx([1 / len(counts)] * len(counts), abs=0.03)
    again = sizes_drawn(objective_of_a_client(monkeypatch, task, width), 3000)
    assert again == counts


@pytest.mark.parametrize(
    ("options", "width", "parts"),
    [
        ({"fjord__distillation": True}, 1.0, [1.0, 0.5]),
        ({"fjord__distillation": True}, 0.25, [0.25]),
        ({"fjord__distillation": False}, 1.0, [1.0]),
        ({"fjord__draw": "round"}, 1.0, [1.0]),
    ],
)
def test_the_costliest_step_runs_the_widest_networks_that_a_draw_can_give(
    options, width, parts, tmp_path
):
    tiers = {"capacity_tiers": "0.25,0.5,1.0", "capacity_probs": "0.3,0.3,0.4"}
    options = {"strategy": "fjord", "fjord__draw": "batch", **tiers, **options}
    task = Task(tiny(tmp_path, **options))
    ran = []

    def forward(model, inputs):
        ran.append(len(model.vector))
        return model.module(inputs)

    inputs, labels = task.train_examples.batch(torch.arange(4))
    fjord.costliest(task, width)(forward, task.module(width), inputs, labels)
    assert ran == [len(task.module(part).vector) for part in parts]


def test_tiers_of_one_size_are_one_network_and_still_two_draws(tmp_path, monkeypatch):
    """Under group norm the small network rounds 0.98 up to 1."""
    options = {"capacity_tiers": "0.5,0.98,1.0", "capacity_probs": "0.3,0.3,0.4"}
    task = Task(tiny(tmp_path, strategy="fjord", fjord__draw="batch", **options))
    assert task.slicer.index(0.98) is None
    counts = sizes_drawn(objective_of_a_client(monkeypatch, task, 1.0), 3000)
    assert counts[None] / 3000 == pytest.approx(2 / 3, abs=0.03)
    assert len(counts) == 2


def test_distillation_and_the_draw_by_batch_change_the_run(tmp_path):
    by_round = run(tmp_path / "round", strategy="fjord")
    by_batch = run(tmp_path / "batch", strategy="fjord", fjord__draw="batch")
    taught = {"fjord__draw": "batch", "fjord__distillation": True}
    distilled = run(tmp_path / "distilled", strategy="fjord", **taught)
    assert len({model_bytes(reader) for reader in (by_round, by_batch, distilled)}) == 3

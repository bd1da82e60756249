import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from running import model_bytes, run, tiny
from torch import nn
from torch.nn.functional import cross_entropy

from fedhet_app.submodel.flat import FlatModule
from fedhet_app.training import Images, batches, clip_gradient, local_sgd


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=50, unique=True),
    st.integers(1, 60),
    st.integers(0, 3),
    st.integers(0, 2**31),
)
def test_every_epoch_uses_each_example_once(examples, batch_size, epochs, seed):
    rows = np.array(examples)
    per_epoch = math.ceil(len(examples) / batch_size)
    steps = epochs * per_epoch
    drawn = list(batches(rows, batch_size, steps, np.random.default_rng(seed)))
    assert len(drawn) == steps
    assert all(1 <= len(batch) <= batch_size for batch in drawn)
    for epoch in range(epochs):
        used = np.concatenate(drawn[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(used.tolist()) == sorted(examples)
    assert rows.tolist() == examples


@given(st.integers(1, 30), st.integers(1, 10), st.integers(0, 20))
def test_steps_may_end_within_an_epoch(examples, batch_size, steps):
    drawn = list(batches(np.arange(examples), batch_size, steps, np.random.default_rng(0)))
    assert len(drawn) == steps


def test_epochs_are_shuffled_anew():
    first, second = batches(np.arange(1000), 1000, 2, np.random.default_rng(0))
    assert first.tolist() != second.tolist()


@given(
    hnp.arrays(np.float32, st.integers(1, 20), elements=st.floats(-1e6, 1e6, width=32)),
    st.floats(1e-3, 1e3),
)
def test_clipping_is_torchs_own(gradient, max_norm):
    parameter = torch.nn.Parameter(torch.zeros(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    clipped = torch.tensor(gradient)
    clip_gradient(clipped, max_norm)
    torch.testing.assert_close(clipped, parameter.grad, rtol=1e-6, atol=0)


def steps_of(reader):
    return {(row["steps"], row["examples"]) for row in reader.clients}


def test_local_steps_are_exact_whatever_the_number_of_examples(tmp_path):
    done = steps_of(run(tmp_path / "run", local_steps=7, batch_size=64))
    assert {steps for steps, _ in done} == {7}
    assert min(examples for _, examples in done) < 64 < max(examples for _, examples in done)


def test_local_epochs_give_each_client_its_own_number_of_steps(tmp_path):
    reader = run(tmp_path / "run", local_steps=0, local_epochs=3, batch_size=16)
    done = steps_of(reader)
    assert len(done) > 1
    assert all(steps == 3 * math.ceil(examples / 16) for steps, examples in done)
    assert reader.summary["local-steps"] == sum(row["steps"] for row in reader.clients)


@pytest.mark.parametrize("width", [1.0, 0.25])
def test_a_last_batch_of_one_example_under_batch_norm_is_trained(width, tmp_path):
    reader = run(
        tmp_path / "run",
        norm="bn",
        num_clients=1,
        fraction_train=1.0,
        partition="iid",
        max_train_examples=33,
        batch_size=16,
        local_steps=0,
        local_epochs=1,
        strategy="uniform",
        uniform__width=width,
    )
    assert steps_of(reader) == {(3, 33)}
    assert reader.summary["rejected"] == 0


def test_one_example_takes_the_running_statistics_of_the_users_batch_norms_too(tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model = FlatModule(network)
    twin = copy.deepcopy(network)
    images = Images(
        pixels=torch.tensor([[4], [1], [3], [2], [9]], dtype=torch.uint8)[:, None, None, :].expand(
            -1, 1, 2, -1
        ),
        labels=torch.tensor([0, 1, 0, 1, 1]),
        scale=torch.ones(1),
        shift=torch.zeros(1),
    )
    config = tiny(
        tmp_path, batch_size=2, local_steps=0, local_epochs=2, clip_norm=0.0, momentum=0.0
    )
    options = {"config": config, "lr": 0.1}
    result = local_sgd(model, images, np.arange(5), rng=np.random.default_rng(3), **options)
    assert result.steps == 6
    assert network[2].num_batches_tracked == 4

    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=config.weight_decay)
    for chosen in batches(np.arange(5), 2, 6, np.random.default_rng(3)):
        twin[2].training = len(chosen) == 2
        optimizer.zero_grad()
        inputs, labels = images.batch(torch.from_numpy(chosen))
        cross_entropy(twin(inputs), labels).backward()
        optimizer.step()
    expected = {name: tensor for name, tensor in twin.state_dict().items() if "num_" not in name}
    for name, tensor in expected.items():
        torch.testing.assert_close(network.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


def test_a_diverging_client_is_dropped_named_and_told_why(tmp_path, caplog):
    reader = run(
        tmp_path / "run", lr=1e8, clip_norm=0.0, norm="none", local_steps=5, max_empty_rounds=9
    )
    for row in reader.rounds:
        assert row["replies"] == 0
        assert len(row["rejected"]) == 3
        for rejected in row["rejected"]:
            assert rejected["reason"].startswith("non-finite values in arrays (loss ")
            assert rejected["reason"].endswith(
                "training diverged; lower lr, set clip-norm, or use a norm layer"
            )
            named = f"round {row['round']}: client {rejected['partition']} dropped: non-finite"
            assert named in caplog.text
    assert reader.summary["rejected"] == 9


def test_a_global_model_without_finite_loss_is_reported_and_the_run_ends_well(tmp_path, caplog):
    reader = run(tmp_path / "run", lr=1e8, clip_norm=0.0, norm="none", evaluate_every=1)
    assert reader.summary["final-loss"] is None
    assert "round 1: the global model's loss is nan; lower lr" in caplog.text


def test_bf16_trains_nearly_alike(tmp_path):
    options = {"local_steps": 10, "num_server_rounds": 4}
    single = run(tmp_path / "fp32", **options)
    brain = run(tmp_path / "bf16", precision="bf16", **options)
    assert model_bytes(brain) != model_bytes(single)
    losses = [[row["train-loss"] for row in reader.rounds] for reader in (single, brain)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05)
    assert {array.dtype for array in brain.model().values()} == {np.dtype(np.float32)}

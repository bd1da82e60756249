import numpy as np
import pytest
from running import run, tiny
from torch import nn
from user_models import image_spec

from fedhet_app import task as task_module
from fedhet_app.errors import FedhetError
from fedhet_app.models import cnn, scaled
from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.submodel.layout import unflatten
from fedhet_app.submodel.slicing import Slicer
from fedhet_app.task import Task
from strategies.allocation import Fjord
from strategies.fedrolex import FedRolex

TIERS = {"capacity_tiers": "0.25,0.5,1.0", "capacity_probs": "0.4,0.3,0.3"}
NARROW = {"capacity_tiers": "0.25", "capacity_probs": "1.0"}


def test_with_a_draw_by_batch_every_client_is_sent_its_largest_tier(tmp_path):
    options = {"strategy": "fjord", "fjord__draw": "batch", "num_server_rounds": 2, **TIERS}
    reader = run(tmp_path / "run", **options, fraction_train=1.0)
    assert all(row["width"] == row["capacity"] for row in reader.clients)
    assert len({row["width"] for row in reader.clients}) > 1
    task = Task(tiny(tmp_path, **options))
    assert Fjord(task, np.array([0.1, 0.3, 0.9])).widths(1).tolist() == [0.1, 0.25, 0.5]


def test_the_average_of_coordinates_is_fjords_average_of_nested_blocks():
    slicer = Slicer(cnn.build, image_spec())
    rng = np.random.default_rng(0)
    clients = [(0.5, 3.0), (0.25, 5.0), (1.0, 2.0), (0.5, 7.0)]
    start = rng.normal(size=slicer.size).astype(np.float32)
    updates = []
    for width, examples in clients:
        values = rng.normal(size=slicer.layout(width).size).astype(np.float32)
        updates.append(Update(index=slicer.index(width), values=values, weight=examples))
    result = unflatten(slicer.layout(1.0), aggregate(start, updates).vector)

    expected = unflatten(slicer.layout(1.0), start)
    trained = [
        unflatten(slicer.layout(width), update.values)
        for (width, _), update in zip(clients, updates, strict=True)
    ]
    for p in (1.0, 0.5, 0.25):  # each block is overwritten by the mean of those who hold it
        holders = [i for i, (width, _) in enumerate(clients) if width >= p]
        for name, shape in ((entry.name, entry.shape) for entry in slicer.layout(p).entries):
            block = tuple(slice(size) for size in shape)
            weights = [clients[i][1] for i in holders]
            parts = [trained[i][name][block].astype(np.float64) for i in holders]
            expected[name][block] = np.average(parts, axis=0, weights=weights)
    for name, array in result.items():
        np.testing.assert_allclose(array, expected[name], atol=1e-6)


def test_running_statistics_and_a_draw_by_batch_are_refused(tmp_path):
    with pytest.raises(FedhetError, match=r"running statistics.* use gn, sbn or none") as caught:
        run(tmp_path / "run", strategy="fjord", fjord__draw="batch", norm="bn")
    assert (caught.value.key, caught.value.value) == ("norm", "bn")
    assert not (tmp_path / "run").exists()
    run(tmp_path / "sbn", strategy="fjord", fjord__draw="batch", norm="sbn", num_server_rounds=1)


def changed(directory, rounds, **options):
    """By tensor, which coordinates the last of several rounds changed."""
    before, after = (
        run(directory / str(number), num_server_rounds=number, **options).model()
        for number in (rounds - 1, rounds)
    )
    return {name: after[name] != before[name] for name in after}


@pytest.mark.parametrize("advance", [1, 15])
def test_a_round_of_fedrolex_trains_the_window_of_its_round(advance, tmp_path):
    options = {
        "strategy": "fedrolex",
        "fedrolex__advance": advance,
        "norm": "none",
        "num_clients": 1,
        "fraction_train": 1.0,
        "partition": "iid",
        **NARROW,
    }
    moved = changed(tmp_path, 3, **options)
    first = np.roll(np.arange(16), -2 * advance)[:4]
    second = np.roll(np.arange(32), -2 * advance)[:8]
    rows = moved["block2.conv.weight"].any(axis=(1, 2, 3))
    columns = moved["block2.conv.weight"].any(axis=(0, 2, 3))
    assert np.flatnonzero(rows).tolist() == sorted(second)
    assert np.flatnonzero(columns).tolist() == sorted(first)
    assert np.flatnonzero(moved["block1.conv.bias"]).tolist() == sorted(first)
    assert moved["classifier.bias"].all()


def test_rolling_trains_what_leading_slices_never_do(tmp_path, caplog):
    options = {"capacity_tiers": "0.5", "capacity_probs": "1.0", "num_server_rounds": 32}
    options |= {"local_steps": 1, "num_clients": 2, "fraction_train": 1.0}
    fixed = run(tmp_path / "heterofl", strategy="heterofl", **options)
    assert fixed.summary["never-trained"] == fixed.summary["uncovered"] > 0.5
    caplog.clear()
    rolling = run(tmp_path / "fedrolex", strategy="fedrolex", **options)
    never = [row["never-trained"] for row in rolling.rounds]
    # 4, 8, 16 and 32 groups: 32 rounds are a whole turn of the widest layer.
    assert never[0] == pytest.approx(fixed.summary["uncovered"])
    assert never[-1] == 0 < never[8] < never[0]
    assert {row["uncovered"] for row in rolling.rounds} == {0}
    assert "trained by no client" not in caplog.text


def test_the_share_that_a_quarter_never_reaches_is_said(tmp_path, caplog):
    """Windows roll alike, so a pair of channels too far apart never shares one."""
    options = {"strategy": "fedrolex", "norm": "none", "num_clients": 2, "fraction_train": 1.0}
    reader = run(tmp_path / "run", local_steps=1, num_server_rounds=2, **NARROW, **options)
    slicer = Task(tiny(tmp_path, **options)).slicer
    seen = np.zeros(slicer.size, dtype=bool)
    for shift in range(128):
        seen[slicer.index(0.25, shift)] = True
    assert reader.summary["uncovered"] == pytest.approx(1 - seen.mean())
    assert 0.1 < reader.summary["uncovered"] < 0.3
    assert "of the parameters are trained by no client" in caplog.text


def test_a_network_that_cannot_roll_is_refused_before_the_first_round(tmp_path, monkeypatch):
    def build(width, spec):
        hidden = max(8, scaled(32, width))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, 10))

    monkeypatch.setattr(task_module, "builder_for", lambda name: build)
    caps = np.array([0.3, 0.5])
    with pytest.raises(FedhetError, match=r"1.weight.*keeps 10 of 32, no whole number of the 8"):
        FedRolex(Task(tiny(tmp_path, strategy="fedrolex")), caps)
    FedRolex(Task(tiny(tmp_path, strategy="fedrolex", fedrolex__advance=0)), caps)

"""Bridge errors along a real run, against loops and autograd of the paper's formulas."""

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from running import MIXTURE, run, run_spoilt, tiny
from scipy.optimize import root
from scipy.special import logsumexp

from fedhet_app import wire
from fedhet_app.mixture import profile
from fedhet_app.mixture_model import mixture_of
from fedhet_app.task import task_for
from strategies.bridge import ExpectationStep, measure_bridge

OPTIONS = {**MIXTURE, "num_clients": 3, "num_server_rounds": 2, "fedspm__bridge_every": 1}


def surrogate_of(scores, tau, w, owners):
    """Q2~ over -n, in a loop over examples."""
    total = 0.0
    for row, weights, owner in zip(scores, w, owners, strict=True):
        total += (weights * row[owner]).sum() - logsumexp(row + np.log(tau))
    return -total / len(scores)


@pytest.fixture
def step(tmp_path):
    """A task with its networks, and responsibilities drawn at random."""
    task = task_for(tiny(tmp_path / "run", **OPTIONS))
    rng = np.random.default_rng(0)
    w = rng.dirichlet([1, 1], size=len(task.partition.order))
    offsets = task.partition.offsets
    tau = np.stack([w[a:b].sum(axis=0) for a, b in pairwise(offsets)])
    e_step = ExpectationStep(w=w, log_mixture=np.zeros(len(w)), tau=tau)
    return task, mixture_of(task), e_step


def test_the_surrogate_and_its_gradient_are_those_of_the_paper(step):
    task, model, e_step = step
    start = model.initial
    moved = start.copy()
    rng = np.random.default_rng(1)
    moved += 1e-3 * rng.standard_normal(len(start)).astype(np.float32)
    row = measure_bridge(task, model, start, moved, e_step)["raw"]
    rows = torch.from_numpy(task.partition.order)
    owners = np.repeat(np.arange(3), task.partition.sizes)
    for vector, name in ((start, "surrogate"), (moved, "surrogate-next")):
        model.load(vector)
        scores = model.outputs(task.train_examples, rows, predict=False).scores.double().numpy()
        assert row[name] == pytest.approx(surrogate_of(scores, e_step.tau, e_step.w, owners))
    model.load(start)
    params = model.router.params
    inputs = task.train_examples.batch(rows)[0]
    model.router.grad.zero_()
    u = (model.router.module(inputs) + torch.from_numpy(e_step.tau).log()).flatten(1)
    own = u.log_softmax(1).view(len(rows), 3, 2)[torch.arange(len(rows)), torch.from_numpy(owners)]
    loss = -(torch.from_numpy(e_step.w) * own).sum() / len(rows)
    loss.backward()
    assert len(params) == len(model.router.grad)
    norm2 = float(model.router.grad.double().square().sum())
    assert row["surrogate-gradient-norm2"] == pytest.approx(norm2, rel=1e-4)


def test_the_shift_changes_f_and_leaves_the_surrogate(step):
    task, model, e_step = step
    rows = measure_bridge(task, model, model.initial, model.initial, e_step)
    raw, shifted = rows["raw"], rows["shifted"]
    assert raw["surrogate"] == shifted["surrogate"] == raw["surrogate-next"]
    assert shifted["residual"] < raw["residual"] or shifted["feasible"] >= raw["feasible"]
    for row in rows.values():
        assert row["residual"] == row["residual-next"]
        if row["feasible"]:
            assert row["f"] == row["f-next"]
            assert row["smallest-weight"] > 0


def test_a_pair_that_explains_nothing_has_no_constraint(step):
    """Its ratio is below one everywhere, with which no weights could make it a density."""
    task, model, e_step = step
    size = task.partition.sizes[0]
    w = e_step.w.copy()
    w[:size] = [1.0, 0.0]
    tau = e_step.tau.copy()
    tau[0] = [size, 0.0]
    vector = model.initial.copy()
    model.load(vector)
    rows = torch.from_numpy(task.partition.order)
    s = model.outputs(task.train_examples, rows, predict=False).scores.flatten(1).double().numpy()
    s -= s.mean(axis=0)  # what gamma could do
    s[:, 1] -= s[:, 1].max() + 1.0
    dead = ExpectationStep(w=w, log_mixture=e_step.log_mixture, tau=tau)
    with mock.patch("strategies.bridge._scores", lambda *_: s):
        with_it = measure_bridge(task, model, vector, vector, e_step)["shifted"]
        row = measure_bridge(task, model, vector, vector, dead)["shifted"]
    assert (with_it["empty-pairs"], with_it["feasible"], with_it["solvable"]) == (0, False, False)
    assert (row["empty-pairs"], row["feasible"], row["solvable"]) == (1, True, True)
    shifted = s + profile.shift(s, tau.ravel())
    ratios = np.delete(np.exp(shifted) - 1, 1, axis=1)
    found = root(lambda x: (ratios / (1 + ratios @ x)[:, None]).sum(axis=0), np.full(5, 0.1))
    weights = 1 + ratios @ found.x
    assert weights.min() > 0
    owners = np.repeat(np.arange(3), task.partition.sizes)
    own = (w * shifted.reshape(len(s), 3, 2)[np.arange(len(s)), owners]).sum(axis=1)
    assert row["f"] == pytest.approx((np.log(weights) - own).mean(), rel=1e-8)


def test_a_run_measures_every_round_that_it_is_asked_to(tmp_path):
    reader = run(tmp_path / "run", **{**OPTIONS, "fedspm__bridge_every": 2})
    assert ["bridge" in row for row in reader.rounds] == [False, True]
    raw = reader.rounds[1]["bridge"]["raw"]
    assert isinstance(raw["feasible"], bool)
    assert raw["surrogate"] is not None
    assert "seconds-bridge" in reader.rounds[1]


def test_measuring_changes_nothing_that_is_trained(tmp_path):
    measured = run(tmp_path / "measured", **OPTIONS)
    plain = run(tmp_path / "plain", **{**OPTIONS, "fedspm__bridge_every": 0})
    assert measured.model().keys() == plain.model().keys()
    for name, array in plain.model().items():
        assert array.tobytes() == measured.model()[name].tobytes()


def test_without_every_client_there_is_nothing_to_measure(tmp_path, caplog):
    def lost(partition, message, answer):
        away = partition == 1 and message.metadata.message_type == wire.E_STEP
        return None if away else answer()

    reader = run_spoilt(tmp_path / "run", lost, **OPTIONS)
    assert not any("bridge" in row for row in reader.rounds)
    assert "no bridge errors, which take every client's responsibilities" in caplog.text

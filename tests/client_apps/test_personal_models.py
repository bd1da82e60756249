"""FedAvgFT, FedBABU and Ditto as a whole, each against plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
from running import MIXTURE, run_spoilt, tiny
from test_reductions import start_of
from torch.nn.functional import cross_entropy

from client_apps import ditto
from client_apps.frozen import Frozen
from fedhet_app import wire
from fedhet_app.config import parse
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.task import task_for
from fedhet_app.training import cross_entropy_objective

CLIENTS = range(4)
OPTIONS = {**MIXTURE, "local_steps": 5, "lr": 0.2, "clip_norm": 1.0, "weight_decay": 0.05}
"""Weight decay and clipping are strong enough to show where they act on the wrong parameters."""


class Spied:
    """A run of which every answer to a query and every returned model is kept."""

    def __init__(self, directory, **options):
        self.said, self.returned = {}, []
        self.config = tiny(directory / "other", **options)
        self.reader = run_spoilt(directory / "run", self._listen, **options)

    def _listen(self, partition, message, answer):
        reply = answer()
        vector = wire.unpack(reply.content["arrays"])
        if message.metadata.message_type == wire.PREDICT:
            self.said[partition] = vector.reshape(-1, 10)
        else:
            self.returned.append(vector)
        return reply


class Plain:
    """Data and start point of a run as tensors, and SGD by torch's own optimiser."""

    def __init__(self, config):
        self.config, self.module = config, start_of(config)
        task = task_for(config)
        self.rows = [np.array(task.partition.client(client)) for client in CLIENTS]
        self.inputs, self.labels = self._tensors(task.dataset.train)
        self.tested, _ = self._tensors(task.dataset.test)

    @staticmethod
    def _tensors(split):
        pixels = torch.tensor(np.array(split.inputs), dtype=torch.float32)
        inputs = ((pixels - 127.5) / 127.5).permute(0, 3, 1, 2).contiguous()
        return inputs, torch.tensor(np.array(split.labels))

    def lr(self, number):
        return 0.5 * 0.2 * (1 + np.cos(np.pi * (number - 1) / 3))

    def batches(self, client, steps, *keys):
        """Batches of 16 out of one shuffle, which ends with what is left over."""
        order = rng_for(self.config.seed, "shuffle", client, *keys).permutation(self.rows[client])
        parts = [torch.tensor(order[i : i + 16]) for i in range(0, len(order), 16)]
        assert steps is None or len(parts) >= steps
        return parts[:steps]

    def sgd(self, module, batches, lr, *, trained="", pull=None, lam=0.0):
        """Train what ``trained`` accepts by name; ``pull`` is a module to stay close to."""
        named = [(name, p) for name, p in module.named_parameters() if name.startswith(trained)]
        parameters = [p for _, p in named]
        centre = [p.detach().clone() for p in (pull or module).parameters()]
        optimiser = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.05)
        for batch in batches:
            loss = cross_entropy(module(self.inputs[batch]), self.labels[batch])
            away = zip(module.parameters(), centre, strict=True)
            distance = sum(((p - c) ** 2).sum() for p, c in away)
            optimiser.zero_grad()
            (loss + lam / 2 * distance).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()

    def average(self, modules):
        sizes = torch.tensor([len(rows) for rows in self.rows], dtype=torch.float64)
        for name, parameter in self.module.named_parameters():
            stacked = torch.stack([dict(m.named_parameters())[name].double() for m in modules])
            parameter.data = torch.tensordot(sizes / sizes.sum(), stacked, dims=1).float()

    @torch.no_grad()
    def predictions(self, module):
        return module(self.tested).softmax(dim=1).numpy()


def assert_same_models(reader, module):
    expected = module.state_dict()
    assert set(reader.model()) == set(expected)
    for name, array in reader.model().items():
        np.testing.assert_allclose(array, expected[name].numpy(), atol=2e-5, err_msg=name)


def loaded(plain, reader):
    """The global model of a run, for plain torch."""
    tensors = {name: torch.from_numpy(array.copy()) for name, array in reader.model().items()}
    module = copy.deepcopy(plain.module)
    module.load_state_dict(tensors)
    return module


def test_fedavg_ft_fine_tunes_everything_and_forgets_it(tmp_path):
    options = {**OPTIONS, "strategy": "fedavg-ft", "fedavg_ft__epochs": 1, "fedavg_ft__lr": 0.1}
    spied = Spied(tmp_path, **options)
    plain = Plain(spied.config)
    for client in CLIENTS:
        module = loaded(plain, spied.reader)
        before = plain.predictions(module)
        plain.sgd(module, plain.batches(client, None, 0), lr=0.1)
        np.testing.assert_allclose(spied.said[client], plain.predictions(module), atol=2e-5)
        assert np.abs(spied.said[client] - before).max() > 0.05


def test_epochs_of_fine_tuning_are_passes_over_a_clients_examples(tmp_path, monkeypatch):
    seen = []
    real = wire.read_query
    monkeypatch.setattr("fedhet_app.training.sgd", lambda *given, **named: seen.append(1))
    monkeypatch.setattr("fedhet_app.wire.read_query", lambda message: seen.clear() or real(message))
    options = {**MIXTURE, "strategy": "fedavg-ft", "fedavg_ft__epochs": 3}
    spied = Spied(tmp_path, **options)
    (last,) = {len(rows) for rows in Plain(spied.config).rows[-1:]}
    assert len(seen) == 3 * -(-last // 16)


@pytest.mark.parametrize(
    "method",
    [
        {"strategy": "fedavg-ft", "fedavg_ft__lr": 1e-12},
        {"strategy": "fedbabu", "fedbabu__lr": 1e-12},
    ],
    ids=lambda method: method["strategy"],
)
def test_fine_tuning_by_next_to_nothing_leaves_the_global_models_predictions(method, tmp_path):
    spied = Spied(tmp_path, **{**OPTIONS, **method})
    plain = Plain(spied.config)
    expected = plain.predictions(loaded(plain, spied.reader))
    for client in CLIENTS:
        np.testing.assert_allclose(spied.said[client], expected, atol=1e-6)
    assert spied.reader.rounds[-1]["system-accuracy"] == pytest.approx(
        spied.reader.rounds[-1]["accuracy"]
    )


@pytest.mark.parametrize("finetune", ["head", "full"])
def test_fedbabu_averages_bodies_and_fine_tunes_as_asked(finetune, tmp_path):
    options = {**OPTIONS, "strategy": "fedbabu", "fedbabu__finetune": finetune}
    spied = Spied(tmp_path, **options, fedbabu__lr=0.1)
    plain = Plain(spied.config)
    body = tuple(n for n, _ in plain.module.named_parameters() if not n.startswith("classifier."))
    for number in (1, 2, 3):
        modules = [copy.deepcopy(plain.module) for _ in CLIENTS]
        for client, module in enumerate(modules):
            batches = plain.batches(client, 5, number)
            plain.sgd(module, batches, plain.lr(number), trained=body)
        plain.average(modules)
    assert_same_models(spied.reader, plain.module)
    for client in CLIENTS:
        module = copy.deepcopy(plain.module)
        part = "classifier." if finetune == "head" else ""
        plain.sgd(module, plain.batches(client, None, 0), lr=0.1, trained=part)
        np.testing.assert_allclose(spied.said[client], plain.predictions(module), atol=5e-5)
        moved = np.abs(spied.said[client] - plain.predictions(plain.module)).max()
        assert moved > 0.05


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_the_head_of_fedbabu_keeps_its_bits_everywhere(norm, tmp_path):
    spied = Spied(tmp_path, **{**OPTIONS, "strategy": "fedbabu", "norm": norm})
    start = start_of(spied.config).state_dict()
    for name, array in spied.reader.model().items():
        same = array.tobytes() == start[name].numpy().tobytes()
        assert same == name.startswith("classifier."), name
    task = task_for(spied.config)
    initial, entries = task.initial_vector(), task.slicer.layout(1.0).entries
    assert len(spied.returned) == 3 * 4
    for entry in entries:
        part = slice(entry.offset, entry.offset + entry.size)
        if entry.name.startswith("classifier."):
            assert all((each[part] == initial[part]).all() for each in spied.returned)


def test_frozen_parameters_take_no_part_in_a_step():
    """Gradient and decay of a linear model y = w x, with the second of two inputs frozen."""
    model = FlatModule(torch.nn.Linear(2, 2, bias=False))
    model.load(np.array([1, 2, 3, 4], dtype=np.float32))
    mask = torch.tensor([False, True, False, True])
    part = Frozen(mask, parse({"weight-decay": 0.5}))
    assert part.config.weight_decay == 0.0
    inputs, labels = torch.tensor([[1.0, 1.0]]), torch.tensor([0])
    part.objective(lambda m, x: m.module(x), model, inputs, labels)
    wrong = np.exp(7) / (np.exp(3) + np.exp(7))
    np.testing.assert_allclose(model.grad, [-wrong, 0, wrong, 0], rtol=1e-5)
    part.decay(model.params, model.grad)
    np.testing.assert_allclose(model.grad, [0.5 - wrong, 0, 1.5 + wrong, 0], rtol=1e-5)


def test_with_nothing_frozen_the_gradient_is_that_of_the_loss():
    grads = []
    for frozen in (False, True):
        model = FlatModule(torch.nn.Linear(3, 2))
        model.load(np.arange(8, dtype=np.float32) / 8)
        nothing = Frozen(torch.zeros(8, dtype=torch.bool), parse({"weight-decay": 0.0}))
        objective = nothing.objective if frozen else cross_entropy_objective
        objective(lambda m, x: m.module(x), model, torch.ones(2, 3), torch.tensor([0, 1]))
        grads.append(model.grad.numpy())
    np.testing.assert_array_equal(*grads)


@pytest.mark.parametrize(
    ("lam", "budget", "steps"), [(2.0, "shared", (3, 2)), (0.5, "added", (5, 5))]
)
def test_ditto_pulls_personal_models_towards_the_global_one_of_the_rounds_start(
    lam, budget, steps, tmp_path
):
    options = {**OPTIONS, "strategy": "ditto", "ditto__lam": lam, "ditto__budget": budget}
    spied = Spied(tmp_path, **options)
    plain = Plain(spied.config)
    personal = [copy.deepcopy(plain.module) for _ in CLIENTS]
    for number in (1, 2, 3):
        modules = [copy.deepcopy(plain.module) for _ in CLIENTS]
        for client, (module, own) in enumerate(zip(modules, personal, strict=True)):
            lr = plain.lr(number)
            plain.sgd(module, plain.batches(client, steps[0], number), lr)
            batches = plain.batches(client, steps[1], number, 1)
            plain.sgd(own, batches, lr, pull=plain.module, lam=lam)
        plain.average(modules)
    assert_same_models(spied.reader, plain.module)
    for client, own in enumerate(personal):
        np.testing.assert_allclose(spied.said[client], plain.predictions(own), atol=5e-5)
    assert all(row["local-steps"] == 4 * sum(steps) for row in spied.reader.rounds)


def test_ditto_without_the_term_is_local_training(tmp_path):
    spied = Spied(tmp_path, **{**OPTIONS, "strategy": "ditto", "ditto__lam": 0.0})
    plain = Plain(spied.config)
    for client in CLIENTS:
        alone = copy.deepcopy(plain.module)
        for number in (1, 2, 3):
            plain.sgd(alone, plain.batches(client, 2, number, 1), plain.lr(number))
        np.testing.assert_allclose(spied.said[client], plain.predictions(alone), atol=5e-5)


@pytest.mark.parametrize(
    ("options", "examples", "expected"),
    [
        ({"local-steps": 10}, 500, (5, 5)),
        ({"local-steps": 5}, 500, (3, 2)),
        ({"local-steps": 1}, 500, (1, 1)),
        ({"local-steps": 10, "ditto.budget": "added"}, 500, (10, 10)),
        ({"local-epochs": 2, "batch-size": 16}, 33, (3, 3)),
        ({"local-epochs": 1, "batch-size": 16}, 5, (1, 1)),
    ],
)
def test_the_steps_of_ditto_are_divided(options, examples, expected):
    config = parse({"strategy": "ditto", "partition": "dual", **options})
    assert ditto.divided(config, examples) == expected

"""FedSPM and FedDRM against second implementations: one process, plain PyTorch.

FedDRM's has hard labels, the client's id; FedSPM's one network after another in place of stacks.
"""

import copy

import numpy as np
import pytest
import torch
from running import MIXTURE, run, tiny
from torch import nn

from fedhet_app.models import builder_for
from fedhet_app.models.mixture import build_predictor, build_router
from fedhet_app.seeding import rng_for, torch_seeded
from fedhet_app.task import task_for

OPTIONS = {
    **MIXTURE,
    "strategy": "feddrm",
    "dual__examples": 1000,
    "local_steps": 3,
    "lr": 0.05,
    "weight_decay": 5e-4,
    "routing__steps": 5,
}


def centralised(config):
    """The shared parameters by name after all rounds of FedDRM (Wang et al. 2026), with (10)'s tau.

    Alternates, client by client, between cross-entropy on the labels (shared encoder and own head)
    and cross-entropy on the client's id with log n_i added to the logits (encoder h and table).
    """
    task = task_for(config)
    with torch_seeded(config.seed, "init"):
        predictor = build_predictor(
            builder_for(config.model), task.spec, components=1, per_component=False
        )
        router = build_router(
            task.spec,
            encoder="small",
            embedding=8,
            num_clients=4,
            components=1,
            per_component=False,
        )
    encoder, heads = predictor.encoders[0], predictor.heads
    own_heads = [(heads.weight[0].detach().clone(), heads.bias[0].detach().clone())] * 4
    sizes = torch.tensor(task.partition.sizes, dtype=torch.float32)
    inputs, labels = pixels_and_labels(task)
    for number in range(1, config.num_server_rounds + 1):
        lr = 0.5 * 0.05 * (1 + np.cos(np.pi * (number - 1) / 3))
        trained = []
        for client in range(4):
            rows = np.array(task.partition.client(client))
            g, h, table = (
                copy.deepcopy(part) for part in (encoder, router.encoders[0], router.table)
            )
            head = nn.Linear(6, task.dataset.num_classes)
            head.weight.data, head.bias.data = (part.clone() for part in own_heads[client])
            steps = torch.optim.SGD(
                [*g.parameters(), *head.parameters()], lr=lr, momentum=0.9, weight_decay=5e-4
            )
            for batch in ordered(rows, rng_for(config.seed, "shuffle", client, number), 3):
                loss = nn.functional.cross_entropy(head(g(inputs[batch])), labels[batch])
                steps.zero_grad()
                loss.backward()
                steps.step()
            groups = [
                {"params": h.parameters(), "weight_decay": 5e-4},
                {"params": table.parameters()},
            ]
            steps = torch.optim.SGD(groups, lr=lr, momentum=0.95)
            for batch in ordered(rows, rng_for(config.seed, "shuffle", client, number, 1), 5):
                logits = h(inputs[batch]) @ table.xi[:, 0].T + table.gamma[:, 0] + sizes.log()
                identity = torch.full((len(batch),), client)
                loss = nn.functional.cross_entropy(logits, identity)
                steps.zero_grad()
                loss.backward()
                steps.step()
            own_heads[client] = head.weight.detach(), head.bias.detach()
            trained.append((g, h, table))
        for i, part in enumerate((encoder, router.encoders[0], router.table)):
            clients = [dict(each[i].named_parameters()) for each in trained]
            for name, parameter in part.named_parameters():
                stacked = torch.stack([of[name].detach().double() for of in clients])
                mean = torch.tensordot(sizes.double() / sizes.double().sum(), stacked, dims=1)
                parameter.data = mean.float()
    parts = {"predictor.encoders.0": encoder, "router.encoders.0": router.encoders[0]}
    parts["router.table"] = router.table
    return {
        f"{prefix}.{name}": parameter.detach()
        for prefix, part in parts.items()
        for name, parameter in part.named_parameters()
    }


def ordered(rows, rng, steps):
    """The first batches of a shuffle, which no client of this test runs out of."""
    order = rng.permutation(rows)
    assert len(order) >= 16 * steps
    return [torch.tensor(order[16 * i : 16 * (i + 1)]) for i in range(steps)]


def pixels_and_labels(task):
    pixels = torch.tensor(np.array(task.dataset.train.inputs), dtype=torch.float32)
    inputs = ((pixels - 127.5) / 127.5).permute(0, 3, 1, 2).contiguous()
    return inputs, torch.tensor(np.array(task.dataset.train.labels))


class Mixture:
    """All clients' FedSPM, Algorithm 1, with component c's encoder as ``encoders[c]``."""

    def __init__(self, config, components):
        self.config, self.C = config, components
        self.task = task_for(config)
        per_component = config.fedspm.encoders == "per-component"
        with torch_seeded(config.seed, "init"):
            sizes = {"components": components, "per_component": per_component}
            predictor = build_predictor(builder_for(config.model), self.task.spec, **sizes)
            router = build_router(
                self.task.spec, encoder="small", embedding=8, num_clients=4, **sizes
            )
        self.rows = [np.array(self.task.partition.client(i)) for i in range(4)]
        self.inputs, self.labels = pixels_and_labels(self.task)
        self.shared = nn.ModuleDict(
            {"g": predictor.encoders, "h": router.encoders, "table": router.table}
        )
        self.heads = [copy.deepcopy(predictor.heads) for _ in range(4)]
        self.pi = torch.full((4, components), 1 / components, dtype=torch.float64)

    def log_classes(self, shared, heads, x):
        """log P_c(k|x), by component, shape (n, C, K)."""
        g = [shared["g"][c % len(shared["g"])] for c in range(self.C)]
        logits = [g[c](x) @ heads.weight[c].T + heads.bias[c] for c in range(self.C)]
        return torch.stack([each.log_softmax(dim=1) for each in logits], dim=1)

    def ratios(self, shared, x):
        """s_ic(x), shape (n, m, C)."""
        h = [shared["h"][c % len(shared["h"])] for c in range(self.C)]
        table = shared["table"]
        by_component = [h[c](x) @ table.xi[:, c].T + table.gamma[:, c] for c in range(self.C)]
        return torch.stack(by_component, dim=2)

    @torch.no_grad()
    def e_step(self, i):
        """w, shape (n_i, C): Bayes' rule in probabilities, not in logarithms."""
        x, y = self.inputs[self.rows[i]], self.labels[self.rows[i]]
        likelihood = self.log_classes(self.shared, self.heads[i], x).double().exp()
        of_label = likelihood[torch.arange(len(y)), :, y]
        joint = self.pi[i] * self.ratios(self.shared, x)[:, i].double().exp() * of_label
        return joint / joint.sum(dim=1, keepdim=True)

    def batches(self, i, number, steps, *more):
        positions = np.arange(len(self.rows[i]))
        return ordered(positions, rng_for(self.config.seed, "shuffle", i, number, *more), steps)

    def m_step(self, i, number, w, tau):
        cosine = 0.5 * (1 + np.cos(np.pi * (number - 1) / 3))
        shared, heads = copy.deepcopy(self.shared), self.heads[i]
        rows = torch.tensor(self.rows[i])
        parts = [*shared["g"].parameters(), *heads.parameters()]
        steps = torch.optim.SGD(parts, lr=0.05 * cosine, momentum=0.9, weight_decay=5e-4)
        for batch in self.batches(i, number, 3):
            log_p = self.log_classes(shared, heads, self.inputs[rows[batch]])
            own = log_p[torch.arange(16), :, self.labels[rows[batch]]]
            self.step(steps, -(w[batch] * own).sum() / 16)
        groups = [
            {"params": shared["h"].parameters(), "weight_decay": 5e-4},
            {"params": shared["table"].parameters()},
        ]
        steps = torch.optim.SGD(groups, lr=0.08 * cosine, momentum=0.95)
        for batch in self.batches(i, number, 5, 1):
            s = self.ratios(shared, self.inputs[rows[batch]])
            log_sum = (tau * s.exp()).sum(dim=(1, 2)).log()
            self.step(steps, (log_sum - (w[batch] * s[:, i]).sum(dim=1)).mean())
        return shared

    @staticmethod
    def step(optimizer, loss):
        loss = loss.float()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def train(self):
        for number in range(1, self.config.num_server_rounds + 1):
            w = [self.e_step(i) for i in range(4)]
            tau = torch.stack([each.sum(dim=0) for each in w])
            self.pi = tau / torch.tensor([len(each) for each in w])[:, None]
            trained = [self.m_step(i, number, w[i], tau) for i in range(4)]
            share = torch.tensor([len(each) for each in w], dtype=torch.float64)
            for name, parameter in self.shared.named_parameters():
                of = [dict(each.named_parameters())[name].detach().double() for each in trained]
                stacked = torch.stack(of)
                parameter.data = torch.tensordot(share / share.sum(), stacked, dims=1).float()
        return tau


@pytest.mark.parametrize("encoders", ["shared", "per-component"])
def test_fedspm_is_expectation_maximisation_with_networks_one_after_another(encoders, tmp_path):
    options = {**OPTIONS, "strategy": "fedspm", "fedspm__components": 3, "routing__lr": 0.08}
    options["fedspm__encoders"] = encoders
    model = run(tmp_path / "run", **options).model()
    plain = Mixture(tiny(tmp_path / "other", **options), 3)
    tau = plain.train()
    names = {"g": "predictor.encoders", "h": "router.encoders", "table": "router.table"}
    expected = {
        f"{names[part]}.{rest}": parameter.detach()
        for name, parameter in plain.shared.named_parameters()
        for part, rest in [name.split(".", 1)]
    }
    assert set(model) == {*expected, "tau"}
    np.testing.assert_allclose(model["tau"], tau.numpy(), atol=2e-3)
    assert np.abs(tau.numpy() - tau.mean(dim=1, keepdim=True).numpy()).max() > 1
    for name, tensor in expected.items():
        np.testing.assert_allclose(model[name], tensor.numpy(), atol=5e-5, err_msg=name)


def test_feddrm_is_client_classification_with_shared_encoders(tmp_path):
    reader = run(tmp_path / "run", **OPTIONS)
    expected = centralised(tiny(tmp_path / "other", **OPTIONS))
    model = reader.model()
    assert set(model) == {*expected, "tau"}
    for name, tensor in expected.items():
        np.testing.assert_allclose(model[name], tensor.numpy(), atol=2e-5, err_msg=name)
        assert np.abs(model[name]).max() > 0

"""FedDRM against a second implementation: one process, plain PyTorch, hard client-id labels."""

import copy

import numpy as np
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
    pixels = torch.tensor(np.array(task.dataset.train.inputs), dtype=torch.float32)
    inputs = ((pixels - 127.5) / 127.5).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(np.array(task.dataset.train.labels))
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


def test_feddrm_is_client_classification_with_shared_encoders(tmp_path):
    reader = run(tmp_path / "run", **OPTIONS)
    expected = centralised(tiny(tmp_path / "other", **OPTIONS))
    model = reader.model()
    assert set(model) == {*expected, "tau"}
    for name, tensor in expected.items():
        np.testing.assert_allclose(model[name], tensor.numpy(), atol=2e-5, err_msg=name)
        assert np.abs(model[name]).max() > 0

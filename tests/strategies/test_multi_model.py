"""IFCA and FedEM: against plain PyTorch, and through clusters without clients."""

import copy

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from running import MIXTURE, run, run_spoilt, spoiling, tiny
from torch import nn

from client_apps import fedem, ifca
from fedhet_app import finished, wire
from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.model_stack import initial_stack, models_of
from fedhet_app.models import initial_module
from fedhet_app.results import load_tensors
from fedhet_app.seeding import rng_for
from fedhet_app.task import task_for
from fedhet_app.wire import Query
from strategies import ifca as ifca_server

IFCA = {**MIXTURE, "strategy": "ifca", "ifca__clusters": 2, "dual__examples": 600}
FEDEM = {**MIXTURE, "strategy": "fedem", "fedem__components": 2, "dual__examples": 600}
OF = {"ifca": IFCA, "fedem": FEDEM}
AWAY = 2


def inputs_and_labels(task):
    pixels = torch.tensor(np.array(task.dataset.train.inputs), dtype=torch.float32)
    inputs = ((pixels - 127.5) / 127.5).permute(0, 3, 1, 2).contiguous()
    return inputs, torch.tensor(np.array(task.dataset.train.labels))


def batches(task, client, number):
    """The two batches of a client's round, which has no more."""
    order = rng_for(task.config.seed, "shuffle", client, number).permutation(
        np.array(task.partition.client(client))
    )
    assert len(order) >= 32
    return [torch.tensor(order[:16]), torch.tensor(order[16:32])]


def start(task, draw=0):
    config = task.config
    keys = [(c, draw) if c or draw else () for c in range(2)]
    return [initial_module(task.builder, task.spec, config.init, config.seed, *key) for key in keys]


def sgd(module, inputs, labels, chosen, lr, weights=None):
    """Torch's own optimiser on the weighted cross-entropy; ``weights`` by row."""
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    for rows in chosen:
        losses = nn.functional.cross_entropy(module(inputs[rows]), labels[rows], reduction="none")
        if weights is not None:
            losses = losses * weights[rows]
        optimiser.zero_grad()
        losses.mean().backward()
        optimiser.step()


def averaged(modules, sizes):
    shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    mean = copy.deepcopy(modules[0])
    for target, *parts in zip(
        mean.parameters(), *(each.parameters() for each in modules), strict=True
    ):
        target.data = sum(
            s * p.detach().double() for s, p in zip(shares, parts, strict=True)
        ).float()
    return mean


def log_likelihoods(models, inputs, labels, rows):
    """log P_c(y|x), float64, shape ``(n, C)``."""
    with torch.no_grad():
        logs = [model(inputs[rows]).double().log_softmax(1) for model in models]
    return torch.stack([each[torch.arange(len(rows)), labels[rows]] for each in logs], dim=1)


def cosine(number):
    return 0.5 * 0.05 * (1 + np.cos(np.pi * (number - 1) / 3))


def plain_ifca(config):
    """The models after three rounds, and each round's choice by client."""
    task = task_for(config)
    inputs, labels = inputs_and_labels(task)
    rows = [torch.tensor(np.array(task.partition.client(i))) for i in range(4)]

    def choices(models):
        losses = [-log_likelihoods(models, inputs, labels, each).mean(0) for each in rows]
        return [int(each.argmin()) for each in losses]

    draw = next(d for d in range(50) if len(set(choices(start(task, d)))) == 2)
    models, chosen = start(task, draw), []
    for number in (1, 2, 3):
        chosen.append(choices(models))
        trained = []
        for client, cluster in enumerate(chosen[-1]):
            trained.append(copy.deepcopy(models[cluster]))
            sgd(trained[-1], inputs, labels, batches(task, client, number), cosine(number))
        for cluster in range(2):
            of = [i for i in range(4) if chosen[-1][i] == cluster]
            if of:
                models[cluster] = averaged([trained[i] for i in of], [len(rows[i]) for i in of])
    return models, chosen, draw


def plain_fedem(config):
    """The models after three rounds, and each client's mixing weights."""
    task = task_for(config)
    inputs, labels = inputs_and_labels(task)
    models, pi = start(task), np.full((4, 2), 0.5)
    rows = [torch.tensor(np.array(task.partition.client(i))) for i in range(4)]
    for number in (1, 2, 3):
        trained = []
        for client in range(4):
            joint = np.exp(log_likelihoods(models, inputs, labels, rows[client]).numpy())
            joint = joint * pi[client]
            q = joint / joint.sum(axis=1, keepdims=True)
            pi[client] = q.mean(axis=0)
            by_row = torch.zeros(len(labels), 2)
            by_row[rows[client]] = torch.tensor(q, dtype=torch.float32)
            own = [copy.deepcopy(model) for model in models]
            for c, model in enumerate(own):
                chosen = batches(task, client, number)
                sgd(model, inputs, labels, chosen, cosine(number), by_row[:, c])
            trained.append(own)
        sizes = [len(each) for each in rows]
        models = [averaged([own[c] for own in trained], sizes) for c in range(2)]
    return models, pi


def assert_models(reader, models):
    got = reader.model()
    assert len(got) == sum(len(dict(model.named_parameters())) for model in models)
    for c, model in enumerate(models):
        for name, parameter in model.named_parameters():
            expected = parameter.detach().numpy()
            np.testing.assert_allclose(got[f"models.{c}.{name}"], expected, atol=2e-5)
            assert np.abs(expected).max() > 0


@pytest.mark.parametrize("seed", [1, 3])
def test_ifca_is_the_algorithm_in_plain_torch(seed, tmp_path):
    reader = run(tmp_path / "run", **IFCA, seed=seed)
    models, chosen, draw = plain_ifca(tiny(tmp_path / "other", **IFCA, seed=seed))
    assert [[row["cluster"] for row in reader.clients if row["round"] == t] for t in (1, 2, 3)] == (
        chosen
    )
    assert reader.rounds[0]["draws"] == draw + 1
    assert_models(reader, models)


def test_fedem_is_the_algorithm_in_plain_torch(tmp_path):
    reader = run(tmp_path / "run", **FEDEM)
    models, pi = plain_fedem(tiny(tmp_path / "other", **FEDEM))
    assert_models(reader, models)
    for client, row in enumerate(reader.clients[-4:]):
        folder = reader.directory / "clients" / str(client)
        kept = load_tensors(folder / "round-3.safetensors")[0]["pi"]
        np.testing.assert_allclose(kept, pi[client], atol=1e-4)
        assert 1 < row["effective-components"] < 2
        assert row["effective-components"] == pytest.approx(
            np.exp(-pi[client] @ np.log(pi[client])), abs=1e-3
        )


class Kept:
    """A client's state in memory."""

    def __init__(self, arrays=None):
        self.arrays = arrays

    def load(self):
        return self.arrays

    def save(self, server_round, arrays):
        self.arrays = arrays


def test_responsibilities_belong_to_the_example_not_to_its_place_in_a_batch(tmp_path):
    """q and so pi are those of the E-step whatever the batches: another seed shuffles otherwise."""
    task = task_for(tiny(tmp_path / "run", **FEDEM))
    stack, states = initial_stack(task, 2), [Kept(), Kept()]
    for number, state in zip((1, 2), states, strict=True):
        request = wire.TrainRequest(server_round=number, width=1.0, vector=stack, state=state)
        fedem.train(task, 0, request)
    assert states[0].arrays["pi"].tolist() == states[1].arrays["pi"].tolist()
    assert states[0].arrays["pi"].sum() == pytest.approx(1, abs=1e-6)


def test_a_mixture_predicts_the_mean_of_its_models_by_pi(tmp_path):
    task = task_for(tiny(tmp_path / "run", **FEDEM))
    stack, rows = initial_stack(task, 2), np.arange(5)
    state = Kept({"pi": np.array([0.25, 0.75], np.float32)})
    got = fedem.predict(task, 0, Query(vector=stack, rows=rows, state=state))
    pixels = torch.tensor(np.array(task.dataset.test.inputs[:5]), dtype=torch.float32)
    inputs = ((pixels - 127.5) / 127.5).permute(0, 3, 1, 2)
    with torch.no_grad():
        one, two = (model(inputs).softmax(1).numpy() for model in start(task))
    np.testing.assert_allclose(got, 0.25 * one + 0.75 * two, atol=1e-6)
    assert np.abs(one - two).max() > 1e-2


def test_a_weight_of_zero_is_not_the_end_of_a_component(tmp_path):
    task = task_for(tiny(tmp_path / "run", **FEDEM))
    stack, state = initial_stack(task, 2), Kept({"pi": np.array([1.0, 0.0], np.float32)})
    request = wire.TrainRequest(server_round=1, width=1.0, vector=stack, state=state)
    reply = fedem.train(task, 0, request)
    assert np.isfinite(reply.vector).all()
    assert np.isfinite(reply.loss)
    assert 0 < state.arrays["pi"][1] < 1e-6


def test_ifca_predicts_with_the_model_of_the_smallest_train_loss(tmp_path):
    """The labels of the test set, by which the published code chooses, are never looked at."""
    task = task_for(tiny(tmp_path / "run", **IFCA))
    stack, rows = initial_stack(task, 2, draw=1), np.arange(5)
    inputs, labels = inputs_and_labels(task)
    own = torch.tensor(np.array(task.partition.client(0)))
    models = start(task, 1)
    best = int((-log_likelihoods(models, inputs, labels, own)).mean(0).argmin())
    got = ifca.predict(task, 0, Query(vector=stack, rows=rows))
    swapped = np.concatenate(models_of(task, stack)[::-1])
    assert ifca.predict(task, 0, Query(vector=swapped, rows=rows)).tolist() == got.tolist()
    pixels = torch.tensor(np.array(task.dataset.test.inputs[:5]), dtype=torch.float32)
    with torch.no_grad():
        inputs = ((pixels - 127.5) / 127.5).permute(0, 3, 1, 2)
        expected = models[best](inputs).softmax(1).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2.0, 1.0, 1.0], 1),
        ([1.0, 1.0], 0),
        ([np.nan, 3.0], 1),
        ([np.inf, np.nan], 0),
    ],
)
def test_the_best_model_is_the_first_of_the_smallest_losses(losses, expected):
    assert ifca.best(np.array(losses)) == expected


@pytest.mark.parametrize("count", [1, 3])
def test_a_stack_begins_with_every_other_methods_initial_model(count, tmp_path):
    task = task_for(tiny(tmp_path / "run", **IFCA))
    models = models_of(task, initial_stack(task, count))
    assert models[0].tolist() == task.initial_vector().tolist()
    again = models_of(task, initial_stack(task, count, draw=1))
    assert len(np.unique(np.concatenate([models, again]), axis=0)) == 2 * count


def listened(directory, **options):
    """Sizes of what travels, by message type: floats down and up."""
    sizes = {}

    def listen(partition, message, answer):
        reply = answer()
        kind = message.metadata.message_type
        down = len(wire.unpack(message.content["arrays"]))
        up = len(wire.unpack(reply.content["arrays"]))
        sizes.setdefault(kind, set()).add((down, up))
        return reply

    return run_spoilt(directory, listen, **options), sizes


def test_only_the_model_that_was_trained_travels_up(tmp_path):
    reader, sizes = listened(tmp_path / "run", **IFCA)
    one = task_for(tiny(tmp_path / "run", **IFCA)).slicer.size
    assert sizes["train"] == {(2 * one, one)}
    assert sizes["train.e_step"] == {(2 * one, 1)}
    last = reader.rounds[-1]
    assert 4 * 2 * one * 4 < last["download-bytes"] < 4 * 2 * one * 4 * 1.1
    assert 4 * one * 4 < last["upload-bytes"] < 4 * one * 4 * 1.1


def test_fedem_sends_all_models_both_ways_and_its_weights_never(tmp_path):
    reader, sizes = listened(tmp_path / "run", **FEDEM)
    one = task_for(tiny(tmp_path / "run", **FEDEM)).slicer.size
    assert sizes["train"] == {(2 * one, 2 * one)}
    assert "train.e_step" not in sizes
    last = reader.rounds[-1]
    for way in ("download-bytes", "upload-bytes"):
        assert 4 * 2 * one * 4 < last[way] < 4 * 2 * one * 4 * 1.1
    assert not any("pi" in row for row in reader.clients)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda cluster: cluster * 0 + 2, "cluster 2 instead of one of 0 to 1"),
        (lambda cluster: cluster * 0 - 1, "cluster -1 instead of one of 0 to 1"),
        (lambda cluster: cluster * 0 + 0.5, "cluster 0.5 instead of"),
        (lambda cluster: cluster * np.nan, "non-finite values"),
    ],
    ids=["beyond", "negative", "between", "NaN"],
)
def test_a_cluster_that_is_none_costs_the_client_its_round(change, reason, tmp_path):
    spoil = spoiling(AWAY, wire.TRAIN, "cluster", change)
    reader = run_spoilt(tmp_path / "run", spoil, **IFCA)
    for row in reader.rounds:
        assert row["replies"] == 3
        assert [each["partition"] for each in row["rejected"]] == [AWAY]
        assert reason in row["rejected"][0]["reason"]
        assert sum(row["cluster-sizes"]) == 3
    assert reader.summary["status"] == "completed"


def test_a_cluster_that_loses_all_its_clients_keeps_its_model(tmp_path, caplog):
    kept = []

    def leave(partition, message, answer):
        """From round 2 on everybody is told to train the first model."""
        if message.metadata.message_type == wire.TRAIN:
            if partition == 0:
                kept.append(models_of_two(message)[1].tobytes())
            if message.content["config"]["round"] > 1:
                told = {"cluster": wire.pack(np.zeros(1, np.float32))}
                message.content = RecordDict({**message.content, **told})
        return answer()

    reader = run_spoilt(tmp_path / "run", leave, **{**IFCA, "num_server_rounds": 4})
    sizes = [row["cluster-sizes"] for row in reader.rounds]
    assert sizes[1:] == [[4, 0]] * 3
    assert sizes[0][1] > 0
    assert kept[0] != kept[1] == kept[2] == kept[3]
    assert caplog.text.count("no client chose cluster 1: its model stays as it is") == 1


def models_of_two(message):
    return wire.unpack(message.content["arrays"]).reshape(2, -1)


def saying(cluster, message, answer):
    """The reply of a client that chooses, with another choice."""
    records = {**answer().content, "arrays": wire.pack(np.array([cluster], np.float32))}
    return Message(RecordDict(records), reply_to=message)


def test_models_are_dealt_out_where_no_draw_gives_each_cluster_a_client(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(ifca_server, "DRAWS", 3)
    drawn, told = [], []

    def all_the_same(partition, message, answer):
        kind = message.metadata.message_type
        if partition == 0 and kind != wire.PREDICT:
            drawn.append(models_of_two(message).tobytes())
            told.append("cluster" in message.content)
        return saying(1, message, answer) if kind == wire.E_STEP else answer()

    reader = run_spoilt(tmp_path / "run", all_the_same, **IFCA)
    assert reader.rounds[0]["draws"] == 3
    assert len(set(drawn[:3])) == 3
    first = initial_stack(task_for(tiny(tmp_path / "run", **IFCA)), 2)
    assert drawn[0] == drawn[3] == first.tobytes()
    assert [row["cluster"] for row in reader.clients[:4]] == [0, 1, 0, 1]
    assert told == [False] * 3 + [True] + [False] * 2
    assert "in no draw of 3 did every cluster get a client; they are dealt out" in caplog.text


@pytest.mark.parametrize("stop", [False, True], ids=["unbroken", "resumed"])
def test_a_client_that_is_sampled_later_trains_what_it_was_dealt(stop, tmp_path, monkeypatch):
    monkeypatch.setattr(ifca_server, "DRAWS", 1)
    told = []

    def all_the_same(partition, message, answer):
        kind = message.metadata.message_type
        if stop and message.content["config"].get("round") == 3 and not options.get("resume"):
            raise KeyboardInterrupt
        if kind == wire.TRAIN and "cluster" in message.content:
            told.append(partition)
        return saying(1, message, answer) if kind == wire.E_STEP else answer()

    options = {**IFCA, "fraction_train": 0.5, "num_server_rounds": 6}
    if stop:
        with pytest.raises(KeyboardInterrupt):
            run_spoilt(tmp_path / "run", all_the_same, **options)
        options["resume"] = True
    reader = run_spoilt(tmp_path / "run", all_the_same, **options)
    first = {}
    for row in reader.clients:
        first.setdefault(row["partition"], row["cluster"])
    assert first == {client: client % 2 for client in range(4)}
    assert sorted(told) == [0, 1, 2, 3]
    assert {row["partition"] for row in reader.clients if row["round"] == 1} != set(first)


def test_a_client_that_does_not_say_what_it_chooses_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ifca_server, "DRAWS", 3)
    asked = []

    def silent(partition, message, answer):
        if message.metadata.message_type != wire.E_STEP:
            return answer()
        asked.append(partition)
        return None if partition == AWAY else saying(0, message, answer)

    reader = run_spoilt(tmp_path / "run", silent, **IFCA)
    assert [asked.count(client) for client in range(4)] == [3, 3, 1, 3]
    assert [row["replies"] for row in reader.rounds] == [4, 4, 4]
    assert [each["partition"] for each in reader.rounds[0]["rejected"]] == [AWAY]


def test_nobody_who_says_what_it_chooses_ends_the_draws(tmp_path):
    def silent(partition, message, answer):
        return None if message.metadata.message_type == wire.E_STEP else answer()

    reader = run_spoilt(tmp_path / "run", silent, **IFCA)
    assert reader.rounds[0]["draws"] == 1
    assert reader.summary["status"] == "completed"


@pytest.mark.parametrize("strategy", OF)
def test_a_round_without_replies_keeps_the_models(strategy, tmp_path):
    def lost(partition, message, answer):
        number = message.content["config"].get("round")
        silent = message.metadata.message_type == wire.TRAIN and number == 2
        return None if silent else answer()

    reader = run_spoilt(tmp_path / "run", lost, **OF[strategy])
    assert [row["replies"] for row in reader.rounds] == [4, 0, 4]
    assert reader.summary["empty-rounds"] == 1


def test_more_clusters_than_clients_are_refused(tmp_path):
    with pytest.raises(FedhetError, match=r"ifca.clusters = 5: more than the 4 clients; use that"):
        run(tmp_path / "run", **{**IFCA, "ifca__clusters": 5})
    config = tiny(tmp_path / "run", **{**IFCA, "ifca__clusters": 4})
    with pytest.raises(FedhetError, match=r"ifca.clusters = 4: more than the 3 clients"):
        config.with_nodes(3)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"strategy": "ifca", "ifca.clusters": 0}, "ifca.clusters.*at least 1"),
        ({"strategy": "fedem", "fedem.components": 0}, "fedem.components.*at least 1"),
        ({"strategy": "fedem", "ifca.clusters": 2}, "has no effect with strategy = fedem"),
        ({"strategy": "ifca", "partition": "iid"}, "ifca must know whose each test example is"),
    ],
)
def test_options_without_sense_are_refused(options, match):
    with pytest.raises(FedhetError, match=match):
        parse({"partition": "dual", **options})


@pytest.mark.parametrize("strategy", OF)
def test_a_stack_is_no_model_to_measure_or_export(strategy, tmp_path):
    reader = run(tmp_path / "run", **OF[strategy])
    with pytest.raises(FedhetError, match=rf"strategy = '{strategy}': trains several models"):
        finished.load(reader.directory)


def test_one_model_alone_is_a_model(tmp_path):
    reader = run(tmp_path / "run", **{**IFCA, "ifca__clusters": 1})
    assert "draws" not in reader.rounds[0]
    assert finished.load(reader.directory).vector.size > 0

"""The limits that methods state, each tested against the method it becomes there."""

import numpy as np
import pytest
import torch
from running import FULL_CAPACITY, model_bytes, run, tiny
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from fedhet_app.config import STRATEGY_NAMES
from fedhet_app.config_checks import ROUTING_METHODS, VOTING_METHODS
from fedhet_app.models import initial_module
from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.submodel.divergence import divergence, leave_one_out
from fedhet_app.task import Task

ADAPTIVE = {
    "has_fl__warmup": 0,
    "has_fl__adapt_every": 1,
    "random_budget__warmup": 0,
    "random_budget__adapt_every": 1,
}
EVERY_LABEL = {"partition": "iid", "num_clients": 2, "fraction_train": 1.0}
NARROW = {"capacity_tiers": "0.2,0.4", "capacity_probs": "0.5,0.5"}
FIRST_ROUND = {
    "num_server_rounds": 1,
    "fraction_train": 1.0,
    "partition": "iid",
    "momentum": 0.0,
    "weight_decay": 0.0,
}

EQUAL_SLICES = {  # at p-min = 0.4 and gamma = 0 all clients that can train 0.4 wide slices
    "strategy": "has-fl",
    **ADAPTIVE,
    "capacity_tiers": "0.5,0.75",
    "capacity_probs": "0.5,0.5",
    "has_fl__gamma": 0.0,
    "has_fl__coverage": False,
}

DUAL = {"partition": "dual", "num_clients": 3, "fraction_train": 1.0, "max_train_examples": 0}
AUGMENTED = {"augment": "crop-flip"}

REDUCTIONS = (
    {
        "FedProx with mu = 0 is FedAvg": (
            {"strategy": "fedprox", "fedprox__mu": 0.0},
            {"strategy": "fedavg"},
        ),
        "SCAFFOLD from zero controls on equal shares is FedAvg, everybody there": (
            {**FIRST_ROUND, "strategy": "scaffold"},
            {**FIRST_ROUND, "strategy": "fedavg"},
        ),
        "HAS-FL with all caps up to p-min is HeteroFL": (
            {"strategy": "has-fl", **ADAPTIVE, **NARROW, "has_fl__p_min": 0.4},
            {"strategy": "heterofl", **NARROW},
        ),
        "Uniform as wide as the largest cap is HeteroFL": (
            {"strategy": "uniform", **NARROW, "uniform__width": 0.4},
            {"strategy": "heterofl", **NARROW},
        ),
        "FedRolex that never rolls is HeteroFL": (
            {"strategy": "fedrolex", "fedrolex__advance": 0},
            {"strategy": "heterofl"},
        ),
        "FjORD with one tier is HeteroFL, also drawn by batch and its own teacher": (
            {
                "strategy": "fjord",
                "fjord__draw": "batch",
                "fjord__distillation": True,
                "capacity_tiers": "0.5",
                "capacity_probs": "1",
            },
            {"strategy": "heterofl", "capacity_tiers": "0.5", "capacity_probs": "1"},
        ),
        "HeteroFL's masked classifier with every label everywhere changes nothing": (
            {"strategy": "heterofl", "heterofl__masked_classifier": True, **EVERY_LABEL},
            {"strategy": "heterofl", **EVERY_LABEL},
        ),
        "HeteroFL's scaler at width 1 is FedAvg": (
            {"strategy": "heterofl", "heterofl__scaler": True, **FULL_CAPACITY},
            {"strategy": "fedavg", **FULL_CAPACITY},
        ),
        "HeteroFL with all its options off is Uniform of width 1": (
            {"strategy": "heterofl", "norm": "none"},
            {"strategy": "uniform", "uniform__width": 1.0, "norm": "none"},
        ),
        "FjORD with one tier is HeteroFL": (
            {"strategy": "fjord", "capacity_tiers": "0.5", "capacity_probs": "1"},
            {"strategy": "heterofl", "capacity_tiers": "0.5", "capacity_probs": "1"},
        ),
        "FedSPM with one component is FedDRM": (
            {**DUAL, "strategy": "fedspm", "fedspm__components": 1},
            {**DUAL, "strategy": "feddrm"},
        ),
        "IFCA with one cluster is FedAvg": (
            {**DUAL, "strategy": "ifca", "ifca__clusters": 1},
            {**DUAL, "strategy": "fedavg"},
        ),
        "FedEM with one component is FedAvg": (
            {**DUAL, "strategy": "fedem", "fedem__components": 1},
            {**DUAL, "strategy": "fedavg"},
        ),
        "FedEM with one component is FedAvg, also with running statistics and augmentation": (
            {**DUAL, "strategy": "fedem", "fedem__components": 1, "norm": "bn", **AUGMENTED},
            {**DUAL, "strategy": "fedavg", "norm": "bn", **AUGMENTED},
        ),
        "The rounds of FedAvgFT are FedAvg's": (
            {**DUAL, "strategy": "fedavg-ft"},
            {**DUAL, "strategy": "fedavg"},
        ),
        "Ditto's global model is FedAvg's with its half of the steps": (
            {**DUAL, "strategy": "ditto", "local_steps": 5},
            {**DUAL, "strategy": "fedavg", "local_steps": 3},
        ),
        "Ditto's global model is FedAvg's where the personal steps are added": (
            {**DUAL, "strategy": "ditto", "ditto__budget": "added"},
            {**DUAL, "strategy": "fedavg"},
        ),
        "HAS-FL on the common core of equal slices is the paper's": (
            {**EQUAL_SLICES, "has_fl__estimator": "common-core"},
            {**EQUAL_SLICES, "has_fl__estimator": "paper"},
        ),
    }
    | {
        f"HAS-FL by {estimator} with all capacities 1 is FedAvg": (
            {"strategy": "has-fl", **FULL_CAPACITY, **ADAPTIVE, "has_fl__estimator": estimator},
            {"strategy": "fedavg", **FULL_CAPACITY},
        )
        for estimator in ("leave-one-out", "common-core", "oracle-tv")
    }
    | {
        f"{name} with all capacities 1 is FedAvg": (
            {"strategy": name, **FULL_CAPACITY, **ADAPTIVE, "uniform__width": 1.0},
            {"strategy": "fedavg", **FULL_CAPACITY},
        )
        for name in sorted(
            set(STRATEGY_NAMES)
            - {"fedavg", "fedprox", "scaffold", *ROUTING_METHODS, *VOTING_METHODS}
        )
    }
)


def test_every_client_holds_every_label_where_a_reduction_says_so(tmp_path):
    assert (Task(tiny(tmp_path, **EVERY_LABEL)).histograms > 0).all()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_method_becomes_another_in_its_limit(name, tmp_path):
    special, general = REDUCTIONS[name]
    one, two = run(tmp_path / "special", **special), run(tmp_path / "general", **general)
    assert model_bytes(one) == model_bytes(two)


def test_equal_slices_are_estimated_alike_on_their_common_core(tmp_path):
    """The reduction above compares models, which gamma = 0 takes the estimates out of."""
    readers = [
        run(tmp_path / name, **EQUAL_SLICES, has_fl__estimator=name, num_server_rounds=4)
        for name in ("paper", "common-core")
    ]
    estimates = [
        [
            (row["round"], row["partition"], row["divergence-raw"])
            for row in reader.clients
            if "divergence-raw" in row and row["round"] > 1
        ]
        for reader in readers
    ]
    assert len(estimates[0]) == 3 * 3
    assert estimates[0] == estimates[1]


def test_leaving_one_of_equals_out_is_the_papers_estimate_up_to_a_factor():
    """Of k equal weights, Delta_i - mean of the others = k / (k - 1) (Delta_i - Dbar)."""
    rng = np.random.default_rng(3)
    before = np.zeros(50, np.float32)
    values = rng.normal(size=(4, 50)).astype(np.float32)
    updates = [Update(index=None, values=each, weight=2.0) for each in values]
    after = aggregate(before, updates)
    paper = divergence(updates, before, after, num_params=50, eps=0.0)
    others = (values.sum(axis=0) - values) / 3
    scale = (after.mean_delta**2).sum() / (others**2).sum(axis=1)
    found = leave_one_out(updates, before, after, num_params=50, eps=0.0)
    np.testing.assert_allclose(found, (4 / 3) ** 2 * paper * scale, rtol=1e-5)


def test_permuting_alone_in_a_tier_is_the_has_fl_run(tmp_path):
    nodes = [
        {"partition-id": i, "num-partitions": 4, "capacity": capacity}
        for i, capacity in enumerate((0.3, 0.7, 0.8, 1.0))
    ]
    shared = {"num_clients": 4, "num_server_rounds": 5}
    own = {"strategy": "has-fl", **ADAPTIVE, "has_fl__gamma": 0.1}
    hasfl = run(tmp_path / "has-fl", nodes, **own, **shared)
    match = {"random_budget__mode": "permute", "random_budget__match": str(hasfl.directory)}
    control = run(tmp_path / "permuted", nodes, strategy="random-budget", **match, **shared)
    assert model_bytes(control) == model_bytes(hasfl)
    assert len({row["width"] for row in hasfl.clients if row["trained"]}) > 4


def test_has_fl_with_gamma_0_has_the_widths_of_uniform_from_the_first_adaptation(tmp_path):
    options = {"num_server_rounds": 6, "num_clients": 12, "fraction_train": 0.5}
    hasfl = run(
        tmp_path / "has-fl",
        strategy="has-fl",
        has_fl__gamma=0.0,
        has_fl__coverage=False,
        has_fl__p_min=0.4,
        has_fl__warmup=1,
        has_fl__adapt_every=2,
        **options,
    )
    uniform = run(tmp_path / "uniform", strategy="uniform", uniform__width=0.4, **options)

    def widths(reader):
        trained = (row for row in reader.clients if row["trained"] and row["round"] > 2)
        return {(row["round"], row["partition"]): row["width"] for row in trained}

    assert len(widths(uniform)) == 4 * 6
    assert widths(hasfl) == widths(uniform)
    before = {row["width"] for row in hasfl.clients if row["trained"] and row["round"] <= 2}
    assert max(before) > 0.4


FULL_BATCH = {  # one batch holds all examples: their order cannot matter
    "batch_size": 2000,
    "local_steps": 0,
    "local_epochs": 3,
    "num_server_rounds": 2,
    "max_train_examples": 0,
    "fraction_train": 1.0,
    "norm": "none",
    "clip_norm": 0.3,
    "lr_decay": 0.8,
    "weight_decay": 0.01,
}


def digits_for_training():
    """Scikit-learn's digits without every fifth of each class, normalised; float64 on the way."""
    images, labels = load_digits(return_X_y=True)
    position = np.array([np.sum(labels[:i] == label) for i, label in enumerate(labels)])
    kept = position % 5 != 4
    images = images[kept].reshape(-1, 1, 8, 8) / 16
    normalised = (images - images.mean()) / images.std()
    return torch.tensor(normalised, dtype=torch.float32), torch.tensor(labels[kept])


def start_of(config):
    task = Task(config)
    return initial_module(task.builder, task.spec, config.init, config.seed)


def sgd(module, images, labels, *, lr, prox=0.0):
    """Three full-batch steps of torch's own optimiser; the proximal term is part of the loss."""
    start = [parameter.detach().clone() for parameter in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)
    for _ in range(3):
        optimiser.zero_grad()
        loss = cross_entropy(module(images), labels)
        distance = sum(
            ((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True)
        )
        (loss + prox / 2 * distance).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
        optimiser.step()


def assert_close(reader, module):
    expected = module.state_dict()
    got = reader.model()
    assert set(got) == set(expected)
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name].numpy(), atol=1e-5, rtol=0)


def test_one_client_with_all_data_is_plain_sgd(tmp_path):
    options = {**FULL_BATCH, "num_clients": 1, "partition": "iid"}
    reader = run(tmp_path / "run", **options)
    module = start_of(tiny(tmp_path, **options))
    images, labels = digits_for_training()
    for server_round in (1, 2):
        sgd(module, images, labels, lr=0.05 * 0.8 ** (server_round - 1))
    assert_close(reader, module)


def test_fedprox_is_gradient_descent_on_the_loss_with_the_proximal_term(tmp_path):
    options = {**FULL_BATCH, "num_clients": 3, "strategy": "fedprox", "fedprox__mu": 2.0}
    reader = run(tmp_path / "run", **options)
    config = tiny(tmp_path, **options)
    images, labels = digits_for_training()
    partition = Task(config).partition
    module = start_of(config)
    for server_round in (1, 2):
        sent = {name: value.clone() for name, value in module.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in sent.items()}
        for client in range(3):
            rows = torch.tensor(partition.client(client))
            module.load_state_dict(sent)
            lr = 0.05 * 0.8 ** (server_round - 1)
            sgd(module, images[rows], labels[rows], lr=lr, prox=2.0)
            for name, value in module.state_dict().items():
                mean[name] += value * len(rows) / len(labels)
        module.load_state_dict(mean)
    assert_close(reader, module)


def test_the_proximal_term_changes_the_run(tmp_path):
    fedprox = run(tmp_path / "fedprox", strategy="fedprox", fedprox__mu=1.0)
    fedavg = run(tmp_path / "fedavg", strategy="fedavg")
    assert model_bytes(fedprox) != model_bytes(fedavg)

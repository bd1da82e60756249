"""What sub-model runs leave untrained, and how wide they are, read from their results."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from running import run, tiny

from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.models import initial_module
from fedhet_app.task import Task

ADAPTING = {
    "strategy": "has-fl",
    "num_server_rounds": 6,
    "has_fl__warmup": 1,
    "has_fl__adapt_every": 2,
    "has_fl__normalise_every": 6,
    "num_clients": 8,
}
WARNING = "of the parameters are trained by no client"


def initial_tensors(directory, **options):
    task = Task(tiny(directory, **options))
    module = initial_module(task.builder, task.spec, task.config.init, task.config.seed)
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def inner_block(name, shape, first, last):
    """The half-width slice of a tensor of the four convolutions and the classifier."""
    rows = shape[0] if name.startswith(last) else shape[0] // 2
    if len(shape) == 1:
        return (slice(rows),)
    columns = shape[1] if name.startswith(first) else shape[1] // 2
    return (slice(rows), slice(columns))


def test_uniform_keeps_every_bit_outside_the_half_slice(tmp_path, caplog):
    options = {
        "strategy": "uniform",
        "norm": "none",
        "capacity_tiers": "0.5,1.0",
        "capacity_probs": "0.5,0.5",
        "weight_decay": 0.01,
    }
    reader = run(tmp_path / "run", **options)
    before = initial_tensors(tmp_path, **options)
    outside = 0
    for name, after in reader.model().items():
        inner = inner_block(name, after.shape, "block1", "classifier")
        assert not np.array_equal(after[inner], before[name][inner])
        rest = np.ones(after.shape, dtype=bool)
        rest[inner] = False
        assert after[rest].tobytes() == before[name][rest].tobytes()
        outside += np.count_nonzero(rest)
    share = outside / sum(tensor.size for tensor in before.values())
    for row in reader.rounds:
        assert row["uncovered"] == pytest.approx(share)
        assert row["never-trained"] == pytest.approx(share)
        assert row["untrained-changed"] == 0
    assert reader.rounds[-1]["unmoved"] >= share
    assert caplog.text.count(WARNING) == 1
    assert "the largest width is 0.5" in caplog.text


def test_what_stale_parameters_do_is_measured_at_the_end(tmp_path):
    options = {"strategy": "uniform", "norm": "none", "evaluate_every": 1}
    reader = run(tmp_path / "run", **options)
    assert "stale" not in reader.rounds[-2]
    measured = reader.summary["stale"]
    assert measured["width"] == 0.5
    assert measured["as-is"] == reader.summary["final-accuracy"]
    assert measured["slice"] == reader.rounds[-1]["slice-accuracy"]["0.5"]
    tensors = reader.model()
    classifier = tensors["classifier.weight"].copy()
    classifier[:, classifier.shape[1] // 2 :] = 0
    task = Task(parse(reader.config))
    module = task.builder(1.0, task.spec).eval()
    state = {name: torch.tensor(array) for name, array in tensors.items()}
    module.load_state_dict(state | {"classifier.weight": torch.tensor(classifier)})
    images, labels = task.test_examples.batch(torch.arange(len(task.test_examples.labels)))
    with torch.no_grad():
        hits = module(images).argmax(dim=1) == labels
    assert measured["classifier-zeroed"] == pytest.approx(hits.double().mean().item())
    covered = run(tmp_path / "covered", strategy="heterofl", evaluate_every=1)
    assert "stale" not in covered.summary


def test_without_the_guarantee_has_fl_stops_training_the_outermost(tmp_path, caplog):
    reader = run(tmp_path / "run", **ADAPTING, has_fl__coverage=False, has_fl__gamma=0.1)
    uncovered = [row["uncovered"] for row in reader.rounds]
    # Rows tell what can be trained from then on; the first adaptation ends round 2.
    assert uncovered[0] == 0
    assert all(share > 0 for share in uncovered[1:])
    assert caplog.text.count(WARNING) == 1
    assert reader.summary["uncovered"] == uncovered[-1]


def test_with_the_guarantee_has_fl_covers_everything(tmp_path, caplog):
    reader = run(tmp_path / "run", **ADAPTING, has_fl__gamma=0.1)
    assert [row["uncovered"] for row in reader.rounds] == [0] * 6
    assert WARNING not in caplog.text


def test_never_trained_shrinks_as_clients_are_sampled(tmp_path):
    reader = run(tmp_path / "run", strategy="heterofl", num_server_rounds=6, num_clients=8)
    never = [row["never-trained"] for row in reader.rounds]
    assert all(after <= before for before, after in pairwise(never))
    full = [row["round"] for row in reader.clients if row["width"] == 1.0]
    assert all((share == 0) == (number >= min(full)) for number, share in enumerate(never, 1))


def test_has_fl_logs_raw_and_smoothed_divergence_when_it_adapts(tmp_path):
    reader = run(tmp_path / "run", **ADAPTING, has_fl__beta=0.75)
    smoothed = dict.fromkeys(range(8), 1.0)
    for number in range(1, 7):
        rows = [row for row in reader.clients if row["round"] == number]
        if number % 2:
            assert all("divergence-raw" not in row for row in rows)
            assert {row["partition"] for row in rows if row["trained"]} == {
                row["partition"] for row in rows
            }
            continue
        assert [row["partition"] for row in rows] == list(range(8))
        assert sum(row["trained"] for row in rows) == 4
        for row in rows:
            assert ("divergence-raw" in row) == row["trained"]
            if row["trained"]:
                assert row["divergence-raw"] > 0
                old = smoothed[row["partition"]]
                smoothed[row["partition"]] = 0.75 * old + 0.25 * row["divergence-raw"]
        if number == 6:
            mean = np.mean(list(smoothed.values()))
            smoothed = {client: value / mean for client, value in smoothed.items()}
        for row in rows:
            assert row["divergence"] == pytest.approx(smoothed[row["partition"]])
            wanted = 0.4 + 0.25 * row["divergence"] / np.mean(list(smoothed.values()))
            largest = max(other["capacity"] for other in rows)
            capped = min(row["capacity"], wanted)
            width = row["capacity"] if row["capacity"] == largest else capped
            assert row["allocated-width"] == pytest.approx(width)


def test_a_run_too_short_to_adapt_says_so_once(tmp_path, caplog):
    run(tmp_path / "run", strategy="has-fl")
    assert caplog.text.count("ends before has-fl adapts for the first time") == 1


RANDOM = {
    "strategy": "random-budget",
    "num_server_rounds": 6,
    "random_budget__warmup": 1,
    "random_budget__adapt_every": 2,
    "num_clients": 20,
    "fraction_train": 0.2,
    "partition": "iid",
}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("coverage", [True, False])
def test_random_budget_keeps_its_mean_width(seed, coverage, tmp_path):
    reader = run(
        tmp_path / "run",
        **RANDOM,
        seed=seed,
        random_budget__budget=0.45,
        random_budget__coverage=coverage,
    )
    means = [row["allocated-mean-width"] for row in reader.rounds]
    assert means[2:] == pytest.approx([0.45] * 4, abs=0.005)
    widths = {(row["round"], row["partition"]): row["width"] for row in reader.clients}
    assert len(set(widths.values())) > 4


def test_random_budget_spends_what_a_has_fl_run_spent(tmp_path):
    shared = {"num_clients": 20, "partition": "iid", "fraction_train": 0.4}
    hasfl = run(tmp_path / "has-fl", **{**ADAPTING, **shared})
    spent = np.mean([row["allocated-mean-width"] for row in hasfl.rounds if row["round"] > 2])
    matched = run(tmp_path / "match", **RANDOM, random_budget__match=str(hasfl.directory))
    means = [row["allocated-mean-width"] for row in matched.rounds]
    assert means[2:] == pytest.approx([spent] * 4, abs=0.005)
    assert abs(spent - 0.52) > 0.005


def test_random_budget_matches_only_a_has_fl_run_that_adapted(tmp_path):
    other = run(tmp_path / "other", strategy="heterofl")
    with pytest.raises(FedhetError, match="is a run of heterofl; name one of has-fl") as caught:
        run(tmp_path / "one", **RANDOM, random_budget__match=str(other.directory))
    assert caught.value.key == "random-budget.match"
    short = run(tmp_path / "short", strategy="has-fl")
    with pytest.raises(FedhetError, match="no round after its first adaptation, 15"):
        run(tmp_path / "two", **RANDOM, random_budget__match=str(short.directory))
    with pytest.raises(FedhetError, match=r"holds no config.json: not a run"):
        run(tmp_path / "three", **RANDOM, random_budget__match=str(tmp_path / "none"))
    assert not any((tmp_path / name).exists() for name in ("one", "two", "three"))


PERMUTED = {**RANDOM, "random_budget__mode": "permute"}
del PERMUTED["random_budget__warmup"], PERMUTED["random_budget__adapt_every"]


def allotted(reader):
    """Widths by round of those that trained, and what each tier was allotted by round."""
    trained, tiers = {}, {}
    for row in reader.clients:
        if row["trained"]:
            trained[row["round"], row["partition"]] = row["width"]
        if "allocated-width" in row:
            tier = tiers.setdefault(row["round"], {}).setdefault(row["capacity"], [])
            tier.append(row["allocated-width"])
    return trained, tiers


def test_permuting_deals_the_widths_of_a_has_fl_run_out_anew_within_each_capacity(tmp_path):
    shared = {"num_clients": 20, "partition": "iid", "fraction_train": 1.0, "local_steps": 1}
    hasfl = run(tmp_path / "has-fl", **{**ADAPTING, **shared})
    permuted = run(
        tmp_path / "permuted",
        **{**PERMUTED, **shared},
        random_budget__match=str(hasfl.directory),
    )
    adaptive, tiers = allotted(hasfl)
    control, _ = allotted(permuted)
    caps = {row["partition"]: row["capacity"] for row in hasfl.clients}
    assert control.keys() == adaptive.keys()
    moved = 0
    for number in range(1, 7):
        for cap in set(caps.values()):
            of_tier = [i for i in caps if caps[i] == cap]
            dealt = sorted(control[number, i] for i in of_tier)
            last = max((r for r in tiers if r < number), default=0)
            assert dealt == sorted(tiers[last][cap] if last else [cap] * len(of_tier))
        moved += sum(control[number, i] != adaptive[number, i] for i in caps)
    assert moved > 0
    means = [[row["allocated-mean-width"] for row in reader.rounds] for reader in (hasfl, permuted)]
    assert means[0] == pytest.approx(means[1])


def test_permuting_needs_a_run_of_the_same_clients(tmp_path):
    shared = {"num_clients": 8, "partition": "iid", "local_steps": 1}
    hasfl = run(tmp_path / "has-fl", **{**ADAPTING, **shared})
    options = {**PERMUTED, "random_budget__match": str(hasfl.directory)}
    with pytest.raises(FedhetError, match="its clients had other capacities"):
        run(tmp_path / "seed", **{**options, "num_clients": 8, "seed": 5})
    nodes = [{"partition-id": i, "num-partitions": 9, "capacity": 1.0} for i in range(9)]
    same = [row["capacity"] for row in sorted(hasfl.clients, key=lambda r: r["partition"])]
    assert len(set(same)) > 1
    with pytest.raises(FedhetError, match="its clients had other capacities"):
        run(tmp_path / "more", nodes=nodes, **{**options, "num_clients": 9})
    with pytest.raises(FedhetError, match=r"needs random-budget.match"):
        tiny(tmp_path, **PERMUTED)
    with pytest.raises(FedhetError, match=r"has no effect with random-budget.mode = permute"):
        tiny(tmp_path, **options, random_budget__coverage=False)
    short = run(tmp_path / "short", strategy="has-fl", num_clients=8)
    with pytest.raises(FedhetError, match="no round after its first adaptation, 15"):
        run(tmp_path / "never", **{**options, "random_budget__match": str(short.directory)})


@pytest.mark.parametrize("estimator", ["leave-one-out", "common-core", "oracle-tv"])
def test_every_estimator_leads_to_other_widths_than_the_papers(estimator, tmp_path):
    paper = run(tmp_path / "paper", **ADAPTING)
    other = run(tmp_path / "other", **ADAPTING, has_fl__estimator=estimator)
    assert allotted(paper)[1] != allotted(other)[1]
    raw = [row["divergence-raw"] for row in other.clients if "divergence-raw" in row]
    assert len(raw) == 3 * 4
    assert np.isfinite(raw).all()


def test_the_oracle_is_the_true_distance_of_the_labels(tmp_path):
    reader = run(tmp_path / "run", **ADAPTING, has_fl__estimator="oracle-tv")
    told = json.loads((reader.directory / "partition.json").read_text())
    counts = np.array(told["class-histograms"])
    shares = counts / counts.sum(axis=1, keepdims=True)
    truth = np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    last = [row for row in reader.clients if row["round"] == 6]
    assert [row["divergence"] for row in last] == pytest.approx(truth)
    assert told["capacities"] == [row["capacity"] for row in last]


def test_fjord_draws_tiers_up_to_the_capacity(tmp_path):
    options = {"strategy": "fjord", "num_server_rounds": 10, "fraction_train": 1.0}
    reader = run(tmp_path / "run", **options, num_clients=10, local_steps=1)
    widths = {}
    for row in reader.clients:
        widths.setdefault(row["capacity"], set()).add(row["width"])
    tiers = (0.25, 0.5, 0.75, 1.0)
    assert {cap: {t for t in tiers if t <= cap} for cap in widths} == widths


def test_fjord_reaches_the_largest_tier_below_each_capacity(tmp_path):
    nodes = [
        {"partition-id": i, "num-partitions": 3, "capacity": capacity}
        for i, capacity in enumerate((0.9, 0.6, 0.1))
    ]
    options = {"strategy": "fjord", "num_clients": 3, "num_server_rounds": 2, "norm": "none"}
    reader = run(tmp_path / "run", nodes=nodes, **options)
    widest = 0.75
    share = Task(parse(reader.config)).slicer.realised(widest)
    assert [row["uncovered"] for row in reader.rounds] == pytest.approx([1 - share] * 2)

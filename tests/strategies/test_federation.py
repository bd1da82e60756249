import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Error, RecordDict
from running import MIXTURE, MoodyGrid, outcome, run, tiny

from fedhet_app import client_app
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader
from fedhet_app.server_app import app as server_app
from fedhet_app.wire import Profile
from strategies import federation


def nodes_of(*partitions, total=None, **more):
    total = len(partitions) if total is None else total
    return [{"partition-id": i, "num-partitions": total, **more} for i in partitions]


def profile(partition, capacity):
    return Profile(partition=partition, num_partitions=2, examples=9, capacity=capacity, code="")


BAD_NODES = {
    "one partition twice": (nodes_of(0, 1, 1), "partition-id", "two nodes have this partition"),
    "a partition too many": (
        nodes_of(0, 1, 3),
        "partition-id",
        "partition-id = 3: must be from 0 to 2, the number of partitions less 1",
    ),
    "a negative partition": (nodes_of(0, -1), "partition-id", "partition-id = -1: must be from 0"),
    "no partition": (
        [{"num-partitions": 1}],
        "partition-id",
        "partition-id = 'missing': set it in the node config",
    ),
    "a partition in quotes": (
        nodes_of("0"),
        "partition-id",
        "partition-id = '0': set it in the node",
    ),
    "different totals": (
        [*nodes_of(0, total=2), *nodes_of(1, 2, total=3)],
        "num-partitions",
        r"\[2, 3\]: nodes were told different numbers \(that of partition 0 2, that of .* 1 3\)",
    ),
    "a negative total": (nodes_of(0, total=-1), "num-partitions", "= -1: set it to"),
} | {
    f"capacity {capacity!r}": (
        [*nodes_of(0, total=2), *nodes_of(1, total=2, capacity=capacity)],
        "capacity",
        "capacity = .*: the node config's capacity is a width, a number above 0 and at most 1",
    )
    for capacity in (0, 0.0, -0.5, 1.01, 2, "0.5", True, float("nan"))
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_nodes_that_do_not_fit_are_one_clear_error(case, tmp_path):
    nodes, key, remedy = BAD_NODES[case]
    with pytest.raises(FedhetError, match=remedy) as caught:
        run(tmp_path / "run", nodes=nodes, num_clients=len(nodes))
    assert caught.value.key == key
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("capacity", [-0.5, 1.5, float("nan")])
def test_a_capacity_outside_its_range_is_refused_from_any_node(capacity, tmp_path):
    profiles = (profile(0, 0.0), profile(1, capacity))
    with pytest.raises(FedhetError, match="must be above 0 and at most 1") as caught:
        federation.capacities(tiny(tmp_path), profiles)
    assert caught.value.key == "capacity"


def test_a_nodes_own_capacity_wins_over_the_drawn_one(tmp_path):
    nodes = nodes_of(*range(6))
    drawn = run(tmp_path / "drawn", nodes=nodes, strategy="heterofl", fraction_train=1.0)
    nodes[2]["capacity"], nodes[4]["capacity"] = 0.3, 1
    own = run(tmp_path / "own", nodes=nodes, strategy="heterofl", fraction_train=1.0)

    def capacities(reader):
        return {row["partition"]: (row["capacity"], row["width"]) for row in reader.clients}

    assert capacities(own) == {**capacities(drawn), 2: (0.3, 0.3), 4: (1.0, 1.0)}
    assert capacities(own) != capacities(drawn)


@pytest.mark.parametrize(
    "options", [{}, {**MIXTURE, "strategy": "fedem"}, {"strategy": "heterofl"}], ids=str
)
def test_a_capacity_that_a_method_does_not_heed_is_said(options, tmp_path, caplog):
    nodes = nodes_of(*range(4))
    nodes[2]["capacity"], nodes[3]["capacity"] = 0.5, 1
    run(tmp_path / "run", nodes=nodes, **{**options, "num_clients": 4, "num_server_rounds": 1})
    strategy = options.get("strategy", "fedavg")
    said = f"1 of 4 nodes name a capacity (the least is 0.5) below what {strategy} trains on them"
    assert (said in caplog.text) == (strategy != "heterofl")


def test_another_number_of_nodes_divides_all_data_over_those(tmp_path, caplog):
    reader = run(tmp_path / "run", nodes=nodes_of(*range(4)), num_clients=6, fraction_train=1.0)
    assert "num-clients is 6, but 4 nodes are here" in caplog.text
    assert reader.config["num-clients"] == 4
    sizes = {row["partition"]: row["examples"] for row in reader.clients}
    assert sorted(sizes) == [0, 1, 2, 3]
    assert sum(sizes.values()) == 300


def test_nodes_that_know_no_total_take_the_configs(tmp_path):
    nodes = [{"partition-id": i} for i in range(6)]
    bare = run(tmp_path / "bare", nodes=nodes)
    assert outcome(bare) == outcome(run(tmp_path / "told", nodes=nodes_of(*range(6))))


@pytest.mark.parametrize(
    ("nodes", "came"),
    [([], "0 of 6"), (nodes_of(0, 2, total=3), "2 of 3")],
)
def test_too_few_nodes_end_the_wait_with_one_error(nodes, came, tmp_path):
    with pytest.raises(FedhetError, match=f"0.05: {came} nodes came") as caught:
        run(tmp_path / "run", nodes=nodes, node_timeout=0.05)
    assert caught.value.key == "node-timeout"
    assert not (tmp_path / "run").exists()


def test_a_node_whose_trouble_passes_is_asked_again(tmp_path, caplog):
    config = tiny(tmp_path / "run")
    grid = MoodyGrid(config, [Error(code, f"trouble {code}") for code in (3, 4, 5, 8)])
    server_app(grid, Context(1, 1, {}, RecordDict(), config.flat()))
    assert outcome(RunReader(tmp_path / "run")) == outcome(run(tmp_path / "quiet"))
    for code in (3, 4, 5, 8):
        assert f"a node has not said who it is: trouble {code}" in caplog.text


def test_a_node_that_restarts_while_others_are_waited_for_is_no_second_one(tmp_path):
    """Without a key it has another id after its restart."""

    class Restarting(MoodyGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            if self.looks == 3:
                new, old = 3, next(i for i, place in self.partitions.items() if place == 0)
                self._contexts[new] = replace(self._contexts.pop(old), node_id=new)
                self.partitions[new] = self.partitions.pop(old)
            return super().get_node_ids()

    config = tiny(tmp_path, num_clients=3, node_timeout=5.0)
    grid = Restarting(config, 3 * [Error(5, "away")])
    gathered = federation.gather(grid, config)
    assert gathered.nodes[0] == 3
    assert sorted(gathered.nodes) == [0, 1, 2]


def test_a_node_that_cannot_take_part_ends_the_start(tmp_path):
    config = tiny(tmp_path / "run")
    grid = MoodyGrid(config, [Error(2, "no such file")])
    with pytest.raises(FedhetError, match="a node cannot take part: no such file"):
        server_app(grid, Context(1, 1, {}, RecordDict(), config.flat()))
    assert not (tmp_path / "run").exists()


def test_another_copy_of_the_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(federation, "code_fingerprint", lambda: "another")
    with pytest.raises(FedhetError, match="another copy of fedhet than the server") as caught:
        run(tmp_path / "run")
    assert caught.value.key == "code"


def test_the_order_of_nodes_does_not_matter(tmp_path):
    options = {"strategy": "has-fl", "has_fl__warmup": 0, "has_fl__adapt_every": 1}
    ordered = run(tmp_path / "ordered", nodes=nodes_of(*range(6)), **options)
    shuffled = run(tmp_path / "shuffled", nodes=nodes_of(4, 0, 5, 2, 1, 3), **options)
    assert outcome(ordered) == outcome(shuffled)


def test_strategies_with_one_seed_see_the_same_world(tmp_path):
    """Cohorts, capacities, partition and initial weights: what pairs runs over seeds."""
    first = {"fraction_train": 0.5, "num_server_rounds": 4}
    others = ("fedavg", "fedprox", "heterofl", "fjord", "uniform", "random-budget", "has-fl")
    worlds = []
    for strategy in others:
        reader = run(tmp_path / strategy, strategy=strategy, **first)
        trained = [row for row in reader.clients if row["trained"]]
        seen = [(row["round"], row["partition"], row["capacity"]) for row in trained]
        worlds.append((seen, json.loads((reader.directory / "partition.json").read_text())))
    assert all(world == worlds[0] for world in worlds)
    assert len({partition for _, partition, _ in worlds[0][0]}) > 3


def test_another_seed_is_another_world(tmp_path):
    def world(seed):
        reader = run(tmp_path / str(seed), strategy="heterofl", seed=seed, fraction_train=1.0)
        return {row["partition"]: (row["capacity"], row["examples"]) for row in reader.clients}

    assert world(1) != world(2)


def test_cohorts_are_distinct_clients_of_the_configured_size(tmp_path):
    reader = run(tmp_path / "run", num_server_rounds=8, fraction_train=0.5, local_steps=1)
    cohorts = [
        [row["partition"] for row in reader.clients if row["round"] == t] for t in range(1, 9)
    ]
    assert all(len(set(cohort)) == len(cohort) == 3 for cohort in cohorts)
    assert len(set(map(tuple, cohorts))) > 1
    counts = np.bincount(np.concatenate(cohorts), minlength=6)
    assert counts.min() > 0


def test_a_node_that_claims_other_than_its_share_is_refused(tmp_path, monkeypatch):
    honest = client_app._profile
    monkeypatch.setattr(client_app, "_profile", lambda c: replace(honest(c), examples=10**9))
    with pytest.raises(FedhetError, match="the node holds other data") as caught:
        run(tmp_path / "run")
    assert caught.value.key == "examples"
    assert not (tmp_path / "run").exists()

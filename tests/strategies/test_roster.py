"""Nodes that go, come and come back in the middle of a real run."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict
from running import SpoiltGrid, outcome, tiny

from fedhet_app import client_app, wire
from fedhet_app.results import RunReader, round_observer
from fedhet_app.server_app import app as server_app

HURT = 1
OPTIONS = {
    "strategy": "scaffold",
    "num_clients": 3,
    "num_server_rounds": 4,
    "fraction_train": 1.0,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "node_timeout": 1.0,
}


class Devices(SpoiltGrid):
    """Nodes that may leave and join; their states lie in folders by partition."""

    mute = away = False

    def __init__(self, config, folder):
        self.folder, self.config, self.looks, self.on_look = folder, config, 0, {}
        self.starts = {}
        super().__init__(config, lambda partition, message, answer: answer())
        for node_id, partition in self.partitions.items():
            self._contexts[node_id] = self.context(node_id, partition)

    def context(self, node_id, partition, **more):
        node = {"partition-id": partition, "num-partitions": 3, **more}
        node["state-dir"] = str(self.folder / str(partition))
        return Context(1, node_id, node, RecordDict(), self.config.flat())

    def get_node_ids(self):
        self.looks += 1
        self.on_look.pop(self.looks, lambda: None)()
        return super().get_node_ids()

    def push_messages(self, messages):
        messages = list(messages)
        pushed = super().push_messages(messages)
        if self.mute:
            self._replies.clear()
        if self.away:  # once, as while Flower lists a node that has just been killed
            self.away = False
            self._replies = {m.metadata.message_id: wire.lost(m) for m in messages}
        return pushed

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=i, last_activated_at=str(n), heartbeat_interval=30.0)
            for i, n in self.starts.items()
            if i in self._contexts
        ]

    def start_again(self, partition=HURT, **more):
        """The last node with the partition restarts, with its key."""
        (*_, last) = [i for i, p in self.partitions.items() if p == partition]
        self._contexts[last] = self.context(last, partition, **more)
        self.starts[last] = self.starts.get(last, 0) + 1

    def leave(self, partition=HURT):
        """The last node with the partition goes."""
        (*_, last) = [i for i, p in self.partitions.items() if p == partition]
        del self._contexts[last], self.partitions[last]

    def join(self, partition=HURT, **more):
        node_id = max(self._contexts, default=1) + 1
        self.partitions[node_id] = partition
        self._contexts[node_id] = self.context(node_id, partition, **more)

    def send_and_receive(self, messages, *, timeout=None):
        lost = [m for m in messages if m.metadata.dst_node_id not in self._contexts]
        here = [m for m in messages if m not in lost]
        return super().send_and_receive(here, timeout=timeout)


def run_with(tmp_path, after, **options):
    """Run; ``after`` holds what happens when the row of a round is written, by round."""
    config = tiny(tmp_path / "run", **{**OPTIONS, **options})
    grid = Devices(config, tmp_path / "states")
    token = round_observer.set(lambda row: after.get(row["round"], lambda grid: None)(grid))
    try:
        server_app(grid, Context(1, 1, {}, RecordDict(), config.flat()))
    finally:
        round_observer.reset(token)
    return RunReader(tmp_path / "run")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return run_with(tmp_path_factory.mktemp("unbroken"), {})


def replies(reader):
    return [row["replies"] for row in reader.rounds]


def replaced(**more):
    def change(grid):
        grid.leave()
        grid.join(**more)

    return change


def test_a_node_that_comes_back_with_another_id_is_the_same_client(tmp_path, unbroken, caplog):
    reader = run_with(tmp_path, {2: replaced()})
    assert outcome(reader) == outcome(unbroken)
    assert f"client {HURT} is back, as another node" in caplog.text


def test_a_node_that_is_gone_is_said_to_be(tmp_path):
    reader = run_with(tmp_path, {2: Devices.leave, 3: Devices.join})
    assert replies(reader) == [3, 3, 2, 3]
    away = {"partition": HURT, "reason": "its node is not connected"}
    assert [row["rejected"] for row in reader.rounds] == [[], [], [away], []]


def test_a_second_node_waits_until_the_first_has_gone(tmp_path, unbroken, caplog):
    def first_goes(grid):
        first = next(i for i, partition in grid.partitions.items() if partition == HURT)
        del grid._contexts[first], grid.partitions[first]

    reader = run_with(tmp_path, {1: Devices.join, 3: first_goes})
    assert outcome(reader) == outcome(unbroken)
    second = f"a second node has partition {HURT}; it is not used while the first is listed"
    assert caplog.text.count(second) == 1
    assert caplog.text.count("is back, as another node") == 1


def test_a_second_node_that_goes_again_is_forgotten(tmp_path, unbroken):
    reader = run_with(tmp_path, {1: Devices.join, 2: Devices.leave})
    assert outcome(reader) == outcome(unbroken)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"partition-id": 7}, "partition-id = 7: must be from 0 to 2"),
        (
            {"num-partitions": 2},
            "num-partitions = 2: the node of partition 1 had 3 at the run's start",
        ),
        ({"capacity": 0.25}, "capacity = 0.25: partition 1 has trained up to 1 from the run's"),
        ({"capacity": 7}, "capacity = 7: the node config's capacity is a width"),
    ],
)
def test_a_node_that_does_not_fit_does_not_take_the_place(more, said, tmp_path, caplog):
    options = {"capacity_tiers": "1.0", "capacity_probs": "1.0"}
    reader = run_with(tmp_path, {2: replaced(**more)}, **options)
    assert replies(reader) == [3, 3, 2, 2]
    assert caplog.text.count(f"a node that came later cannot take part: {said}") == 1


def test_a_node_that_is_mended_and_started_again_is_asked_again(tmp_path, caplog):
    """With its key it is the same node to Flower."""

    def mended(grid):
        grid.start_again()

    options = {"capacity_tiers": "1.0", "capacity_probs": "1.0"}
    after = {1: replaced(capacity=0.25), 3: mended}
    reader = run_with(tmp_path, after, **options)
    assert replies(reader) == [3, 2, 2, 3]
    assert caplog.text.count("a node that came later cannot take part: capacity = 0.25") == 1


def test_a_node_that_was_replaced_may_come_back(tmp_path, unbroken):
    """Its place was taken, and that node has left."""

    def first_goes(grid):
        grid.first = next(i for i, partition in grid.partitions.items() if partition == HURT)
        grid.kept = grid._contexts.pop(grid.first)
        grid.partitions.pop(grid.first)
        grid.join()

    def first_is_back(grid):
        grid.leave()
        grid._contexts[grid.first], grid.partitions[grid.first] = grid.kept, HURT

    reader = run_with(tmp_path, {1: first_goes, 2: first_is_back})
    assert outcome(reader) == outcome(unbroken)


def test_a_spare_node_that_was_away_takes_the_place_all_the_same(tmp_path, unbroken):
    def spare_goes(grid):
        *_, grid.spare = grid.partitions
        grid.kept = grid._contexts.pop(grid.spare)
        del grid.partitions[grid.spare]

    def spare_is_back(grid):
        grid.leave()
        grid._contexts[grid.spare], grid.partitions[grid.spare] = grid.kept, HURT

    reader = run_with(tmp_path, {1: Devices.join, 2: spare_goes, 3: spare_is_back})
    assert outcome(reader) == outcome(unbroken)


def test_a_node_with_other_data_does_not_take_the_place(tmp_path, caplog, monkeypatch):
    honest = client_app._profile

    def dishonest(grid):
        replaced()(grid)
        monkeypatch.setattr(client_app, "_profile", lambda c: replace(honest(c), examples=9))

    reader = run_with(tmp_path, {2: dishonest})
    assert replies(reader) == [3, 3, 2, 2]
    assert "examples = 9: the node of partition 1 had" in caplog.text


def test_a_node_that_says_nothing_is_waited_for_once(tmp_path, caplog):
    """Its SuperNode is there, and nothing runs its apps."""

    def replaced_by_a_mute_one(grid):
        replaced()(grid)
        grid.mute = True

    reader = run_with(tmp_path, {1: replaced_by_a_mute_one}, node_timeout=0.5)
    assert replies(reader) == [3, 2, 2, 2]
    assert len(re.findall(r"\(\d+\) has not said in 0.5 s who it is", caplog.text)) == 1
    assert sum(row["seconds"] > 0.5 for row in reader.rounds[1:]) <= 1


def test_a_node_that_is_away_when_it_is_asked_is_asked_again(tmp_path, caplog):
    def replaced_by_one_that_is_away(grid):
        replaced()(grid)
        grid.away = True

    reader = run_with(tmp_path, {2: replaced_by_one_that_is_away})
    assert replies(reader) == [3, 3, 2, 3]
    assert "cannot take part" not in caplog.text
    assert f"client {HURT} is back, as another node" in caplog.text


def all_leave(grid):
    for partition in range(3):
        grid.leave(partition)


def test_a_round_waits_for_the_clients_that_it_needs(tmp_path, unbroken, caplog):
    def leave_for_a_while(grid):
        all_leave(grid)
        grid.on_look[grid.looks + 3] = lambda: [grid.join(i) for i in range(3)]

    reader = run_with(tmp_path, {2: leave_for_a_while})
    assert outcome(reader) == outcome(unbroken)
    assert "round 3: 0 of 3 clients are here; waiting up to 1 s for more" in caplog.text


def test_the_wait_for_clients_has_an_end(tmp_path):
    with pytest.raises(Exception, match=r"max-empty-rounds = 1: .* its node is not connected"):
        run_with(tmp_path, {2: all_leave}, max_empty_rounds=1)
    assert replies(RunReader(tmp_path / "run")) == [3, 3, 0]

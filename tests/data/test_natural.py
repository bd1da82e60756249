import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet_app.data import cached_partition, make_partition
from fedhet_app.errors import FedhetError

OPTIONS = {"kind": "natural", "alpha": 0.3, "balance_mask": False, "seed": 0}


def make(groups, num_clients, **options):
    labels = np.zeros(len(groups), dtype=np.int64)
    return make_partition(labels, num_clients=num_clients, groups=groups, **{**OPTIONS, **options})


def owners(partition, groups):
    """The natural clients of each client."""
    return [set(groups[partition.client(i)].tolist()) for i in range(partition.num_clients)]


@settings(max_examples=25)
@given(
    groups=st.lists(st.integers(0, 9), min_size=1, max_size=60).map(np.array),
    clients=st.integers(1, 10),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_natural_client_is_never_divided(groups, clients, seed):
    found = np.unique(groups)
    clients = min(clients, len(found))
    partition = make(groups, clients, seed=seed)
    assert sorted(partition.order.tolist()) == list(range(len(groups)))
    owned = owners(partition, groups)
    assert sorted(group for own in owned for group in own) == found.tolist()
    assert {len(own) for own in owned} <= {len(found) // clients, -(-len(found) // clients)}
    assert make(groups, clients, seed=seed).fingerprint == partition.fingerprint


def test_as_many_clients_as_natural_ones_keep_their_order():
    groups = np.array([2, 0, 5, 2, 0, 2])
    for seed in range(3):
        assert owners(make(groups, 3, seed=seed), groups) == [{0}, {2}, {5}]


def test_groups_follow_the_seed():
    groups = np.arange(100).repeat(3)
    first, second = (owners(make(groups, 7, seed=seed), groups) for seed in (1, 2))
    assert first != second
    together = [abs(a - b) for own in first for a in own for b in own if a < b]
    assert np.mean(together) > 20  # of neighbours it would be about 5, at random a third of 100


def test_examples_of_a_natural_client_come_in_random_order():
    order = make(np.zeros(200, dtype=np.int64), 1).client(0)
    assert (np.diff(order) > 0).mean() == pytest.approx(0.5, abs=0.15)


def test_nothing_is_drawn_on_the_terminal(capfd):
    make(np.array([0, 1, 1]), 2)
    assert capfd.readouterr() == ("", "")


def test_more_clients_than_natural_ones():
    with pytest.raises(FedhetError, match=r"num-clients = 3: the training set has 2 natural"):
        make(np.array([0, 0, 4, 4]), 3)


def test_a_data_set_without_natural_clients():
    match = r"partition = 'natural': .*no natural clients, femnist, fed-isic2019, shakespeare have;"
    with pytest.raises(FedhetError, match=match):
        make_partition(np.zeros(4, dtype=np.int64), num_clients=2, **OPTIONS)


def test_it_is_cached_as_the_others_are(monkeypatch):
    groups = np.arange(6) % 3
    labels = np.zeros(6, dtype=np.int64)
    first = cached_partition("data", labels, num_clients=3, groups=groups, **OPTIONS)
    assert first.fingerprint == make(groups, 3).fingerprint
    monkeypatch.setattr("fedhet_app.data.partition.make_partition", None)
    again = cached_partition("data", labels, num_clients=3, groups=groups, **OPTIONS)
    assert again.fingerprint == first.fingerprint

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedhet_app.data import (
    Partition,
    cached_partition,
    label_histograms,
    make_partition,
    total_variation,
)
from fedhet_app.errors import FedhetError

LABELS = np.repeat(np.arange(10), 200)


def make(labels=LABELS, **options):
    defaults = {"kind": "dirichlet", "num_clients": 5, "alpha": 0.5, "balance_mask": False}
    return make_partition(labels, **{**defaults, "seed": 0, **options})


def skew(partition, labels=LABELS):
    return total_variation(label_histograms(partition, labels, 10)).mean()


@settings(max_examples=25)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=120).map(np.array),
    clients=st.integers(1, 12),
    kind=st.sampled_from(["iid", "dirichlet"]),
    alpha=st.sampled_from([0.001, 0.3, 1.0, 50.0, float("inf")]),
    mask=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_example_has_exactly_one_client(labels, clients, kind, alpha, mask, seed):
    clients = min(clients, len(labels))
    options = {"num_clients": clients, "kind": kind, "alpha": alpha, "balance_mask": mask}
    try:
        partition = make(labels, seed=seed, **options)
    except FedhetError as error:
        assert error.key == "alpha"
        assert kind == "dirichlet"
        assert alpha < 50 or len(labels) < 20 * clients
        return
    assert partition.num_clients == clients
    owned = [partition.client(client) for client in range(clients)]
    assert sorted(np.concatenate(owned).tolist()) == list(range(len(labels)))
    assert [len(part) for part in owned] == partition.sizes.tolist()
    assert partition.sizes.min() >= 1
    again = make(labels, seed=seed, **options)
    assert again.order.tobytes() == partition.order.tobytes()
    assert again.offsets.tobytes() == partition.offsets.tobytes()
    assert again.fingerprint == partition.fingerprint
    assert partition.order.dtype == partition.offsets.dtype == np.int64


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_another_seed_is_another_partition(kind):
    assert make(kind=kind, seed=1).fingerprint != make(kind=kind, seed=2).fingerprint


def test_the_fingerprint_sees_who_owns_what():
    order, offsets = np.arange(4), np.array([0, 2, 4])
    same = Partition(order=order.copy(), offsets=offsets.copy())
    base = Partition(order=order, offsets=offsets)
    assert base.fingerprint == same.fingerprint
    moved = Partition(order=order, offsets=np.array([0, 1, 4]))
    swapped = Partition(order=order[::-1], offsets=offsets)
    assert len({base.fingerprint, moved.fingerprint, swapped.fingerprint}) == 3


def test_iid_clients_are_even_and_alike_though_the_set_is_sorted():
    partition = make(kind="iid", num_clients=7)
    assert sorted(partition.sizes.tolist()) == [285, 285, 286, 286, 286, 286, 286]
    assert skew(partition) < 0.15


def test_sixty_examples_for_each_of_a_thousand_clients():
    labels = np.repeat(np.arange(10), 6000)
    even = make(labels, kind="iid", num_clients=1000)
    assert set(even.sizes.tolist()) == {60}
    uneven = make(labels, num_clients=1000, alpha=0.3)
    assert uneven.sizes.min() >= 3


def test_an_infinite_alpha_is_iid():
    assert make(alpha=float("inf")).fingerprint == make(kind="iid").fingerprint


def test_a_smaller_alpha_is_less_alike():
    skews = [skew(make(alpha=alpha)) for alpha in (0.1, 1.0, 1000.0)]
    assert skews[0] > skews[1] > skews[2]
    assert skews[2] < 0.05


def test_shares_of_a_class_follow_the_dirichlet_distribution():
    labels = np.zeros(2000, dtype=np.int64)
    shares = [make(labels, alpha=2.0, seed=seed).sizes[1] / 2000 for seed in range(100)]
    assert stats.kstest(shares, stats.beta(2.0, 8.0).cdf).pvalue > 0.01


def test_examples_of_a_class_are_dealt_at_random():
    owned = make(np.zeros(2000, dtype=np.int64), alpha=2.0).client(0)
    assert stats.kstest(owned / 2000, "uniform").pvalue > 0.01


def test_no_client_is_smaller_than_a_twentieth_of_an_even_share():
    assert min(make(alpha=0.1, seed=seed).sizes.min() for seed in range(5)) >= 10
    assert min(make(num_clients=40, seed=seed).sizes.min() for seed in range(5)) >= 2


def test_the_mask_closes_a_client_that_has_its_even_share():
    closed = 0
    for seed in range(5):
        partition = make(alpha=0.3, balance_mask=True, seed=seed)
        before = label_histograms(partition, LABELS, 10).cumsum(axis=1)
        full, added = before[:, :-1] > 400, np.diff(before, axis=1)
        closed += full.sum()
        assert not added[:-1][full[:-1]].any()
        # The last client keeps what rounding leaves.
        assert (added[-1][full[-1]] <= 1).all()
    assert closed > 10


def test_labels_are_left_alone():
    labels = LABELS.copy()
    labels.setflags(write=False)
    make(labels)
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize("clients", [0, -1, 2001])
def test_clients_that_the_examples_do_not_fill(clients):
    with pytest.raises(FedhetError, match=rf"num-clients = {clients}: .*2000 examples; use 1 to 2"):
        make(num_clients=clients)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_an_alpha_that_is_not_positive(alpha):
    with pytest.raises(FedhetError, match=r"alpha = .*must be positive"):
        make(alpha=alpha)


def test_an_alpha_that_starves_clients():
    match = r"alpha = 0.01: no draw left each of 50 clients 1 of 50 examples; use a larger alpha"
    with pytest.raises(FedhetError, match=match):
        make(LABELS[::40], num_clients=50, alpha=0.01)


def test_an_unknown_kind():
    with pytest.raises(FedhetError, match=r"partition = 'shards': .*iid, dirichlet, natural"):
        make(kind="shards")


@pytest.mark.parametrize("client", [-1, 5])
def test_a_client_that_is_not_there(client):
    with pytest.raises(FedhetError, match=rf"partition-id = {client}: there are 5 clients"):
        make().client(client)


def test_a_cached_partition_is_the_computed_one(monkeypatch):
    options = {"kind": "dirichlet", "num_clients": 5, "alpha": 0.5, "balance_mask": False}
    first = cached_partition("data", LABELS, seed=0, **options)
    assert first.fingerprint == make().fingerprint
    monkeypatch.setattr("fedhet_app.data.partition.make_partition", None)
    assert cached_partition("data", LABELS, seed=0, **options).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "iid"},
        {"num_clients": 4},
        {"alpha": 0.6},
        {"balance_mask": True},
        {"seed": 1},
    ],
)
def test_the_cache_tells_options_apart(change):
    options = {"kind": "dirichlet", "num_clients": 5, "alpha": 0.5, "balance_mask": False}
    options["seed"] = 0
    cached_partition("data", LABELS, **options)
    other = cached_partition("data", LABELS, **{**options, **change})
    assert other.fingerprint == make(**change).fingerprint


def test_the_cache_tells_data_sets_apart():
    options = {"kind": "iid", "num_clients": 5, "alpha": 0.5, "balance_mask": False, "seed": 0}
    cached_partition("data", LABELS, **options)
    assert len(cached_partition("less data", LABELS[:50], **options).order) == 50


def test_histograms_count_each_clients_labels():
    labels = np.array([0, 2, 2, 1, 0, 2])
    partition = Partition(order=np.array([5, 1, 0, 3, 2, 4]), offsets=np.array([0, 2, 3, 6]))
    expected = [[0, 0, 2, 0], [1, 0, 0, 0], [1, 1, 1, 0]]
    histograms = label_histograms(partition, labels, 4)
    assert histograms.tolist() == expected
    assert histograms.dtype == np.int64


def test_histograms_of_a_true_partition():
    partition = make()
    histograms = label_histograms(partition, LABELS, 10)
    for client in range(5):
        counts = Counter(LABELS[partition.client(client)].tolist())
        assert histograms[client].tolist() == [counts[label] for label in range(10)]

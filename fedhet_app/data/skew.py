"""How unlike the clients' labels are: the content of ``partition.json``."""

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.clients import Partition


def label_histograms(
    partition: Partition, labels: NDArray[np.int64], num_classes: int
) -> NDArray[np.int64]:
    """Count the examples of each class at each client.

    Args:
        partition: Partition into m clients.
        labels: (n,) classes 0..K-1 of the training set.
        num_classes: K.

    Returns:
        Counts, (m, K).
    """
    clients = np.repeat(np.arange(partition.num_clients), partition.sizes)
    cells = clients * num_classes + labels[partition.order]
    counts = np.bincount(cells, minlength=partition.num_clients * num_classes)
    return counts.reshape(partition.num_clients, num_classes).astype(np.int64)


def total_variation(histograms: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the distance of each client's label distribution to the pooled one (spec 1.12).

    TV_i = 0.5 * sum_k |q_ik - q_k|, with q_ik the share of class k at client i and q_k its share
    over all clients.

    Args:
        histograms: Counts (m, K); no client is empty.

    Returns:
        Distances in [0, 1), (m,).
    """
    own = histograms / histograms.sum(axis=1, keepdims=True)
    pooled = histograms.sum(axis=0) / histograms.sum()
    distances: NDArray[np.float64] = 0.5 * np.abs(own - pooled).sum(axis=1)
    return distances


def describe(partition: Partition, histograms: NDArray[np.int64]) -> dict[str, object]:
    """Return what ``partition.json`` says of a partition, in types that JSON knows.

    Args:
        partition: Partition into m clients.
        histograms: Its class counts, (m, K).
    """
    return {
        "fingerprint": partition.fingerprint,
        "indices": [partition.client(i).tolist() for i in range(partition.num_clients)],
        "sizes": partition.sizes.tolist(),
        "class-histograms": histograms.tolist(),
        "total-variation": total_variation(histograms).tolist(),
    }


def describe_tests(
    owners: NDArray[np.int64] | None, labels: NDArray[np.int64], shape: tuple[int, ...]
) -> dict[str, object]:
    """Return what ``partition.json`` says of the clients' test examples, if they have any.

    Args:
        owners: The client of each test example, (k,); ``None`` where it is nobody's.
        labels: Its class, (k,).
        shape: (m, K).
    """
    if owners is None:
        return {}
    histograms = np.zeros(shape, dtype=np.int64)
    np.add.at(histograms, (owners, labels), 1)
    return {
        "test-sizes": histograms.sum(axis=1).tolist(),
        "test-class-histograms": histograms.tolist(),
    }

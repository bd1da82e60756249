"""The clients' shares of a training set, as index arrays."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Every example in exactly one client.

    Attributes:
        order: (n,) the examples, client after client.
        offsets: (m+1,) client i owns ``order[offsets[i]:offsets[i + 1]]``.
    """

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def num_clients(self) -> int:
        """Number m of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of examples of each client, (m,)."""
        return np.diff(self.offsets)

    @property
    def fingerprint(self) -> str:
        """Hexadecimal hash of the contents."""
        digest = hashlib.sha256(self.offsets.astype("<i8").tobytes())
        digest.update(self.order.astype("<i8").tobytes())
        return digest.hexdigest()

    def client(self, index: int) -> NDArray[np.int64]:
        """Return the examples of one client, in random order.

        Raises:
            FedhetError: There is no such client.
        """
        if not 0 <= index < self.num_clients:
            remedy = f"there are {self.num_clients} clients, counted from 0"
            raise FedhetError("partition-id", index, remedy)
        return np.asarray(self.order[self.offsets[index] : self.offsets[index + 1]])


def owners(
    partition: Partition, groups: NDArray[np.int64], others: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return the client that each of other examples belongs to, by its natural client.

    Args:
        partition: Of the training examples; no natural client is divided.
        groups: (n,) natural client of each training example.
        others: (k,) natural client of each other example.

    Returns:
        (k,); ``None`` where a natural client of the others has no training example.
    """
    client = np.full(max(groups.max(), others.max(initial=0)) + 1, -1)
    client[groups[partition.order]] = np.repeat(np.arange(partition.num_clients), partition.sizes)
    found = client[others]
    return None if (found < 0).any() else found

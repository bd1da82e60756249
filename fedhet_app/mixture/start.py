"""Where EM starts: responsibilities from clusters of a client's own images.

An extension to Paper B, which does not say how its components are told apart at first.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from fedhet_app.errors import FedhetError

RESTARTS = 4


def kmeans_responsibilities(
    pixels: NDArray[np.generic], components: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return w: the best of ``RESTARTS`` k-means clusterings as one-hot rows.

    Args:
        pixels: One flat image per row, shape ``(n, p)``.
        components: C, the number of clusters.
        rng: Where k-means draws its seed from.

    Returns:
        Shape ``(n, C)``; equal arguments give equal clusters.

    Raises:
        FedhetError: There are fewer distinct images than components.
    """
    distinct = len(np.unique(pixels, axis=0))
    if distinct < components:
        remedy = f"a client has only {distinct} distinct images; use at most that many components"
        raise FedhetError("fedspm.components", components, remedy)
    seed = int(rng.integers(2**31))
    # Several threads add in the order they finish, and a sum's last bits could move an image.
    with threadpool_limits(limits=1):
        kmeans = KMeans(components, n_init=RESTARTS, random_state=seed)
        clusters = kmeans.fit_predict(pixels.astype(np.float32))
    w: NDArray[np.float32] = np.eye(components, dtype=np.float32)[clusters]
    return w

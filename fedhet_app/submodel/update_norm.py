"""How far a client has moved what it was sent, and how to hold it to a length."""

import numpy as np
from numpy.typing import NDArray


def update_norm(sent: NDArray[np.floating], returned: NDArray[np.floating]) -> float:
    """Return the Euclidean norm of a client's update, in float64.

    Args:
        sent: What the client started from, shape ``(D,)``.
        returned: What came back, shape ``(D,)``.
    """
    return float(np.linalg.norm(np.subtract(returned, sent, dtype=np.float64)))


def shortened(
    sent: NDArray[np.float32], returned: NDArray[np.float32], length: float
) -> NDArray[np.float32]:
    """Return what would have come back had the update kept its direction and not its length.

    Args:
        sent: What the client started from, shape ``(D,)``.
        returned: What came back, shape ``(D,)``, not equal to it.
        length: The norm that the update is to have, up to the rounding to float32.
    """
    update = np.subtract(returned, sent, dtype=np.float64)
    short: NDArray[np.float32] = (sent + update * (length / np.linalg.norm(update))).astype("f4")
    return short

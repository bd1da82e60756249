"""The runs that are measured, as run-config values.

Evaluation and checkpoints are off, so that a steady round holds training and aggregation.
"""

import json
from collections.abc import Mapping

from fedhet_app.options import Scalar

_SHARED: dict[str, Scalar] = {
    "strategy": "fedavg",
    "model": "cnn",
    "model-preset": "small",
    "norm": "none",
    "batch-size": 64,
    "local-epochs": 1,
    "evaluate-every": 0,
    "checkpoint-every": 0,
    "device": "cpu",
}
_DIRICHLET = _SHARED | {
    "partition": "dirichlet",
    "alpha": 0.3,
    "num-clients": 20,
    "fraction-train": 0.5,
}

WORKLOADS: dict[str, dict[str, Scalar]] = {
    # 60,000 images, 10 of 20 uneven clients a round: training is nearly all there is.
    "W1": _DIRICHLET | {"dataset": "fashion-mnist", "num-server-rounds": 11},
    # 1,437 images of 8x8: hardly any training, so what a message costs shows.
    "W2": _DIRICHLET | {"dataset": "digits", "num-server-rounds": 50},
    # 100 of 1,000 clients of 60 images a round, one step each: many messages.
    "W3": _SHARED
    | {
        "dataset": "fashion-mnist",
        "partition": "iid",
        "num-clients": 1000,
        "fraction-train": 0.1,
        "num-server-rounds": 5,
    },
    # Seconds in all: keeps the scripts themselves correct.
    "tiny": _DIRICHLET
    | {
        "dataset": "digits",
        "max-train-examples": 300,
        "num-clients": 4,
        "num-server-rounds": 3,
    },
}


def as_pairs(values: Mapping[str, Scalar]) -> str:
    """Return run-config values as the ``key=value`` pairs that ``--set`` takes."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())

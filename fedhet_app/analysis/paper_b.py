"""What Paper B reports (Table 1): accuracies in percent, mean and std of 3 seeds.

1x: one encoder for all components, Cx: one for each; C = 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedhet_app.analysis.tables.cells import Spread
from fedhet_app.config import DEFAULTS

NAMES: Mapping[str, str] = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100-20": "CIFAR-100, 20 superclasses",
}
METHODS: Mapping[str, str] = {
    "fedavg": "FedAvg (1x)",
    "fedprox": "FedProx (1x)",
    "fedavg-ft": "FedAvgFT (1x)",
    "ditto": "Ditto (1x)",
    "ifca": "ClusterFL (Cx)",
    "fedbabu": "FedBABU (1x)",
    "fedem": "FedEM (Cx)",
    "fedgmm": "FedGMM (Cx)",
    "feddrm": "FedDRM (1x)",
    "fedspm-shared": "FedSPM (1x)",
    "fedspm-per-component": "FedSPM (Cx)",
}
"""The rows of Table 1 by strategy, FedSPM's by its encoders too."""

_COMPONENTS = 3
_SETTING = {"dual.alpha-inter": 1.0, "dual.alpha-intra": 2.0, "routing.momentum": 0.95}
_BITS = (("red", "blue"), ("top", "bottom"), ("left", "right"))


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of Table 1 on one data set."""

    system: Spread
    average: Spread


def _column(*rows: tuple[float, float, float, float]) -> dict[str, Published]:
    """Return a data set's rows, in the order of ``METHODS``, by their keys."""
    return {
        key: Published(
            system=Spread(mean=row[0], std=row[1]), average=Spread(mean=row[2], std=row[3])
        )
        for key, row in zip(METHODS, rows, strict=True)
    }


ACCURACIES: Mapping[str, Mapping[str, Published]] = {
    "fashion-mnist": _column(
        (39.15, 1.31, 39.15, 1.31),
        (39.14, 1.32, 39.14, 1.32),
        (35.42, 1.90, 50.55, 1.04),
        (34.30, 2.42, 54.87, 1.18),
        (31.36, 2.20, 55.77, 2.32),
        (34.27, 1.19, 38.36, 1.76),
        (29.73, 2.68, 38.79, 0.19),
        (31.98, 1.99, 38.34, 0.58),
        (53.68, 1.01, 53.69, 1.01),
        (58.82, 0.61, 58.86, 0.62),
        (58.23, 0.17, 58.32, 0.18),
    ),
    "cifar10": _column(
        (35.02, 0.32, 35.02, 0.32),
        (34.94, 0.36, 34.94, 0.36),
        (32.71, 0.22, 41.40, 0.91),
        (33.12, 0.45, 43.91, 0.26),
        (28.38, 2.48, 45.33, 1.20),
        (33.39, 0.55, 36.90, 0.47),
        (26.71, 2.07, 38.50, 0.42),
        (25.36, 0.48, 38.86, 0.42),
        (47.47, 0.09, 47.62, 0.11),
        (48.39, 0.21, 48.59, 0.22),
        (48.03, 0.58, 48.32, 0.61),
    ),
    "cifar100-20": _column(
        (18.17, 0.53, 18.17, 0.53),
        (18.15, 0.49, 18.15, 0.49),
        (16.29, 0.69, 23.51, 0.54),
        (16.02, 0.69, 25.06, 0.54),
        (14.68, 1.59, 27.31, 1.26),
        (16.64, 0.25, 19.09, 0.62),
        (13.69, 0.62, 19.98, 0.44),
        (11.97, 0.96, 20.70, 0.25),
        (27.15, 0.37, 27.55, 0.37),
        (28.33, 0.37, 28.84, 0.40),
        (27.54, 0.45, 28.07, 0.46),
    ),
}


def row_of(config: Mapping[str, Any]) -> str:
    """Return the key of the row of Table 1 that a run is a row of; empty where it is none's."""
    whole = {**DEFAULTS, **config}
    if any(whole[key] != value for key, value in _SETTING.items()):
        return ""
    strategy = str(whole["strategy"])
    if strategy == "fedspm":
        if whole["fedspm.components"] != _COMPONENTS:
            return ""
        return f"{strategy}-{whole['fedspm.encoders']}"
    return strategy if strategy in METHODS else ""


def published(dataset: str, config: Mapping[str, Any]) -> Published | None:
    """Return what the paper has of a run's method and setting, if anything."""
    return ACCURACIES.get(dataset, {}).get(row_of(config))


def shift_of(client: int) -> str:
    """Return what a client's three bits stand for (Appendix D.2): its tint and bright edges."""
    return ", ".join(names[client >> bit & 1] for bit, names in enumerate(_BITS))

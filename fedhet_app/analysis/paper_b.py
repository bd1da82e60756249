"""What Paper B reports: accuracies in percent, means of 3 seeds, with their std in Table 1 alone.

1x: one encoder for all components, Cx: one for each; C = 3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedhet_app.analysis.tables.cells import Spread
from fedhet_app.config import DEFAULTS

NAMES: Mapping[str, str] = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100-20": "CIFAR-100, 20 superclasses",
    "fed-isic2019": "Fed-ISIC2019",
}
NATURAL = ("fed-isic2019",)
"""Data sets whose clients differ by nature (Section 4); Figure 4 has no number in the text."""
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
_AS_PUBLISHED = {"routing.momentum": 0.95, "fedspm.init": "random", "fedgmm.features": ""}
_BITS = (("red", "blue"), ("top", "bottom"), ("left", "right"))


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of a table on one data set."""

    system: Spread
    average: Spread


def _column(*rows: tuple[float, ...]) -> dict[str, Published]:
    """Return rows in the order of ``METHODS`` by their keys.

    Each is system, then average accuracy; behind each its std in a table that has it.
    """
    halves = [(row[: len(row) // 2], row[len(row) // 2 :]) for row in rows]
    return {
        key: Published(system=_spread(*system), average=_spread(*average))
        for key, (system, average) in zip(METHODS, halves, strict=True)
    }


def _spread(mean: float, std: float = math.nan) -> Spread:
    return Spread(mean=mean, std=std)


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


ALPHAS = ("dual.alpha-inter", "dual.alpha-intra")
USUAL = (1.0, 2.0)
"""Both alphas in Table 1."""


INTENSITIES: Mapping[tuple[float, float], Mapping[str, Published]] = {
    (0.5, 2.0): _column(
        *((49.85, 49.85), (49.88, 49.88), (45.87, 62.45), (45.28, 65.87), (40.77, 68.80)),
        *((42.93, 50.14), (37.08, 49.68), (34.33, 49.22), (69.03, 69.05), (74.20, 74.24)),
        (73.15, 73.21),
    ),
    USUAL: ACCURACIES["fashion-mnist"],
    (2.0, 2.0): _column(
        *((31.37, 31.37), (31.34, 31.34), (27.67, 45.01), (25.56, 49.36), (23.96, 52.41)),
        *((27.82, 31.45), (25.70, 31.57), (24.57, 31.83), (52.51, 52.51), (55.68, 55.70)),
        (56.57, 56.65),
    ),
    (1.0, 0.5): _column(
        *((42.15, 42.15), (42.10, 42.10), (36.72, 54.11), (34.26, 58.22), (34.79, 61.48)),
        *((37.16, 40.70), (33.43, 41.78), (28.92, 44.08), (60.25, 60.28), (62.83, 62.89)),
        (62.48, 62.58),
    ),
    (1.0, 1.0): _column(
        *((37.59, 37.59), (37.58, 37.58), (33.42, 50.99), (31.42, 55.44), (31.22, 57.66)),
        *((35.09, 39.21), (28.88, 39.47), (27.90, 38.59), (55.52, 55.53), (63.10, 63.20)),
        (61.33, 61.40),
    ),
}
"""Table 2, Fashion-MNIST, by alpha-inter and alpha-intra."""


def in_study(config: Mapping[str, Any]) -> bool:
    """Return whether a run is of a study of this paper: its clients differ as the paper's do."""
    partition = config.get("partition")
    return partition == "dual" or (partition == "natural" and config.get("dataset") in NATURAL)


def alphas_of(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return alpha-inter and alpha-intra of a run."""
    whole = {**DEFAULTS, **config}
    inter, intra = (float(whole[key]) for key in ALPHAS)
    return inter, intra


def row_of(config: Mapping[str, Any]) -> str:
    """Return the key of the row that a run's method has; empty where the paper lacks it."""
    whole = {**DEFAULTS, **config}
    if any(whole[key] != value for key, value in _AS_PUBLISHED.items()):
        return ""
    strategy = str(whole["strategy"])
    if strategy == "fedspm":
        if whole["fedspm.components"] != _COMPONENTS:
            return ""
        return f"{strategy}-{whole['fedspm.encoders']}"
    return strategy if strategy in METHODS else ""


def published(dataset: str, config: Mapping[str, Any]) -> Published | None:
    """Return what the paper has of a run's method and setting, if anything."""
    alphas = alphas_of(config)
    if alphas == USUAL:
        return ACCURACIES.get(dataset, {}).get(row_of(config))
    column = INTENSITIES.get(alphas, {}) if dataset == "fashion-mnist" else {}
    return column.get(row_of(config))


def shift_of(client: int) -> str:
    """Return what a client's three bits stand for (Appendix D.2): its tint and bright edges."""
    return ", ".join(names[client >> bit & 1] for bit, names in enumerate(_BITS))

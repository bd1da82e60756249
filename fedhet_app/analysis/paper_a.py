"""What Paper A reports (Tables 2 to 6 and Sections 4.2 to 4.5): percent, mean and std of 3 seeds.

Names of methods are the labels of a study.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedhet_app.analysis.tables.cells import Cell, Spread

NAMES: Mapping[str, str] = {
    "cifar10": "CIFAR-10",
    "emnist": "EMNIST",
    "femnist": "FEMNIST",
    "shakespeare": "Shakespeare",
}
STAND_INS: Mapping[str, str] = {"femnist": "emnist"}
"""Data sets that are set beside the paper's numbers of another one."""

METHODS: Mapping[str, str] = {
    "has-fl": "HAS-FL",
    "has-fl-off": "HAS-FL, guarantee off",
    "heterofl": "HeteroFL",
    "fjord": "FjORD",
    "fedrolex": "FedRolex",
    "uniform": "Uniform",
    "random-budget": "Random-budget",
    "random-budget-permute": "Random-budget, permuted",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fedavg-plain": "FedAvg, plain SGD",
    "scaffold-momentum": "SCAFFOLD with momentum",
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of the paper: accuracies in percent and the mean width."""

    best: Spread
    final: Spread
    width: float


def _row(best: tuple[float, float], final: tuple[float, float], width: float) -> Published:
    spreads = [Spread(mean=mean, std=std) for mean, std in (best, final)]
    return Published(best=spreads[0], final=spreads[1], width=width)


ACCURACIES: Mapping[str, Mapping[str, Published]] = {
    "cifar10": {
        "has-fl": _row((76.7, 4.9), (74.5, 5.6), 0.52),
        "has-fl-off": _row((57.2, 2.4), (40.4, 10.2), 0.48),
        "heterofl": _row((76.3, 4.9), (75.0, 5.0), 0.56),
        "fjord": _row((78.6, 3.9), (75.5, 3.8), 0.41),
        "uniform": _row((63.6, 1.6), (54.5, 2.3), 0.44),
        "random-budget": _row((75.9, 4.9), (74.6, 5.1), 0.49),
        "fedavg": _row((88.5, 0.5), (88.2, 0.6), 1.0),
        "scaffold": _row((86.7, 0.9), (86.3, 1.2), 1.0),
        "fedprox": _row((66.4, 1.0), (65.5, 2.0), 1.0),
    },
    "emnist": {
        "has-fl": _row((82.0, 1.8), (77.7, 4.6), 0.52),
        "has-fl-off": _row((82.4, 2.3), (70.6, 9.4), 0.47),
        "fjord": _row((84.0, 0.5), (79.6, 3.3), 0.40),
        "uniform": _row((82.2, 1.4), (9.4, 3.8), 0.44),
        "random-budget": _row((82.4, 2.1), (77.4, 5.7), 0.49),
        "fedavg": _row((87.4, 0.3), (85.5, 1.7), 1.0),
        "scaffold": _row((87.5, 0.2), (87.2, 0.3), 1.0),
        "fedprox": _row((85.0, 0.0), (83.9, 1.3), 1.0),
    },
    "shakespeare": {
        "has-fl": _row((29.5, 2.2), (25.5, 0.8), 0.53),
        "fjord": _row((33.5, 0.9), (32.6, 1.3), 0.41),
        "uniform": _row((35.0, 0.5), (34.4, 0.6), 0.44),
    },
}

DROPS: Mapping[str, Mapping[str, float]] = {
    "cifar10": {"has-fl": -2.2, "has-fl-off": -16.8, "heterofl": -1.2},
    "emnist": {"has-fl": -4.4, "has-fl-off": -11.8},
}
"""Table 3: final minus best accuracy, in points."""

CORRELATIONS: Mapping[str, Mapping[int, Mapping[str, float]]] = {
    dataset: {
        seed: dict(
            zip(
                (
                    "estimate-tv",
                    "estimate-capacity",
                    "estimate-tv-given-capacity",
                    "width-tv-given-capacity",
                    "tv-capacity",
                ),
                values,
                strict=True,
            )
        )
        for seed, values in seeds.items()
    }
    for dataset, seeds in {
        "cifar10": {
            42: (-0.44, -0.72, -0.60, 0.02, 0.03),
            43: (-0.21, -0.72, -0.47, -0.36, -0.16),
            44: (0.21, -0.84, -0.40, -0.46, -0.48),
        },
        "emnist": {
            42: (-0.43, -0.75, -0.26, 0.07, 0.36),
            43: (-0.24, -0.72, -0.28, 0.05, 0.06),
            44: (-0.02, -0.81, 0.10, 0.19, 0.10),
        },
    }.items()
}
"""Table 4 by seed; r(TV, capacity) is not in it and was solved for from the row's other numbers."""

DIFFERENCES: Mapping[str, Mapping[tuple[str, str], str]] = {
    "cifar10": {
        ("has-fl", "random-budget"): "-0.1",
        ("has-fl", "has-fl-off"): "+19, +34, +49",
        ("fedavg", "has-fl"): "+13.7",
    },
    "emnist": {
        ("has-fl", "random-budget"): "+0.3",
        ("has-fl", "has-fl-off"): "+0.3, +4.7, +16.1",
        ("fedavg", "has-fl"): "+7.8",
    },
}
"""Final accuracy against final accuracy, in points: per seed where the paper has it, else of the
means (of the matched control on CIFAR-10 it gives the mean per seed)."""

COST: Mapping[float, str] = {0.25: "6 to 7 %", 0.5: "about 25 %"}
"""Section 3.4: parameters and multiply-accumulates of a width, of the full model's."""


def source(dataset: str) -> str:
    """Return the data set whose published numbers stand beside a data set's."""
    return STAND_INS.get(dataset, dataset)


def column(dataset: str) -> str:
    """Return what to call the paper's column; empty where the paper does not have the data set."""
    if source(dataset) not in ACCURACIES:
        return ""
    return f"paper, {NAMES[source(dataset)]}" if dataset in STAND_INS else "paper"


def published(dataset: str, label: str) -> Mapping[str, Cell]:
    """Return the paper's best, final and mean width of a method; empty cells where it has none."""
    row = ACCURACIES.get(source(dataset), {}).get(label)
    if row is None:
        return {"best": None, "final": None, "width": None}
    return {"best": row.best, "final": row.final, "width": row.width}


def method(label: str) -> str:
    """Return a method's name as the paper writes it, or the label of one it does not have."""
    return METHODS.get(label, label)

"""What Paper A reports on each claim, in its own terms (Sections 4.2 to 4.6).

Accuracies are percent or points, correlations are given by seed 42, 43, 44.
"""

from collections.abc import Mapping

from fedhet_app.analysis.paper_a import NAMES, source

CIFAR, EMNIST, TEXT = "cifar10", "emnist", "shakespeare"

REPORTED: Mapping[str, Mapping[str, str]] = {
    "A1": {CIFAR: "-.72, -.72, -.84", EMNIST: "-.75, -.72, -.81"},
    "A2": {CIFAR: "-.60, -.47, -.40", EMNIST: "-.26, -.28, +.10"},
    "A3": {CIFAR: "+.02, -.36, -.46", EMNIST: "+.07, +.05, +.19"},
    "A5 (a)": {CIFAR: "stated, not measured", EMNIST: "stated, not measured"},
    "A5 (b)": {CIFAR: "stated, not measured", EMNIST: "stated, not measured"},
    "A5 (c)": {CIFAR: "stated, not measured", EMNIST: "stated, not measured"},
    "A6 (c)": {CIFAR: "+34.1 (19, 34, 49)", EMNIST: "+7.1 (0.3, 4.7, 16.1)"},
    "A6 (d)": {CIFAR: "16.8 against 2.2", EMNIST: "11.8 against 4.4"},
    "A7": {CIFAR: "75.0 - 54.5 = +20.5", EMNIST: "Uniform 9.4; HeteroFL is not reported"},
    "A8": {
        CIFAR: "74.5 - 74.6 = -0.1, mean widths .52 and .49",
        EMNIST: "77.7 - 77.4 = +0.3, mean widths .52 and .49",
        TEXT: "no random-budget run (the abstract says that random is better)",
    },
    "A9": {CIFAR: "88.2 - 74.5 = +13.7", EMNIST: "85.5 - 77.7 = +7.8"},
    "A10 (a)": {CIFAR: "diverges to chance", EMNIST: "diverges to chance"},
    "A10 (b)": {
        CIFAR: "86.3, against FedAvg with momentum 88.2",
        EMNIST: "87.2, against FedAvg with momentum 85.5",
    },
    "A11 (a)": {CIFAR: "88.2 - 65.5 = +22.7"},
    "A11 (b)": {CIFAR: "+22.7, EMNIST +1.6", EMNIST: "+1.6, CIFAR-10 +22.7"},
    "A11 (c)": {CIFAR: "monotone to the end", EMNIST: "monotone to the end"},
    "A12 (a)": {
        CIFAR: "6 to 7 % and about 25 %",
        EMNIST: "6 to 7 % and about 25 %",
        TEXT: "6 to 7 % and about 25 %",
    },
    "A13 (a)": {
        CIFAR: ".41 at a mean capacity of .56",
        EMNIST: ".40 at a mean capacity of .56",
        TEXT: ".41",
    },
    "A14 (a)": {TEXT: "34.4, 32.6, 25.5"},
    "A14 (b)": {TEXT: "0.6, 0.9, 4.0"},
    "A15 (a)": {CIFAR: "about threefold", EMNIST: "about threefold"},
    "A15 (b)": {CIFAR: "about threefold", EMNIST: "about threefold"},
    "A16 (a)": {CIFAR: "from 1.0 to about 1.8-2.0", EMNIST: "from 1.0 to about 1.8-2.0"},
    "A16 (b)": {CIFAR: "stable near .5 (.52)", EMNIST: "stable near .5 (.52)"},
    "A17": {
        CIFAR: "upward from about 1.24, accuracy flat",
        EMNIST: "upward from about 0.50, accuracy flat",
    },
    "A18": {CIFAR: "10.2 / 5.6 = 1.8", EMNIST: "9.4 / 4.6 = 2.0"},
}
"""By claim and the paper's data set."""


def reported(claim: str, dataset: str) -> str:
    """Return the paper's value of a claim on a data set, or that there is none.

    Where a data set stands in for another one of the paper's, the text names that one.
    """
    original = source(dataset)
    text = REPORTED.get(claim, {}).get(original, "")
    if not text:
        return "not reported"
    return text if original == dataset else f"{NAMES[original]}: {text}"

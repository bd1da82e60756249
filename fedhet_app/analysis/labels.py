"""What runs are called: after their method, and told apart where a method ran with two settings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedhet_app.checkpoint import FREE_TO_CHANGE
from fedhet_app.config import DEFAULTS, STRATEGY_NAMES
from fedhet_app.config_checks import belongs

Options = Mapping[str, Any]

MATCH, FEATURES = "random-budget.match", "fedgmm.features"
"""Name another run for each seed, so that two runs of one method never share them."""

NOT_THE_METHOD = {
    *FREE_TO_CHANGE,
    "client-cpus",
    "device",
    "evaluate-every",
    "evaluate-examples",
    "seed",
}
"""Options in which runs of one method on one task may differ."""

_SHORT = {
    "has-fl has-fl.coverage=false": "has-fl-off",
    "random-budget random-budget.mode=permute": "random-budget-permute",
    "fedspm fedspm.encoders=per-component": "fedspm-cx",
    "fedgmm fedgmm.features=trained": "fedgmm-trained-features",
}
"""The names that suites give to methods which are a strategy and an option."""


def settings(config: Options) -> dict[str, Any]:
    """Return the options that make up the method and its task, other methods' options left out."""
    strategy = str(config["strategy"])
    whole = {**DEFAULTS, **config}
    return {
        key: "trained" if key == FEATURES and value else value
        for key, value in whole.items()
        if key not in {*NOT_THE_METHOD, MATCH} and belongs(key, strategy)
    }


def task_settings(config: Options) -> dict[str, Any]:
    """Return those of the settings that are no method's own, its name left out."""
    return {
        key: value
        for key, value in settings(config).items()
        if key.partition(".")[0] not in {*STRATEGY_NAMES, "strategy"}
    }


def label_of(config: Options) -> str:
    """Return a run's strategy and those of the strategy's options that are not at their default."""
    changed = {
        key: value
        for key, value in settings(config).items()
        if "." in key and not key.startswith("dual.") and value != DEFAULTS.get(key)
    }
    label = _with_options(str(config["strategy"]), changed)
    return _SHORT.get(label, label)


def distinguish(configs: Sequence[Options], labels: Sequence[str]) -> list[str]:
    """Return labels under which all runs have the same settings.

    Where runs of one label differ, the settings that most of them have keep it (of equally many,
    the first), and the others add theirs.

    Args:
        configs: Options of runs on one data set.
        labels: What each is called so far.
    """
    variants = [tuple(sorted(settings(config).items())) for config in configs]
    usual: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(labels):
        own = Counter(v for v, other in zip(variants, labels, strict=True) if other == label)
        usual[label] = dict(own.most_common(1)[0][0])
    return [
        _with_options(label, {k: v for k, v in variant if usual[label].get(k) != v})
        for label, variant in zip(labels, variants, strict=True)
    ]


def _with_options(label: str, options: Options) -> str:
    return " ".join([label, *(f"{key}={_shown(value)}" for key, value in options.items())])


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

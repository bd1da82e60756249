"""Checks of run-config values that depend on each other, or on more than a type can say."""

import math
import re
from collections.abc import Mapping
from itertools import pairwise

from fedhet_app.errors import FedhetError
from fedhet_app.method_options import PrivacyOptions, ScaffoldOptions
from fedhet_app.options import Scalar, parse_list

ROUTING_METHODS = ("feddrm", "fedspm", "fedgmm")
VOTING_METHODS = ("fedavg-ft", "ditto", "ifca", "fedbabu", "fedem")
"""Methods whose clients predict with models of their own and nobody chooses between those."""
PRIVATE_METHODS = ("fedavg", "fedprox")
"""Methods that average whole models and send nothing else."""
NATURAL_IMAGES = ("femnist", "fed-isic2019")
"""Sets of images that say whose each test example is."""
_MODELS = "cnn, resnet8, resnet18, mlp, lstm"
_MODEL_FORM = re.compile(r"cnn|resnet8|resnet18|mlp|lstm|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_SUM_TOLERANCE = 1e-6
_WINDOWS = ("stride", "max-windows-per-client")
_OF_IMAGES = ("augment", "image-column", "image-size", "label-column", "test-split")
_OF_OWN = ("input-shape", "num-classes")
_CENTRAL = ("evaluate-examples", "vote-tie")
_AT_SERVER = ("data-dir", "fedspm.bridge-every", "max-train-examples", "test-split")
_WITHOUT_EFFECT = {
    "lstm": ("norm", "embedding", "embed-norm"),
    "mlp": ("model-preset", "norm"),
    "resnet8": ("model-preset",),
    "resnet18": ("model-preset",),
}
_OF_ROUTERS = ("routing.lr", "routing.momentum", "routing.steps")
"""Of a routing network that is trained; FedGMM's is as it is drawn, or as another run left it."""
_OF_SEVERAL = ("fedspm.encoders", "fedspm.init", "fedspm.init-rounds", "fedspm.init-w")
_LOCATING = ("data-dir", "image-column", "label-column", "test-split")


def check_forms(dataset: str, model: str) -> None:
    """Raise ``FedhetError`` for names that cannot be a data set or a model.

    Whether they exist is found out where they are loaded.
    """
    if not dataset.strip():
        raise FedhetError("dataset", dataset, "must name a data set, for example 'digits'")
    if not _MODEL_FORM.fullmatch(model):
        raise FedhetError("model", model, f"must be one of {_MODELS}, or package.module:function")


def check_effects(values: Mapping[str, Scalar], defaults: Mapping[str, Scalar]) -> None:
    """Raise ``FedhetError`` for an option that was set although another leaves it without effect.

    Args:
        values: Every option of a run by its key.
        defaults: What each is when nobody sets it.
    """
    strategy, dual = str(values["strategy"]), values["partition"] == "dual"
    own, federated = values["partition"] == "own", values["evaluate"] == "federated"
    idle = {
        "lr-schedule": ("lr-decay",) if values["lr-schedule"] != "exponential" else (),
        "local-steps": ("local-epochs",) if values["local-steps"] else (),
        "partition": (
            *(("alpha", "balance-mask") if values["partition"] != "dirichlet" else ()),
            *(("max-train-examples",) if dual else (k for k in values if k.startswith("dual."))),
            *(("test-fraction",) if dual else ()),
            *(_AT_SERVER if own else ("class-names",)),
        ),
        "evaluate": _CENTRAL if federated else ("test-fraction",),
        "dataset": (
            *(_LOCATING if values["dataset"] == "digits" and not own else ()),
            *(_OF_OWN if values["dataset"] != "own" else ()),
            *(_WINDOWS if values["dataset"] != "shakespeare" else _OF_IMAGES),
        ),
        "model": _WITHOUT_EFFECT.get(str(values["model"]), ()),
        "max-update-norm": ("max-update-norm-mode",) if not values["max-update-norm"] else (),
        "privacy.mode": _idle_privacy(str(values["privacy.mode"])),
        "embedding": ("embed-norm",) if not values["embedding"] else (),
        "fedspm.init-w": ("fedspm.init-rounds",) if values["fedspm.init-w"] == "random" else (),
        "fedspm.components": _OF_SEVERAL if values["fedspm.components"] == 1 else (),
        "strategy": [
            *(key for key in values if not belongs(key, strategy)),
            *(("queries",) if strategy not in ROUTING_METHODS else ()),
            *(("vote-tie",) if strategy not in (*ROUTING_METHODS, *VOTING_METHODS) else ()),
        ],
    }
    for cause, keys in idle.items():
        for key in keys:
            if values[key] != defaults[key]:
                remedy = f"has no effect with {cause} = {values[cause]}; leave one of them out"
                raise FedhetError(key, values[key], remedy)


def belongs(key: str, strategy: str) -> bool:
    """Return whether an option can be one of a method's: it is its own, or no method's."""
    group, dot, _ = key.partition(".")
    if key in _OF_ROUTERS:
        return strategy in ROUTING_METHODS and strategy != "fedgmm"
    if group == "routing":
        return strategy in ROUTING_METHODS
    return not dot or group in ("dual", "privacy", strategy)


def _idle_privacy(mode: str) -> tuple[str, ...]:
    """Return the privacy options that a mode does not look at."""
    noise, local = ("privacy.noise-multiplier",), ("privacy.epsilon", "privacy.delta")
    if mode == "none":
        return ("privacy.clipping-norm", *noise, *local)
    return noise if mode == "local" else local


def check_update_limit(strategy: str, limit: float, mode: str) -> None:
    """Raise ``FedhetError`` for updates that cannot be shortened by the server alone."""
    if limit and mode == "clip" and strategy == "scaffold":
        remedy = "its control variates would still be of the whole update; use drop"
        raise FedhetError("max-update-norm-mode", mode, remedy)


def check_privacy(strategy: str, options: PrivacyOptions, max_update_norm: float) -> None:
    """Raise ``FedhetError`` for methods and options that Flower's privacy does not fit."""
    mode = options.mode
    if mode == "none":
        return
    why = _not_private(strategy, mode)
    if why:
        remedy = f"does not fit {strategy}: {why}; use {' or '.join(PRIVATE_METHODS)}"
        raise FedhetError("privacy.mode", mode, remedy)
    if max_update_norm:
        remedy = f"privacy.mode = {mode} sets a length of its own; leave one of them out"
        raise FedhetError("max-update-norm", max_update_norm, remedy)


def _not_private(strategy: str, mode: str) -> str:
    """Return why a mode of privacy does not fit a method; nothing where it does."""
    if strategy in ROUTING_METHODS:
        return "its clients send more than a model, which Flower neither clips nor noises"
    if strategy in VOTING_METHODS:
        return "its clients answer queries with models of their own, which get no noise"
    if strategy == "scaffold":
        return "its control variates travel too, which Flower neither clips nor noises"
    if strategy in PRIVATE_METHODS or mode == "local":
        return ""
    return (
        "it trains slices, and Flower's noise is made for the mean of whole models; set mode "
        "local, in which each client adds its own"
    )


def check_plain_sgd(momentum: float, weight_decay: float, options: ScaffoldOptions) -> None:
    """Raise ``FedhetError`` for local steps that SCAFFOLD's control variates do not measure."""
    if weight_decay:
        remedy = "SCAFFOLD's control variates are of the loss alone; set weight-decay = 0"
        raise FedhetError("weight-decay", weight_decay, remedy)
    for name in ("momentum_correction", "allow_momentum"):
        if getattr(options, name) and not momentum:
            key = f"scaffold.{name.replace('_', '-')}"
            raise FedhetError(key, True, "has no effect with momentum = 0; leave one of them out")
    if options.momentum_correction and options.allow_momentum:
        remedy = "has no effect with scaffold.momentum-correction; leave one of them out"
        raise FedhetError("scaffold.allow-momentum", True, remedy)
    if momentum and not options.momentum_correction and not options.allow_momentum:
        remedy = (
            "makes SCAFFOLD's control variates 1 / (1 - momentum) times too large, and the run "
            "diverges; set momentum = 0, scaffold.momentum-correction = true, or, to see it "
            "diverge, scaffold.allow-momentum = true"
        )
        raise FedhetError("momentum", momentum, remedy)


def check_mixture(
    strategy: str, dataset: str, partition: str, norm: str, *, known_owners: bool
) -> None:
    """Raise ``FedhetError`` for what a method of personal models cannot train on.

    ``known_owners`` says that every client has test examples of its own, whatever the partition.
    """
    natural = partition == "natural" and dataset in NATURAL_IMAGES
    if partition != "dual" and not natural and not known_owners:
        remedy = (
            f"{strategy} must know whose each test example is; use partition = 'dual', or"
            f" 'natural' with dataset = {' or '.join(NATURAL_IMAGES)}; or evaluate = 'federated'"
        )
        raise FedhetError("partition", partition, remedy)
    if norm == "sbn":
        remedy = "keeps no statistics to predict a single query with; use gn, bn or none"
        raise FedhetError("norm", norm, remedy)


def check_bridge(bridge_every: int, fraction_train: float) -> None:
    """Raise ``FedhetError`` for bridge errors of a cohort: they take everybody's weights."""
    if bridge_every and fraction_train < 1.0:
        remedy = "takes the responsibilities of every client in a round; set fraction-train = 1.0"
        raise FedhetError("fedspm.bridge-every", bridge_every, remedy)


def check_own(dataset: str, partition: str, evaluate: str) -> None:
    """Raise ``FedhetError`` for clients' own data without what belongs to it."""
    if partition != "own":
        remedy = (
            "is data that clients hold themselves; set partition = 'own', and data-path in the"
            " config of every node"
        )
        raise FedhetError("dataset", dataset, remedy)
    if evaluate != "federated":
        remedy = "the server has no examples with partition = own; set evaluate = 'federated'"
        raise FedhetError("evaluate", evaluate, remedy)


def check_simulated(masked_classifier: bool, estimator: str) -> None:
    """Raise ``FedhetError`` for options that need every client's labels at the server."""
    needs = "needs each client's labels at the server, which partition = own leaves with them"
    if masked_classifier:
        raise FedhetError("heterofl.masked-classifier", True, f"{needs}; leave it off")
    if estimator == "oracle-tv":
        raise FedhetError("has-fl.estimator", estimator, f"{needs}; use another estimator")


def check_clusters(clusters: int, num_clients: int) -> None:
    """Raise ``FedhetError`` for more clusters than clients, some of which nobody could choose."""
    if clusters > num_clients:
        remedy = f"more than the {num_clients} clients; use that many at most"
        raise FedhetError("ifca.clusters", clusters, remedy)


def check_alpha(alpha: Scalar) -> None:
    """Raise ``FedhetError`` for an infinite alpha, which has a name of its own."""
    if alpha == math.inf:
        raise FedhetError("alpha", alpha, "must be a finite number; use partition = 'iid'")


def check_cohort(
    cohort_size: int, fraction_train: float, num_clients: int, min_replies: int
) -> None:
    """Raise ``FedhetError`` for a round without clients, or with fewer than it needs replies."""
    if cohort_size < 1:
        remedy = (
            f"rounds to no client out of num-clients = {num_clients}; "
            f"use {1 / num_clients:.3g} or more"
        )
        raise FedhetError("fraction-train", fraction_train, remedy)
    if min_replies > cohort_size:
        remedy = f"a round has {cohort_size} clients; use that or less"
        raise FedhetError("min-replies", min_replies, remedy)


def check_capacities(capacity_tiers: str, capacity_probs: str) -> None:
    """Raise ``FedhetError`` unless both hold as many numbers: widths ascending, a distribution."""
    tiers = parse_list("capacity-tiers", capacity_tiers)
    probs = parse_list("capacity-probs", capacity_probs)
    if not all(0 < tier <= 1 for tier in tiers) or any(a >= b for a, b in pairwise(tiers)):
        remedy = "must ascend within (0, 1], for example '0.25,0.5,1.0'"
        raise FedhetError("capacity-tiers", capacity_tiers, remedy)
    if len(probs) != len(tiers):
        remedy = f"must hold one probability for each of the {len(tiers)} capacity-tiers"
        raise FedhetError("capacity-probs", capacity_probs, remedy)
    if not all(prob >= 0 for prob in probs) or not abs(sum(probs) - 1) <= _SUM_TOLERANCE:
        raise FedhetError("capacity-probs", capacity_probs, "must be at least 0 each and sum to 1")

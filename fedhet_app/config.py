"""The run config: frozen dataclasses, read and checked here and nowhere else.

Fields carry type, range and default of each option (see ``options``); ``[tool.flwr.app.config]`` in
pyproject.toml repeats the defaults, because Flower accepts no key that is not listed there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, get_args

from fedhet_app.config_checks import (
    ROUTING_METHODS,
    VOTING_METHODS,
    check_alpha,
    check_bridge,
    check_capacities,
    check_clusters,
    check_cohort,
    check_effects,
    check_forms,
    check_mixture,
    check_own,
    check_plain_sgd,
    check_privacy,
    check_simulated,
    check_update_limit,
)
from fedhet_app.errors import FedhetError
from fedhet_app.facts import OWN, Facts, facts_of
from fedhet_app.method_options import (
    DittoOptions,
    DualOptions,
    FedAvgFtOptions,
    FedBabuOptions,
    FedEmOptions,
    FedGmmOptions,
    FedProxOptions,
    FedRolexOptions,
    FedSpmOptions,
    FjordOptions,
    HasFlOptions,
    HeteroFlOptions,
    IfcaOptions,
    PrivacyOptions,
    RandomBudgetOptions,
    RoutingOptions,
    ScaffoldOptions,
    UniformOptions,
)
from fedhet_app.options import (
    Count,
    CountOrZero,
    Decay,
    Fraction,
    NonNegative,
    Positive,
    Scalar,
    Seed,
    Share,
    build,
    flatten,
    parse_list,
)

StrategyName = Literal[
    "fedavg",
    "fedprox",
    "scaffold",
    "heterofl",
    "fjord",
    "fedrolex",
    "uniform",
    "random-budget",
    "has-fl",
    "fedavg-ft",
    "ditto",
    "ifca",
    "fedbabu",
    "fedem",
    "fedgmm",
    "feddrm",
    "fedspm",
]
STRATEGY_NAMES: tuple[str, ...] = get_args(StrategyName)
PATHS = ("results-dir", "data-dir", "random-budget.match", "fedgmm.features")
"""Keys whose value, where there is one, is a path."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything one run depends on, each value checked; build it with ``parse``."""

    strategy: StrategyName = "has-fl"

    dataset: str = "digits"
    data_dir: str = ""
    image_column: str = ""
    image_size: CountOrZero = 0  # height and width to resize to, 0: as they are
    label_column: str = ""
    test_split: str = "test"
    max_train_examples: CountOrZero = 0  # 0: all of them
    stride: Count = 80  # text: symbols from one window to the next
    max_windows_per_client: CountOrZero = 0  # text, 0: all of them
    input_shape: str = ""  # of data that clients hold: "3x32x32", or "30" for rows of 30 numbers
    num_classes: CountOrZero = 0  # likewise
    class_names: str = ""  # likewise, by their numbers; what folders and labels are called
    partition: Literal["iid", "dirichlet", "natural", "dual", "own"] = "dirichlet"
    alpha: Positive = 0.3
    balance_mask: bool = False

    model: str = "cnn"
    model_preset: Literal["small", "paper"] = "small"
    norm: Literal["gn", "bn", "sbn", "none"] = "gn"
    init: Literal["default", "kaiming", "torch"] = "default"
    embedding: CountOrZero = 0  # size of a layer before the classifier, 0: none
    embed_norm: Literal["none", "ln-relu"] = "none"

    num_clients: Count = 20
    num_server_rounds: Count = 120
    fraction_train: Share = 0.5
    seed: Seed = 42
    capacity_tiers: str = "0.25,0.5,0.75,1.0"
    capacity_probs: str = "0.25,0.4,0.2,0.15"

    batch_size: Count = 32
    local_epochs: Count = 3
    local_steps: CountOrZero = 0  # 0: as many as local_epochs takes
    lr: Positive = 0.1
    lr_schedule: Literal["constant", "exponential", "cosine"] = "exponential"
    lr_decay: Share = 0.995
    momentum: Decay = 0.9
    weight_decay: NonNegative = 1e-4
    clip_norm: NonNegative = 10.0  # 0: gradients are not clipped
    augment: Literal["none", "crop-flip"] = "none"

    evaluate: Literal["central", "federated"] = "central"  # by the server, or by each client
    test_fraction: Fraction = 0.2  # of a client's examples, where it has no test set of its own
    evaluate_every: CountOrZero = 1  # 0: after the last round alone, which always is
    evaluate_examples: CountOrZero = 0  # 0: all, which the last round always takes
    vote_tie: Literal["smallest", "prob"] = "smallest"  # of classes with as many clients' votes
    checkpoint_every: CountOrZero = 10  # 0: as the run starts and ends alone
    results_dir: str = ""
    resume: bool = False
    queries: str = ""  # image files, or folders of them, for a run that routes to answer

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    client_cpus: Count = 1
    client_gpus: NonNegative = 0.0
    round_timeout: Positive = 3600.0
    node_timeout: Positive = 120.0
    min_replies: Count = 1
    max_empty_rounds: Count = 3
    max_update_norm: NonNegative = 0.0  # of what a client returns less what it was sent; 0: any
    max_update_norm_mode: Literal["drop", "clip"] = "drop"

    fedprox: FedProxOptions = field(default_factory=FedProxOptions)
    scaffold: ScaffoldOptions = field(default_factory=ScaffoldOptions)
    heterofl: HeteroFlOptions = field(default_factory=HeteroFlOptions)
    fjord: FjordOptions = field(default_factory=FjordOptions)
    fedrolex: FedRolexOptions = field(default_factory=FedRolexOptions)
    uniform: UniformOptions = field(default_factory=UniformOptions)
    random_budget: RandomBudgetOptions = field(default_factory=RandomBudgetOptions)
    has_fl: HasFlOptions = field(default_factory=HasFlOptions)
    dual: DualOptions = field(default_factory=DualOptions)
    privacy: PrivacyOptions = field(default_factory=PrivacyOptions)
    fedavg_ft: FedAvgFtOptions = field(default_factory=FedAvgFtOptions)
    ditto: DittoOptions = field(default_factory=DittoOptions)
    ifca: IfcaOptions = field(default_factory=IfcaOptions)
    fedbabu: FedBabuOptions = field(default_factory=FedBabuOptions)
    fedem: FedEmOptions = field(default_factory=FedEmOptions)
    fedgmm: FedGmmOptions = field(default_factory=FedGmmOptions)
    routing: RoutingOptions = field(default_factory=RoutingOptions)
    fedspm: FedSpmOptions = field(default_factory=FedSpmOptions)

    def __post_init__(self) -> None:
        """Check what no type hint can say."""
        check_forms(self.dataset, self.model)
        if self.strategy == "scaffold":
            check_plain_sgd(self.momentum, self.weight_decay, self.scaffold)
        if self.personal:
            known_owners = self.federated_evaluation
            check_mixture(
                self.strategy, self.dataset, self.partition, self.norm, known_owners=known_owners
            )
        if self.strategy == "ifca":
            check_clusters(self.ifca.clusters, self.num_clients)
        check_bridge(self.fedspm.bridge_every, self.fraction_train)
        if self.federated_evaluation and self.norm == "sbn":
            remedy = (
                "keeps no statistics: the server makes them of all clients' training examples,"
                " which it lacks with evaluate = 'federated'; use gn, bn or none"
            )
            raise FedhetError("norm", self.norm, remedy)
        if OWN in (self.partition, self.dataset):
            check_own(self.dataset, self.partition, self.evaluate)
            check_simulated(self.heterofl.masked_classifier, self.has_fl.estimator)
            if len(self.facts.input_shape) == 1 and self.augment != "none":
                remedy = "changes images, and the run takes rows of numbers; leave it out"
                raise FedhetError("augment", self.augment, remedy)
        check_update_limit(self.strategy, self.max_update_norm, self.max_update_norm_mode)
        check_privacy(self.strategy, self.privacy, self.max_update_norm)
        check_cohort(self.cohort_size, self.fraction_train, self.num_clients, self.min_replies)
        check_capacities(self.capacity_tiers, self.capacity_probs)

    @property
    def clients_own(self) -> bool:
        """Whether each client's data are its own, and the server has none."""
        return self.partition == OWN

    @property
    def facts(self) -> Facts:
        """What the clients' own data must be.

        Raises:
            FedhetError: The options do not say it, or contradict each other.
        """
        return facts_of(
            self.dataset,
            input_shape=self.input_shape,
            num_classes=self.num_classes,
            class_names=self.class_names,
            image_size=self.image_size,
        )

    @property
    def federated_evaluation(self) -> bool:
        """Whether the clients measure, each on examples of its own."""
        return self.evaluate == "federated"

    @property
    def tiers(self) -> tuple[float, ...]:
        """The capacities that occur, ascending: largest widths a client can train."""
        return parse_list("capacity-tiers", self.capacity_tiers)

    @property
    def probs(self) -> tuple[float, ...]:
        """The probability of each tier."""
        return parse_list("capacity-probs", self.capacity_probs)

    @property
    def cohort_size(self) -> int:
        """The number of clients that train in a round; halves round up."""
        return int(self.fraction_train * self.num_clients + 0.5)

    @property
    def routes(self) -> bool:
        """Whether the server chooses a client for each query."""
        return self.strategy in ROUTING_METHODS

    @property
    def personal(self) -> bool:
        """Whether clients predict with models of their own."""
        return self.routes or self.strategy in VOTING_METHODS

    @property
    def components(self) -> int:
        """The number C of components in each client's mixture; FedDRM is FedSPM with one."""
        return self.fedspm.components if self.strategy == "fedspm" else 1

    def measures_bridge(self, server_round: int) -> bool:
        """Whether a round's bridge errors are measured."""
        every = self.fedspm.bridge_every
        return every > 0 and server_round % every == 0

    @property
    def too_short_to_adapt(self) -> bool:
        """Whether an adaptive strategy would end before its first adaptation: worth a warning."""
        cadences = {"has-fl": self.has_fl, "random-budget": self.random_budget}
        cadence = cadences.get(self.strategy)
        if cadence is self.random_budget and self.random_budget.mode == "permute":
            return False  # it adapts when the run that it permutes did
        return cadence is not None and cadence.first_adaptation > self.num_server_rounds

    @property
    def may_diverge(self) -> bool:
        """Whether the run is there to show a divergence."""
        return self.strategy == "scaffold" and self.scaffold.allow_momentum

    def lr_at(self, server_round: int) -> float:
        """Return the learning rate of a round, counted from 1, constant within it."""
        elapsed = server_round - 1
        match self.lr_schedule:
            case "constant":
                return self.lr
            case "exponential":
                return self.lr * self.lr_decay**elapsed
            case "cosine":
                return 0.5 * self.lr * (1 + math.cos(math.pi * elapsed / self.num_server_rounds))

    def with_nodes(self, num_clients: int) -> "Config":
        """Return this config for another number of clients, checked again."""
        return parse({**self.flat(), "num-clients": num_clients})

    def flat(self) -> dict[str, Scalar]:
        """Return every option by its run-config key: ``parse(config.flat()) == config``."""
        return flatten(self)


def parse(run_config: Mapping[str, Scalar]) -> Config:
    """Read a run config.

    Args:
        run_config: Values by key, as Flower hands them over; a missing key takes its default.

    Raises:
        FedhetError: A key is unknown, a value is of the wrong type or out of range, or several
            make no sense together.
    """
    for key, value in run_config.items():
        if key not in DEFAULTS:
            close = get_close_matches(key, DEFAULTS, cutoff=0.5) or list(DEFAULTS)
            raise FedhetError(key, value, f"unknown key; did you mean {', '.join(close)}?")
    check_alpha(run_config.get("alpha", Config.alpha))
    config = build(Config, run_config)
    check_effects(config.flat(), DEFAULTS)
    return config


DEFAULTS: Mapping[str, Scalar] = Config().flat()

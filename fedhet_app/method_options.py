"""The options that belong to one method each; their keys stand behind the method's name and a dot.

The papers' values are the defaults: HAS-FL and random-budget as in Section 4.1 of the paper on
adaptive sub-models, FedProx with mu = 1, FedSPM's own as in Appendix D.3 of its paper, whose
training options are in its presets. Three groups are of more than one method: ``dual`` of a
partition, ``routing`` of every method that routes queries, ``privacy`` of those that Flower's
wrappers fit.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedhet_app.errors import FedhetError
from fedhet_app.options import (
    Amplitude,
    Count,
    CountOrZero,
    Decay,
    Interval,
    NonNegative,
    Positive,
    Share,
)


@dataclass(frozen=True, kw_only=True)
class FedProxOptions:
    """``mu``: the weight of the proximal term (mu/2) ||w - w^t||^2."""

    mu: NonNegative = 1.0


@dataclass(frozen=True, kw_only=True)
class ScaffoldOptions:
    """Control variates.

    ``weighting`` is what the server averages by: each ``clients`` alike, as published, or their
    ``examples``; ``server_lr`` scales its step; with ``momentum_correction`` the clients divide by
    the steps that momentum makes of K; ``allow_momentum`` runs with momentum uncorrected, which
    diverges.
    """

    weighting: Literal["clients", "examples"] = "clients"
    server_lr: Positive = 1.0
    momentum_correction: bool = False
    allow_momentum: bool = False


@dataclass(frozen=True, kw_only=True)
class HeteroFlOptions:
    """What the published code adds to training every client at its cap.

    With ``masked_classifier`` logits of labels a client lacks are set to 0 in its loss, and their
    rows are averaged over the clients that hold the label; with ``scaler`` the outputs of a
    client's sliced layers are divided by its width while it trains; ``weighting`` is what the
    average goes by.
    """

    masked_classifier: bool = False
    scaler: bool = False
    weighting: Literal["clients", "examples"] = "examples"


@dataclass(frozen=True, kw_only=True)
class FedRolexOptions:
    """``advance``: by how many channels (groups, under group norm) the window rolls in a round."""

    advance: CountOrZero = 1


@dataclass(frozen=True, kw_only=True)
class FjordOptions:
    """``draw``: whether a client's width is drawn for a round or, as published, for each batch.

    With ``distillation`` the drawn width also learns from the client's widest, which takes a draw
    for each batch.
    """

    draw: Literal["round", "batch"] = "round"
    distillation: bool = False

    def __post_init__(self) -> None:
        """Refuse a teacher that no batch would have."""
        if self.distillation and self.draw == "round":
            remedy = "needs fjord.draw = 'batch': the teacher is the widest slice of the same batch"
            raise FedhetError("fjord.distillation", self.distillation, remedy)


@dataclass(frozen=True, kw_only=True)
class UniformOptions:
    """``width``: every client's width, unless its capacity is smaller."""

    width: Share = 0.5


@dataclass(frozen=True, kw_only=True)
class CadenceOptions:
    """When widths adapt: in rounds t > ``warmup`` that are multiples of ``adapt_every``."""

    warmup: CountOrZero = 10
    adapt_every: Count = 5

    @property
    def first_adaptation(self) -> int:
        """The first round, counted from 1, that ends with an adaptation."""
        return (self.warmup // self.adapt_every + 1) * self.adapt_every


@dataclass(frozen=True, kw_only=True)
class RandomBudgetOptions(CadenceOptions):
    """Random widths of a given mean.

    ``budget`` is the mean width to keep; ``match`` names a run directory whose realised mean widths
    take its place; with ``coverage`` the clients of the largest capacity keep their full width.
    In mode ``permute`` the widths of the run named by ``match`` are dealt out anew among clients of
    equal capacity, in the rounds in which that run adapted.
    """

    mode: Literal["scale", "permute"] = "scale"
    budget: Share = 0.52
    match: str = ""
    coverage: bool = True

    def __post_init__(self) -> None:
        """Refuse two sources of the mean width."""
        if self.match and self.budget != RandomBudgetOptions.budget:
            remedy = "random-budget.budget is set as well; set one of the two"
            raise FedhetError("random-budget.match", self.match, remedy)
        if self.mode == "permute" and not self.match:
            remedy = "needs random-budget.match: the directory of the HAS-FL run to permute"
            raise FedhetError("random-budget.mode", self.mode, remedy)
        if self.mode == "permute" and not self.coverage:
            remedy = "has no effect with random-budget.mode = permute; leave one of them out"
            raise FedhetError("random-budget.coverage", self.coverage, remedy)


@dataclass(frozen=True, kw_only=True)
class HasFlOptions(CadenceOptions):
    """HAS-FL's allocation p = min(cap, p_min + gamma * H / mean(H)).

    ``estimator`` says how H is measured (see ``submodel.divergence``); ``oracle-tv`` takes the true
    distance of the labels instead, neither smoothed nor normalised: no deployment knows it, it is
    the positive control of an audit.
    ``beta`` is the moving average's memory of H; ``normalise_every`` is the number of rounds after
    which H is divided by its mean; with ``coverage`` the clients of the largest capacity keep their
    full width.
    """

    estimator: Literal["paper", "leave-one-out", "common-core", "oracle-tv"] = "paper"
    p_min: Share = 0.4
    gamma: NonNegative = 0.25
    beta: Decay = 0.9
    normalise_every: Count = 20
    coverage: bool = True

    def __post_init__(self) -> None:
        """Refuse a normalisation that would fall between two adaptations."""
        if self.normalise_every % self.adapt_every:
            remedy = f"must be a multiple of has-fl.adapt-every = {self.adapt_every}"
            raise FedhetError("has-fl.normalise-every", self.normalise_every, remedy)


@dataclass(frozen=True, kw_only=True)
class DualOptions:
    """Dual heterogeneity, ``partition = "dual"``: clients that differ, of components that differ.

    ``alpha_inter`` and ``alpha_intra`` are the Dirichlet concentrations of the labels over clients
    and of the components within one; ``amplitude`` is the strength of a client's tint and shading
    in units of the whole brightness range; ``examples`` is the number of images to take of the
    merged training and test sets, 0 for all; with ``fine`` a data set of superclasses is dealt out
    by its fine classes.
    """

    alpha_inter: Positive = 1.0
    alpha_intra: Positive = 2.0
    amplitude: Amplitude = 0.2
    examples: CountOrZero = 0
    fine: bool = True


@dataclass(frozen=True, kw_only=True)
class RoutingOptions:
    """The routing half of FedDRM and FedSPM.

    ``encoder`` and ``embedding`` are the network h and the size d of what it puts out; ``steps``,
    ``momentum`` and ``lr`` (0: the run's) are those of the density ratio block, whose learning rate
    follows the run's schedule; with ``prior`` a query's client is chosen by share of the examples
    times density, else by density alone.
    """

    encoder: Literal["small", "lenet"] = "small"
    embedding: Count = 32
    steps: Count = 15
    momentum: Decay = 0.95
    lr: NonNegative = 0.0
    prior: bool = True


@dataclass(frozen=True, kw_only=True)
class FedSpmOptions:
    """The mixture.

    ``components`` is C; ``encoders`` are shared by all components (1x in the paper) or each has its
    own (Cx); ``init`` draws heads and density ratios for each component anew or gives all the same,
    which never separates; with ``init_w`` = kmeans, an extension, responsibilities are each
    client's k-means clusters for ``init_rounds`` rounds; ``bridge_every`` is the number of rounds
    between two measurements of the bridge errors (Appendix D.4), 0 for none, in a simulation alone.
    """

    components: Count = 3
    encoders: Literal["shared", "per-component"] = "shared"
    init: Literal["random", "identical"] = "random"
    init_w: Literal["random", "kmeans"] = "random"
    init_rounds: Count = 10
    bridge_every: CountOrZero = 0


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """Flower's differential privacy; models are protected, and neither losses nor counts.

    ``mode`` says who shortens updates to the norm ``clipping_norm`` and who adds noise: with
    ``client-fixed`` the clients shorten, with ``server-fixed`` the server, and the server adds
    noise of deviation noise_multiplier * clipping_norm / m to the plain mean of m updates; with
    ``local`` each client shortens and adds noise for (``epsilon``, ``delta``) in each round, by a
    formula that is proven for epsilon < 1. Over rounds they add up.
    """

    mode: Literal[
        "none", "client-fixed", "server-fixed", "local", "client-adaptive", "server-adaptive"
    ] = "none"
    clipping_norm: Positive = 1.0
    noise_multiplier: NonNegative = 1.0
    epsilon: Positive = 1.0
    delta: Annotated[float, Interval(0, 1, open_low=True, open_high=True)] = 1e-5

    def __post_init__(self) -> None:
        """Refuse what Flower has and does wrong."""
        if self.mode.endswith("-adaptive"):
            remedy = (
                "Flower 1.42 lowers the norm where too many updates are clipped, until all are, "
                "and makes noise for another norm than it clips to; use client- or server-fixed"
            )
            raise FedhetError("privacy.mode", self.mode, remedy)

    @property
    def central(self) -> bool:
        """Whether the server adds the noise."""
        return self.mode in ("client-fixed", "server-fixed")


@dataclass(frozen=True, kw_only=True)
class FedAvgFtOptions:
    """Fine-tuning of the whole global model before it predicts.

    ``epochs`` over a client's examples at the constant learning rate ``lr``: the run's own has come
    down to nothing by then.
    """

    epochs: Count = 1
    lr: Positive = 0.01


@dataclass(frozen=True, kw_only=True)
class DittoOptions:
    """``lam`` is lambda, the weight of the proximal term of the personal model.

    ``budget`` says what the personal steps come out of: ``shared`` gives half of the local steps to
    each of the two models, ``added`` takes as many again.
    """

    lam: NonNegative = 1.0
    budget: Literal["shared", "added"] = "shared"


@dataclass(frozen=True, kw_only=True)
class IfcaOptions:
    """``clusters`` is the number of models, C."""

    clusters: Count = 3


@dataclass(frozen=True, kw_only=True)
class FedBabuOptions:
    """Fine-tuning before a model predicts: of its ``head`` alone, or ``full``."""

    finetune: Literal["head", "full"] = "head"
    epochs: Count = 1
    lr: Positive = 0.01


@dataclass(frozen=True, kw_only=True)
class FedEmOptions:
    """``components`` is C, the number of shared models that each client mixes."""

    components: Count = 3


@dataclass(frozen=True, kw_only=True)
class FedGmmOptions:
    """Shared Gaussians over routing features, and shared classifiers.

    ``gaussians`` is M1, ``components`` is M2; ``dimensions`` is the size that the features are
    projected to; ``epsilon`` is added to the diagonal of every covariance. ``features`` names the
    directory of a finished run of FedSPM or FedDRM on the same data, whose routing encoder gives
    the features; without one the encoder is as it is drawn.
    """

    gaussians: Count = 3
    components: Count = 3
    dimensions: Count = 16
    features: str = ""
    epsilon: Positive = 0.1
    covariance: Literal["full", "diagonal"] = "full"

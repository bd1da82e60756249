"""The options that belong to one method each; their keys stand behind the method's name and a dot.

The papers' values are the defaults: HAS-FL and random-budget as in Section 4.1 of the paper on
adaptive sub-models, FedProx with mu = 1.
"""

from dataclasses import dataclass

from fedhet_app.errors import FedhetError
from fedhet_app.options import Count, CountOrZero, Decay, NonNegative, Share


@dataclass(frozen=True, kw_only=True)
class FedProxOptions:
    """``mu``: the weight of the proximal term (mu/2) ||w - w^t||^2."""

    mu: NonNegative = 1.0


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
    """

    budget: Share = 0.52
    match: str = ""
    coverage: bool = True

    def __post_init__(self) -> None:
        """Refuse two sources of the mean width."""
        if self.match and self.budget != RandomBudgetOptions.budget:
            remedy = "random-budget.budget is set as well; set one of the two"
            raise FedhetError("random-budget.match", self.match, remedy)


@dataclass(frozen=True, kw_only=True)
class HasFlOptions(CadenceOptions):
    """HAS-FL's allocation p = min(cap, p_min + gamma * H / mean(H)).

    ``beta`` is the moving average's memory of H; ``normalise_every`` is the number of rounds after
    which H is divided by its mean; with ``coverage`` the clients of the largest capacity keep their
    full width.
    """

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

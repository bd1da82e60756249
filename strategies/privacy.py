"""Flower's differential privacy around a strategy: its wrappers, and what stands before them.

A run that asks for it is started through `Private`. It hands Flower's wrapper only the replies
that pass every check, since the wrapper itself skips the round for one error and raises for one
odd shape; what it sets aside comes back behind the wrapper, so that each reply is checked, named
and counted as in every other run. Updates are averaged with equal weights, and the wrapper is told
how many there are: the noise is z * S / m for m updates of norm at most S, as Flower has it.

Deviations:
    1. Flower has a fixed m, the cohort's size, and with fewer replies too little noise.
    2. A client that was told to clip and did not is dropped; so is an update of exactly zero, by
       whose norm Flower divides.
    3. Flower's privacy accountant takes no strategy but its own FedAvg and is not used; nor is its
       secure aggregation, which 1.42 has for its older strategies alone.

The noise comes from NumPy's global generator, which the system seeds: who knew the seed could take
it off again. A run with noise is therefore not reproducible, nor is a resumed one the same.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedhet_app import wire
from fedhet_app.errors import FedhetError
from fedhet_app.task import Task
from fedhet_app.wire import Rejection
from strategies.around import Around
from strategies.limits import UpdateLimit

if TYPE_CHECKING:
    from strategies.base import RoundStrategy

_MEASURABLE = (1e-18, 1e18)
"""Norms whose squares float32 can hold, in which Flower measures them."""
_ROUNDING = (1e-3, 1e-6)
"""How far a clipped update may be above its norm: by share of it, and of the model's."""


class _Inside(Around):
    """Stands between Flower's wrapper and the strategy, which gets every reply back."""

    set_aside: list[Message]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what the wrapper hands on, and book what it never saw."""
        return self.strategy.aggregate_train(server_round, [*replies, *self.set_aside])


class Private(Around):
    """A strategy with one of Flower's wrappers around it.

    Args:
        strategy: Averages whole models; its limit of updates is set here.
    """

    def __init__(self, strategy: "RoundStrategy") -> None:
        self._inner, self._inside = strategy, _Inside(strategy)
        options, (least, most) = strategy.config.privacy, _MEASURABLE
        self._on_clients = options.mode == "client-fixed"
        wrapper = (
            DifferentialPrivacyClientSideFixedClipping
            if self._on_clients
            else DifferentialPrivacyServerSideFixedClipping
        )
        self._flower = wrapper(
            self._inside,
            options.noise_multiplier,
            options.clipping_norm,
            strategy.config.cohort_size,
        )
        super().__init__(self._flower)
        strategy.limit = UpdateLimit(most=most, least=least, name="what Flower can clip")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let Flower tell the clients what to clip to, and hold them to it."""
        if self._on_clients:
            share, of_model = _ROUNDING
            model = np.linalg.norm(np.asarray(wire.unpack(arrays), dtype=np.float64))
            most = self._flower.clipping_norm * (1 + share) + of_model * float(model)
            self._inner.limit.most, self._inner.limit.name = most, "what it was to clip to"
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, average and add noise, where enough replies can be used."""
        usable, others = self._sorted(list(replies))
        if len(usable) < self._inner.config.min_replies:
            return self._inner.aggregate_train(server_round, [*usable, *others])
        self._inside.set_aside = others
        self._flower.num_sampled_clients = len(usable)
        arrays, metrics = super().aggregate_train(server_round, usable)
        spread = self._flower.noise_multiplier * self._flower.clipping_norm / len(usable)
        self._inner.round.row["noise-deviation"] = spread
        return arrays, metrics

    def _sorted(self, replies: list[Message]) -> tuple[list[Message], list[Message]]:
        """Return the replies that pass every check, in the order of the messages; the others."""
        answers = wire.by_request(replies)
        usable = []
        for sent in self._inner.round.sent:
            said = answers.get(sent.message.metadata.message_id, [])
            try:
                self._inner.usable(sent, said)
            except Rejection:
                continue
            usable += said
        chosen = set(map(id, usable))
        return usable, [reply for reply in replies if id(reply) not in chosen]


def wrapped(strategy: "RoundStrategy") -> "Private | RoundStrategy":
    """Return what to start: the strategy itself where the server has no part in privacy."""
    return Private(strategy) if strategy.config.privacy.central else strategy


def check_private(task: Task) -> None:
    """Refuse networks that noise would spoil.

    Raises:
        FedhetError: Running statistics travel with the parameters.
    """
    slicer, mode = task.slicer, task.config.privacy.mode
    if mode != "none" and slicer.size != slicer.num_params(1.0):
        remedy = "noise would make running variances negative; set norm = gn or none"
        raise FedhetError("privacy.mode", mode, remedy)

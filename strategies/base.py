"""What every server half shares: cohorts, checked replies, rows, evaluation, checkpoints."""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedhet_app import checkpoint, wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.client_state import StateNote
from fedhet_app.config import Config
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunWriter
from fedhet_app.seeding import rng_for
from fedhet_app.wire import Rejection, TrainReply
from strategies.client_states import ClientStates
from strategies.federated_evaluation import Asked, ask, columns, hear, with_columns
from strategies.federation import Federation
from strategies.limits import UpdateLimit
from strategies.roster import Roster
from strategies.totals import Totals
from strategies.watched_grid import WatchedGrid

LOG = logging.getLogger("fedhet")


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A slice that is out with a client.

    Attributes:
        index: Its coordinates in the global vector; ``None`` for all of them.
        size: Its number of floats.
    """

    message: Message
    partition: int
    width: float
    index: NDArray[np.int64] | None
    size: int


Accepted = list[tuple[Sent, TrainReply]]


@dataclass(kw_only=True)
class Round:
    """What the current round has gathered so far."""

    number: int
    began: float = field(default_factory=time.perf_counter)
    mark: float = field(default_factory=time.perf_counter)
    sent: list[Sent] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=lambda: {"upload-bytes": 0, "rejected": []})
    clients: list[dict[str, Any]] = field(default_factory=list)

    def end_phase(self, phase: str) -> None:
        """Book the seconds since the last phase ended."""
        now = time.perf_counter()
        name = f"seconds-{phase}"
        self.row[name] = self.row.get(name, 0.0) + now - self.mark
        self.mark = now


class RoundStrategy(Strategy):
    """The part of a Flower strategy that does not depend on the method.

    Args:
        config: The configuration for the nodes that are there.
        federation: Profiles and capacities.
        writer: The run directory.
        resumed: Where to continue, or ``None``.

    Attributes:
        keeps_state: Whether the method's clients keep something from round to round.
    """

    keeps_state: ClassVar[bool] = False

    def __init__(
        self,
        *,
        config: Config,
        federation: Federation,
        writer: RunWriter,
        resumed: Checkpoint | None,
    ) -> None:
        self.config, self.federation, self.writer = config, federation, writer
        self.first_round = resumed.server_round if resumed else 0
        self.totals = Totals(**resumed.counters) if resumed else Totals()
        self.round = Round(number=self.first_round)
        self.reply_extras: dict[str, int] = {}
        self.states = (
            ClientStates(writer.directory, len(federation.profiles), resumed)
            if self.keeps_state
            else None
        )
        self.limit = UpdateLimit.of(config)
        self.started: Strategy = self
        self.record = ArrayRecord()
        self.roster = Roster(config, federation)
        self.asked: list[Asked] = []

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the server has learnt, for a checkpoint; the caller keeps references."""

    @abstractmethod
    def measure(self) -> dict[str, Any]:
        """Return the evaluation columns of a round's row."""

    @abstractmethod
    def write_model(self) -> None:
        """Write the final model, and what it costs where that depends on the client."""

    def adopt(self, arrays: ArrayRecord) -> None:
        """Take over what a wrapper of Flower's made of the round's average."""

    def run(self, grid: WatchedGrid) -> None:
        """Run the rounds that are left; on any way out the last whole round is checkpointed."""
        self.grid = grid
        rounds = self.config.num_server_rounds - self.first_round
        if rounds <= 0:
            return
        self._checkpoint = self._snapshot()
        self._save()
        try:
            self.started.start(
                grid=grid,
                initial_arrays=self.record,
                num_rounds=rounds,
                timeout=self.config.round_timeout,
                evaluate_fn=self._finish_round,
            )
        finally:
            self._save_if_possible()

    def _save_if_possible(self) -> None:
        """Write the checkpoint; where that fails the run goes on with the one on disk."""
        try:
            self._save()
        except FedhetError as error:
            number, kept = self._checkpoint.server_round, self.saved.server_round
            LOG.warning(
                "no checkpoint of round %d, that of round %d stays: %s", number, kept, error
            )

    def _save(self) -> None:
        """Write the checkpoint of the last whole round; ``saved`` is the one on disk."""
        checkpoint.save(self.writer.directory, self._checkpoint)
        self.saved = self._checkpoint

    @property
    def in_last_round(self) -> bool:
        """Whether the current round is the run's last."""
        return self.round.number == self.config.num_server_rounds

    @property
    def evaluation_due(self) -> bool:
        """Whether the current round is one that is measured."""
        every = self.config.evaluate_every
        return self.in_last_round or (every > 0 and self.round.number % every == 0)

    @property
    def examples_to_measure(self) -> int:
        """The size of the part of the test set to measure on; 0 for all, as in the last round."""
        return 0 if self.in_last_round else self.config.evaluate_examples

    def summary(self) -> None:
        """Log what is about to run, as Flower asks of a strategy."""
        caps = self.federation.caps
        LOG.info("%s: %d clients, mean capacity %.3f", self.config.strategy, len(caps), caps.mean())

    def warn_of_capacities(self, widths: NDArray[np.float64]) -> None:
        """Warn of nodes that name a capacity below the width they are sent, shape ``(N,)``."""
        named = [
            p.capacity for p in self.federation.profiles if 0 < p.capacity < widths[p.partition]
        ]
        if named:
            LOG.warning(
                "%d of %d nodes name a capacity (the least is %g) below what %s trains on them",
                *(len(named), len(widths), min(named), self.config.strategy),
            )

    def cohort(self, number: int) -> list[int]:
        """Return the partition ids of a round's clients, ascending, uniform without replacement."""
        rng = rng_for(self.config.seed, "sample", number)
        clients = len(self.federation.profiles)
        return sorted(rng.choice(clients, size=self.config.cohort_size, replace=False).tolist())

    def most_work_first(self, sent: list[Sent]) -> list[Message]:
        """Return the messages in the order that keeps parallel workers busy to the end."""
        profiles = self.federation.profiles
        ordered = sorted(
            sent, key=lambda s: (-profiles[s.partition].examples * s.size, s.partition)
        )
        return [each.message for each in ordered]

    def accept(self, replies: Iterable[Message], *, least: int | None = None) -> Accepted:
        """Return usable replies in the order of partition ids; name and count the others.

        A round of several exchanges calls it after each: bytes and dropped replies add up.

        Args:
            replies: What came.
            least: With fewer usable ones there are none; ``min-replies`` where it is not given.
        """
        number, row = self.round.number, self.round.row
        answers = wire.by_request(replies)
        accepted, rejected = [], []
        for sent in self.round.sent:
            said = answers.get(sent.message.metadata.message_id, [])
            try:
                accepted.append((sent, self.usable(sent, said)))
            except Rejection as rejection:
                rejected.append({"partition": sent.partition, "reason": str(rejection)})
                LOG.warning("round %d: client %d dropped: %s", number, sent.partition, rejection)
        row["replies"] = len(accepted)
        if len(accepted) < (self.config.min_replies if least is None else least):
            accepted = []
        came = [reply for said in answers.values() for reply in said if reply.has_content()]
        row["upload-bytes"] += sum(wire.record_bytes(reply.content) for reply in came)
        row["rejected"] += rejected
        row["local-steps"] = sum(reply.steps for _, reply in accepted)
        examples = sum(reply.examples for _, reply in accepted)
        losses = sum(reply.loss * reply.examples for _, reply in accepted)
        row["train-loss"] = losses / examples if examples else None
        return accepted

    def request_extras(self, partition: int) -> Mapping[str, ArrayRecord]:
        """Return what else a client is sent beside its vector, by name."""
        return {}

    def note(self, partition: int) -> StateNote | None:
        """Return what a client must know of its state, for methods with one."""
        return self.states.note(partition, self.saved) if self.states else None

    def count_states(self, accepted: Accepted) -> None:
        """Let the states count of the clients whose replies did."""
        if self.states:
            self.states.accept((sent.partition for sent, _ in accepted), self.round.number)

    def usable(self, sent: Sent, answers: Sequence[Message]) -> TrainReply:
        """Return what a client replied, where every check is passed and the update not too long.

        Raises:
            Rejection: It cannot be used.
        """
        reply = self.read(sent, wire.only_answer(sent.message, answers))
        if reply.begun_anew:
            self.round.row.setdefault(wire.BEGUN_ANEW, []).append(sent.partition)
            LOG.warning(
                "round %d: the state of client %d was gone; it began anew",
                *(self.round.number, sent.partition),
            )
        return self.limit.apply(reply, self.trained_from(sent, reply), self.round.row)

    def trained_from(self, sent: Sent, reply: TrainReply) -> NDArray[Any] | None:
        """Return what the client's vector was before it trained; ``None`` if it is no model."""
        if sent.message.metadata.message_type == wire.E_STEP:
            return None
        return wire.unpack(sent.message.content.array_records[wire.ARRAYS])[: sent.size]

    def extras_of(self, sent: Sent) -> dict[str, int]:
        """Return what else a client returns beside its vector, by name with its size."""
        return self.reply_extras

    def read(self, sent: Sent, reply: Message | None) -> TrainReply:
        """Return a reply that passes every check.

        Raises:
            Rejection: It does not, or there is none.
        """
        if reply is None or wire.is_expired(reply):
            here = self.roster.is_present(sent.partition)
            silent = f"no reply within {self.config.round_timeout:g} s"
            raise Rejection(silent if here else "its node is not connected")
        profile = self.federation.profiles[sent.partition]
        return wire.read_reply(
            reply,
            server_round=self.round.number,
            size=sent.size,
            profile=profile,
            extras=self.extras_of(sent),
        )

    def _finish_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate where due, write the rows, checkpoint where due (Flower's ``evaluate_fn``)."""
        if server_round == 0:
            self.roster.renew(self.grid, self.first_round + 1)
            return None
        self.adopt(arrays)
        current, config = self.round, self.config
        if self.evaluation_due and not config.federated_evaluation:
            current.row |= self.measure()
            self._check_loss()
        current.end_phase("evaluation")
        current.row["seconds"] = current.mark - current.began
        self.totals.add(current.row)
        self.writer.write_round(current.row, current.clients)
        self._checkpoint = self._snapshot()
        if config.checkpoint_every and current.number % config.checkpoint_every == 0:
            self._save_if_possible()
        self._check_progress()
        if not self.in_last_round:
            self.roster.renew(self.grid, current.number + 1)
        shown = ("accuracy", "loss", "train-loss", "mean-width")
        return MetricRecord({k: current.row[k] for k in shown if current.row.get(k) is not None})

    def _check_loss(self) -> None:
        """Warn of a loss that is not finite, which JSON cannot hold."""
        row = self.round.row
        if not math.isfinite(row["loss"]):
            LOG.warning(
                "round %d: the global model's loss is %s; lower lr", row["round"], row["loss"]
            )
            row["loss"] = None

    def _check_progress(self) -> None:
        limit = self.config.max_empty_rounds
        if self.totals.empty_streak >= limit:
            reasons = list(dict.fromkeys(each["reason"] for each in self.round.row["rejected"]))
            diverged = all(wire.DIVERGED in reason for reason in reasons)
            status = "diverged" if diverged else "failed"
            self.writer.write_summary(self.totals.summary(self.config, status))
            said = "; ".join(reasons[:3]) or "no round had min-replies of them"
            remedy = f"that many rounds in a row had no usable reply; in the last: {said}"
            raise FedhetError("max-empty-rounds", limit, remedy)

    def _snapshot(self) -> Checkpoint:
        states = self.states.arrays() if self.states else {}
        return Checkpoint(
            server_round=self.round.number,
            arrays={**self.arrays(), **states},
            counters=asdict(self.totals),
        )

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Let the clients measure where they do, in rounds that are due."""
        self.asked = []
        if self.config.federated_evaluation and self.evaluation_due:
            self.adopt(arrays)
            self.asked = ask(self.federation, self._to_measure, self.config.round_timeout)
        return [each.message for each in self.asked]

    def _to_measure(self, partition: int) -> tuple[RecordDict, float]:
        record, width = self.to_measure(partition)
        note = self.note(partition)
        return wire.train_content(record, self.round.number, width, note=note), width

    def to_measure(self, partition: int) -> tuple[ArrayRecord, float]:
        """Return what a client measures, and its width."""
        return self.record, 1.0

    def aggregate_evaluate(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Put what the clients measured into the round's rows."""
        if not self.asked:
            return None
        current, number = self.round, self.round.number
        found, rejected = hear(self.federation, self.asked, replies, number)
        sent = sum(wire.record_bytes(each.message.content) for each in self.asked)
        current.row["rejected"] += rejected
        current.row |= {"evaluation-bytes": sent, **columns(found)}
        current.clients = with_columns(current.clients, found, self.federation, number)
        if not found:
            LOG.warning("round %d: no client measured the model", number)
        return None

"""One round of sub-model training (Paper A, Algorithm 1): slice, send, average, adapt.

Everything but the widths, which an `Allocation` decides. With all widths at 1 the round is FedAvg
(McMahan et al. 2017, Algorithm 1).
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet_app import wire
from fedhet_app.checkpoint import Checkpoint
from fedhet_app.results import RunWriter
from fedhet_app.submodel.aggregation import Aggregate, Update, aggregate
from fedhet_app.submodel.layout import unflatten
from fedhet_app.task import Task
from fedhet_app.wire import TrainReply
from strategies.allocation import Allocation, Columns, Outcome
from strategies.base import Accepted, Round, RoundStrategy, Sent
from strategies.coverage import Coverage, untrained_changed
from strategies.federation import Federation
from strategies.measure import measure, stale
from strategies.privacy import wrapped


class SubmodelStrategy(RoundStrategy):
    """Server half of every method whose clients train slices of one network.

    Args:
        task: Data and network for the nodes that are there.
        federation: Profiles and capacities.
        allocation: Decides widths.
        writer: The run directory.
        resumed: Where to continue, or ``None``.
    """

    def __init__(
        self,
        *,
        task: Task,
        federation: Federation,
        allocation: Allocation,
        writer: RunWriter,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(config=task.config, federation=federation, writer=writer, resumed=resumed)
        self.task, self.allocation = task, allocation
        state = dict(resumed.arrays) if resumed else {}
        initial = task.initial_vector()
        trained = state.pop("trained", None)
        self.started = wrapped(self)
        self.settings = ConfigRecord()
        self.coverage = Coverage(task.slicer, initial, trained, allocation.advance)
        self.vector: NDArray[np.float32] = state.pop("vector") if resumed else initial
        if resumed:
            allocation.restore(state)
        self.record = wire.pack(self.vector)

    def summary(self) -> None:
        """Log what is about to run."""
        super().summary()
        self.warn_of_capacities(self.allocation.reach(self.first_round + 1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return global vector, coverage and the allocation's state."""
        return {
            "vector": self.vector,
            "trained": self.coverage.trained,
            **self.allocation.state(),
        }

    def adopt(self, arrays: ArrayRecord) -> None:
        """Take over what a wrapper of Flower's made of the round's average."""
        if arrays is not self.record:
            self.record, self.vector = arrays, np.asarray(wire.unpack(arrays), dtype=np.float32)

    def measure(self) -> dict[str, Any]:
        """Evaluate the global model and its slices on the central test set, or a part of it."""
        examples = self.examples_to_measure
        row = measure(self.task, self.vector, self.federation.caps, examples=examples)
        row["unmoved"] = self.coverage.unmoved(self.vector)
        if self.in_last_round and self.round.row["uncovered"]:
            reach = self.allocation.reach(self.round.number + 1)
            row["stale"] = stale(self.task, self.vector, float(reach.max()))
        return row

    def to_measure(self, partition: int) -> tuple[ArrayRecord, float]:
        """Return the slice that a client can run, or that it is given where that is wider."""
        reach = self.allocation.reach(self.round.number)
        width = float(max(self.federation.caps[partition], reach[partition]))
        index = self.task.slicer.index(width)
        return (self.record if index is None else wire.pack(self.vector[index])), width

    def write_model(self) -> None:
        """Write the global model, and what each tier's slice costs."""
        # Imported here: counting loads much of torch that training does without.
        from fedhet_app.submodel.cost import cost_table

        task = self.task
        widths = sorted({*task.config.tiers, 1.0})
        self.writer.write_cost(asdict(cost) for cost in cost_table(task.builder, task.spec, widths))
        tensors = unflatten(task.slicer.layout(1.0), self.vector)
        self.writer.write_model(tensors, {"width": "1.0"})

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Sample clients and send each its slice (lines 5-7), the most work first."""
        number = server_round + self.first_round
        self.settings = config
        self.round = Round(number=number, began=self.round.mark)
        cohort, widths = self.cohort(number), self.allocation.widths(number)
        sent = self.round.sent = self._slices(number, cohort, widths)
        self.round.row |= {
            "round": number,
            "lr": self.config.lr_at(number),
            "mean-width": float(widths[cohort].mean()),
            "allocated-mean-width": float(widths.mean()),
            "download-bytes": sum(wire.record_bytes(each.message.content) for each in sent),
        }
        return self.most_work_first(sent)

    def _slices(self, number: int, cohort: list[int], widths: NDArray[np.float64]) -> list[Sent]:
        slicer, records, sent = self.task.slicer, {}, []
        shift = self.allocation.shift(number)
        for partition in cohort:
            width = float(widths[partition])
            index = slicer.index(width, shift)
            if width not in records:
                records[width] = self.record if index is None else wire.pack(self.vector[index])
            message = Message(
                wire.train_content(
                    records[width],
                    number,
                    width,
                    extras=self.request_extras(partition),
                    note=self.note(partition),
                    settings=self.settings,
                ),
                dst_node_id=self.federation.nodes[partition],
                message_type=wire.TRAIN,
                ttl=self.config.round_timeout,
            )
            size = slicer.size if index is None else len(index)
            sent.append(
                Sent(message=message, partition=partition, width=width, index=index, size=size)
            )
        return sent

    def update(self, sent: Sent, reply: TrainReply) -> Update:
        """Return how one client's reply enters the average; alike where noise is made for that."""
        weight = 1.0 if self.config.privacy.central else float(reply.examples)
        return Update(index=sent.index, values=reply.vector, weight=weight)

    def step(self, after: Aggregate, accepted: Accepted) -> Aggregate:
        """Return the server's step, which is the average; also where a round has no replies."""
        return after

    def aggregate_train(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average each coordinate over those who trained it (lines 17-19), then adapt (20-31)."""
        current = self.round
        current.end_phase("training")
        accepted = self.accept(replies)
        updates = [self.update(sent, reply) for sent, reply in accepted]
        after = self.step(aggregate(self.vector, updates), accepted)
        self.count_states(accepted)
        columns = self.allocation.observe(
            Outcome(
                server_round=current.number,
                partitions=[sent.partition for sent, _ in accepted],
                updates=updates,
                before=self.vector,
                after=after,
            )
        )
        current.clients = self._client_rows(accepted, columns)
        reach = self.allocation.reach(current.number + 1)
        covered = after.covered
        current.row |= self.coverage.update(reach, covered)
        current.row["untrained-changed"] = untrained_changed(self.vector, after.vector, covered)
        if accepted:
            self.vector, self.record = after.vector, wire.pack(after.vector)
        current.end_phase("aggregation")
        return (self.record, None) if accepted else (None, None)

    def _client_rows(self, accepted: Accepted, columns: Columns) -> list[dict[str, Any]]:
        """Return a row per client that trained; after an adaptation, one for each of the others."""
        replies = {sent.partition: (sent, reply) for sent, reply in accepted}
        adapted = "allocated-width" in columns
        rows = []
        for profile in self.federation.profiles:
            partition = profile.partition
            if not adapted and partition not in replies:
                continue
            row: dict[str, Any] = {
                "round": self.round.number,
                "partition": partition,
                "examples": profile.examples,
                "capacity": float(self.federation.caps[partition]),
                "trained": partition in replies,
            }
            if partition in replies:
                sent, reply = replies[partition]
                row |= {"width": sent.width, "floats": sent.size, "loss": reply.loss}
                row |= {"steps": reply.steps, "seconds": reply.seconds}
            row |= {name: at[partition] for name, at in columns.items() if partition in at}
            rows.append(row)
        return rows

"""How long an update may be before it counts: ``max-update-norm``.

A client whose values are finite and of the right shape can still move the model anywhere. Its
update is what it returns less what it was sent; buffers count like parameters.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.config import Config
from fedhet_app.submodel.update_norm import shortened, update_norm
from fedhet_app.wire import Rejection, TrainReply

LOG = logging.getLogger("fedhet")

LARGEST, CLIPPED = "largest-update-norm", "clipped"
"""Columns of ``rounds.jsonl``: the longest update that arrived, and those that were shortened."""


@dataclass(kw_only=True)
class UpdateLimit:
    """What happens to updates of other lengths than they may have.

    Attributes:
        most: The longest that is used as it is; 0 for any.
        least: A shorter one is dropped.
        clip: Whether a longer one is shortened in place of being dropped.
        name: What sets ``most``.
    """

    most: float = 0.0
    least: float = 0.0
    clip: bool = False
    name: str = "max-update-norm"

    @classmethod
    def of(cls, config: Config) -> "UpdateLimit":
        """Return the limit that a run asks for."""
        return cls(most=config.max_update_norm, clip=config.max_update_norm_mode == "clip")

    def apply(
        self, reply: TrainReply, sent: NDArray[np.float32] | None, row: dict[str, Any]
    ) -> TrainReply:
        """Return the reply with an update that is not too long.

        Args:
            reply: A client's reply that has passed every other check.
            sent: What its vector was before it was trained; ``None`` where it is no model.
            row: The round's row, which takes in the norm.

        Raises:
            Rejection: The update is too long, or too short.
        """
        if not self.most or sent is None:
            return reply
        if self.clip:
            row.setdefault(CLIPPED, [])
        norm = update_norm(sent, reply.vector)
        row[LARGEST] = max(norm, row.get(LARGEST, 0.0))
        if norm < self.least:
            raise Rejection(f"an update of norm {norm:.4g}, which Flower cannot clip")
        if norm <= self.most:
            return reply
        if not self.clip:
            raise Rejection(f"an update of norm {norm:.4g}, above {self.name} = {self.most:g}")
        partition, number = reply.partition, reply.server_round
        row[CLIPPED].append({"partition": partition, "norm": norm})
        LOG.warning(
            "round %d: client %d's update of norm %.4g clipped to %g",
            *(number, partition, norm, self.most),
        )
        return replace(reply, vector=shortened(sent, reply.vector, self.most))

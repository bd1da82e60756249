"""A grid for nodes that are not to be trusted, and that are started again.

What a node replies is read one message at a time: Flower ends a run where one cannot be. Nor does
Flower compare what a reply says of itself, what it answers and who wrote it, with the node that
sends it, and it hands over whatever else a node has addressed to the server.

Flower tells of a node that is away. One that is back, with its key, before Flower has looked seems
never to have been gone, and a round would wait for its reply until the time is over. A node runs
its messages one by one, oldest first: where a question that is put after its return is answered
first, the earlier message is lost.
"""

import logging
import math
import struct
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from fedhet_app import wire
from strategies.federation import profile_queries

LOG = logging.getLogger("fedhet")
POLL_SECONDS = 1.0
_MALFORMED = (
    *(DecodeError, struct.error, ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, AssertionError, RecursionError),
)
"""What reading bytes that are no object of Flower's raises; none of it is of the connection."""
_SERVER = 1  # the SuperLink, which writes the errors that stand in place of replies
_FOREVER = 1e9  # seconds; Flower gives a longer heartbeat interval to the nodes of a simulation


class WatchedGrid(Grid):
    """A grid that gives up a message as soon as it is lost, or its reply cannot be read.

    Args:
        grid: Flower's own.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, Message] = {}
        self._problems: dict[str, str] = {}

    def set_run(self, run: Any) -> None:  # noqa: ANN401, its class is private
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:  # noqa: ANN401
        """Flower's own."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Pass on."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Pass on."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on; Flower gives an empty id to a message whose node it does not know."""
        sent = list(messages)
        ids = list(self._grid.push_messages(sent))
        self._sent |= {name: each for name, each in zip(ids, sent, strict=True) if name}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come, an error in place of one that cannot be read."""
        return [reply for name in message_ids for reply in self._pull(name)]

    def _pull(self, name: str) -> list[Message]:
        """Return what answers a message.

        What comes with its name need not be its reply. Where it was, and cannot be read, Flower
        says at the next look that there is none any more; where not, the message still waits.
        """
        try:
            came = list(self._grid.pull_messages([name]))
        except _MALFORMED as error:
            self._problems[name] = f"{type(error).__name__}: {error}"
            return []
        replies = [each for each in came if each.metadata.reply_to_message_id == name]
        if len(replies) < len(came):
            self._problems[name] = "it names another message"
        sent = self._sent.get(name)
        if not replies or sent is None:
            return replies
        problem = self._forget(name)
        for reply in replies:
            if problem and wire.is_expired(reply):
                return [wire.unreadable(sent, problem)]
            asked, said = sent.metadata.dst_node_id, reply.metadata.src_node_id
            if said != asked and not (reply.has_error() and said == _SERVER):
                return [wire.unreadable(sent, f"it says that node {said} wrote it")]
        return replies

    def _forget(self, name: str) -> str:
        """Wait for a message no more; return what was wrong with what came with its name."""
        self._sent.pop(name, None)
        return self._problems.pop(name, "")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, and return the replies that come in ``timeout`` seconds; an error for what is lost.

        Where nodes cannot be started again, as in a simulation, Flower's own method does it.
        """
        sent, before = list(messages), self.starts()
        if not before:
            return self._grid.send_and_receive(sent, timeout=timeout)
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        ids = self.push_messages(sent)
        left = {name: message for name, message in zip(ids, sent, strict=True) if name}
        asked: dict[str, str] = {}
        replies: list[Message] = []
        while left and time.monotonic() < deadline:
            # Questions first: who answers one has answered what came before it, or never will.
            came = list(self.pull_messages([*asked, *left]))
            replies += [each for each in came if each.metadata.reply_to_message_id in left]
            answered = {each.metadata.reply_to_message_id for each in came}
            left = {name: message for name, message in left.items() if name not in answered}
            for question in asked.keys() & answered:
                lost = left.pop(asked.pop(question), None)
                if lost is not None:
                    replies.append(wire.lost(lost))
            asked |= self._ask_after(left, before, deadline)
            if left:
                time.sleep(POLL_SECONDS)
        for name in [*left, *asked]:
            self._forget(name)
        return replies

    def starts(self) -> dict[int, str]:
        """Return when each node was last started, for nodes that are processes of their own."""
        return {
            node.node_id: node.last_activated_at
            for node in self._grid.get_nodes()
            if node.last_activated_at and node.heartbeat_interval < _FOREVER
        }

    def _ask_after(
        self, left: dict[str, Message], before: dict[int, str], deadline: float
    ) -> dict[str, str]:
        """Put a question to nodes that were started since; return message ids by question's.

        It is void at the deadline: a node that measures itself for its answer would be late again.
        """
        starts = self.starts()
        again = {node for node, start in starts.items() if before.get(node, start) != start}
        before |= starts
        names = [name for name, message in left.items() if message.metadata.dst_node_id in again]
        if not names:
            return {}
        LOG.warning("%d nodes were started again while they had a message", len(names))
        seconds = max(deadline - time.monotonic(), POLL_SECONDS)
        ttl = seconds if math.isfinite(seconds) else None
        questions = profile_queries((left[name].metadata.dst_node_id for name in names), ttl)
        return dict(zip(self.push_messages(questions), names, strict=True))

"""What becomes of messages when nodes are started again, or reply with what is no message.

On processes: ``tests/deploy``.
"""

from collections import deque
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from google.protobuf.message import DecodeError

from fedhet_app.engine import InlineGrid, virtual_nodes
from strategies import watched_grid
from strategies.watched_grid import WatchedGrid

NODE = 7


class Nodes(InlineGrid):
    """Nodes that run a message whenever somebody looks at them, and forget it when they restart.

    Args:
        events: By poll, counted from 1, the node that is started again before it.
        slow: The number of polls that a train message takes.
    """

    def __init__(self, events, slow=2):
        super().__init__({}, virtual_nodes(1))
        self._events, self._slow = events, slow
        self.queues, self._at_work, self._starts = {NODE: deque(), 8: deque()}, {}, {NODE: 1, 8: 1}
        self.pushed, self.polls, self.ran, self._ready = 0, 0, [], {}
        self.messages, self._given = {}, set()

    def get_nodes(self):
        if self.pushed:
            self._step()
        return [
            SimpleNamespace(node_id=i, last_activated_at=f"start {n}", heartbeat_interval=30.0)
            for i, n in self._starts.items()
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            known = message.metadata.dst_node_id in self.queues
            self.pushed += 1
            ids.append(f"message {self.pushed}" if known else "")
            message.metadata.__dict__["_message_id"] = ids[-1]
            if known:
                self.queues[message.metadata.dst_node_id].append(message)
                self.messages[ids[-1]] = message
        return ids

    def _step(self):
        self.polls += 1
        for node, queue in self.queues.items():
            if self._events.get(self.polls) == node:
                self._at_work.pop(node, None)
                self._starts[node] += 1
                continue
            message, left = self._at_work.pop(node, (None, 0))
            if message is None and queue:
                message = queue.popleft()
                left = self._slow if message.metadata.message_type == "train" else 1
            if message is not None and left > 1:
                self._at_work[node] = message, left - 1
            elif message is not None:
                self.ran.append((node, message.metadata.message_type))
                reply = Message(RecordDict(), reply_to=message)
                self._ready[message.metadata.message_id] = reply

    def pull_messages(self, message_ids):
        """As Flower: what has been handed over once is unavailable from then on."""
        names = list(message_ids)
        gone = Error(3, "Error: Message Unavailable")
        late = [Message(gone, reply_to=self.messages[n]) for n in names if n in self._given]
        ready = [name for name in names if name in self._ready]
        self._given |= set(ready)
        return [self._ready.pop(name) for name in ready] + late


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(watched_grid, "POLL_SECONDS", 0.0)


def ask(grid, *nodes, timeout=5.0):
    content = RecordDict({"config": ConfigRecord()})
    sent = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
    replies = WatchedGrid(grid).send_and_receive(sent, timeout=timeout)
    return {reply.metadata.src_node_id: reply for reply in replies}


def test_replies_come_as_they_are():
    replies = ask(Nodes({}), NODE, 8)
    assert not any(reply.has_error() for reply in replies.values())
    assert sorted(replies) == [NODE, 8]


def test_a_message_that_a_node_had_when_it_was_started_again_is_lost():
    grid = Nodes({2: NODE})
    replies = ask(grid, NODE, 8, timeout=None)
    assert replies[NODE].error.code == 5
    assert replies[NODE].error.reason == "the node was started again before it had replied"
    assert not replies[8].has_error()
    assert grid.ran.count((NODE, "query.profile")) == 1
    assert grid.polls < 6


def test_a_message_that_still_waited_for_the_node_is_not_lost():
    grid = Nodes({1: NODE}, slow=6)
    replies = ask(grid, NODE, timeout=None)
    assert not replies[NODE].has_error()


class Busy(Nodes):
    """Time goes on between two looks as well."""

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        for _ in range(3):
            self._step()
        return replies


@pytest.mark.parametrize("slow", range(1, 9))
def test_a_question_that_is_answered_between_two_looks_does_not_lose_the_message(slow):
    replies = ask(Busy({1: NODE}, slow=slow), NODE, timeout=None)
    assert not replies[NODE].has_error()


def test_a_node_may_be_started_again_before_it_has_answered_the_question():
    replies = ask(Nodes({2: NODE, 3: NODE}, slow=3), NODE, timeout=None)
    assert replies[NODE].error.code == 5


def test_nobody_is_waited_for_where_flower_takes_no_message():
    replies = ask(Nodes({}), 8, 99, timeout=None)
    assert sorted(replies) == [8]


def test_a_wait_has_an_end():
    assert ask(Nodes({}, slow=10**9), NODE, timeout=0.01) == {}


class Garbling(Nodes):
    """A node's replies are read by ``spoil``."""

    def __init__(self, spoil):
        super().__init__({})
        self._spoil = spoil

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        written = [r for r in replies if r.has_content() and r.metadata.src_node_id == NODE]
        return [self._spoil(r) if r in written else r for r in replies]


def raising(error):
    def spoil(_):
        raise error

    return spoil


def of_another(reply):
    reply.metadata.__dict__["_reply_to_message_id"] = "message 2"
    return reply


def by_another(reply):
    reply.metadata.__dict__["_src_node_id"] = 8
    return reply


def error_by_another(reply):
    error = Message(Error(2, "refused"), reply_to=reply)
    error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return by_another(error)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (raising(DecodeError("Error parsing message")), "DecodeError: Error parsing message"),
        (raising(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")), "UnicodeDecodeError"),
        (raising(KeyError("no such class")), "KeyError: 'no such class'"),
        (of_another, "it names another message"),
        (by_another, "it says that node 8 wrote it"),
        (error_by_another, "it says that node 8 wrote it"),
    ],
    ids=["bytes", "text", "class", "message", "sender", "sender of an error"],
)
def test_a_reply_that_cannot_be_read_costs_no_other(spoil, reason):
    replies = ask(Garbling(spoil), NODE, 8)
    assert replies[NODE].has_error()
    assert reason in replies[NODE].error.reason
    assert not replies[8].has_error()


class Littering(Nodes):
    """Whenever there is no reply yet, what a node has put there for the server comes instead."""

    def __init__(self, litter):
        super().__init__({}, slow=3)
        self._litter = litter

    def pull_messages(self, message_ids):
        return super().pull_messages(message_ids) or self._litter()


def stray():
    return [Message(RecordDict(), dst_node_id=1, message_type="train")]


def broken():
    raise DecodeError("Error parsing message")


@pytest.mark.parametrize("litter", [stray, broken])
def test_what_nobody_asked_for_loses_no_reply(litter):
    replies = ask(Littering(litter), NODE, 8)
    assert not any(reply.has_error() for reply in replies.values())
    assert sorted(replies) == [NODE, 8]


def test_the_question_to_a_node_that_was_started_again_is_void_when_the_round_is_over():
    grid = Nodes({2: NODE})
    ask(grid, NODE, timeout=5.0)
    (question,) = [m for m in grid.messages.values() if m.metadata.message_type != "train"]
    assert 0 < question.metadata.ttl <= 5.0


def test_a_connection_that_breaks_is_no_fault_of_a_node():
    with pytest.raises(ConnectionError):
        ask(Garbling(raising(ConnectionError("refused"))), NODE, 8)

"""What becomes of messages when nodes are started again; on processes: ``tests/deploy``."""

from collections import deque
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedhet_app.engine import InlineGrid, virtual_nodes
from strategies import watched_grid
from strategies.watched_grid import WatchedGrid

NODE = 7


class Nodes(InlineGrid):
    """Nodes that run one message at a poll, in order, and forget what they have when they restart.

    Args:
        events: By poll, counted from 1, the node that is started again before it.
        slow: The number of polls that a train message takes.
    """

    def __init__(self, events, slow=2):
        super().__init__({}, virtual_nodes(1))
        self._events, self._slow = events, slow
        self.queues, self._at_work, self._starts = {NODE: deque(), 8: deque()}, {}, {NODE: 1, 8: 1}
        self.polls, self.ran = 0, []

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=i, last_activated_at=f"start {n}", heartbeat_interval=30.0)
            for i, n in self._starts.items()
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            known = message.metadata.dst_node_id in self.queues
            ids.append(f"message {self.polls} {message.metadata.dst_node_id}" if known else "")
            message.metadata.__dict__["_message_id"] = ids[-1]
            if known:
                self.queues[message.metadata.dst_node_id].append(message)
        return ids

    def pull_messages(self, message_ids):
        self.polls += 1
        replies = []
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
                replies.append(Message(RecordDict(), reply_to=message))
        assert all(r.metadata.reply_to_message_id in message_ids for r in replies)
        return replies


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


def test_a_node_may_be_started_again_before_it_has_answered_the_question():
    replies = ask(Nodes({2: NODE, 3: NODE}, slow=3), NODE, timeout=None)
    assert replies[NODE].error.code == 5


def test_nobody_is_waited_for_where_flower_takes_no_message():
    replies = ask(Nodes({}), 8, 99, timeout=None)
    assert sorted(replies) == [8]


def test_a_wait_has_an_end():
    assert ask(Nodes({}, slow=10**9), NODE, timeout=0.01) == {}

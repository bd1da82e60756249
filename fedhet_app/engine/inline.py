"""A Flower grid whose nodes run in this process, one after the other."""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedhet_app.options import Scalar

RUN_ID = 1
SERVER_NODE = 1
CLIENT_APP_RAISED = 2

NodeConfig = dict[str, Scalar]


def load_client_app() -> ClientApp:
    """Return the ClientApp; a Ray worker imports it, and torch, when it first calls this."""
    from fedhet_app.client_app import app

    return app


class InlineGrid(Grid):
    """A grid whose nodes run in this process, one after the other.

    Args:
        run_config: The flat run config that clients see.
        nodes: One node config per node.
        load: Returns the app that runs every message.
    """

    def __init__(
        self,
        run_config: dict[str, Scalar],
        nodes: Sequence[NodeConfig],
        load: Callable[[], ClientApp] = load_client_app,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id = RUN_ID, SERVER_NODE
        TaskIdentity.task_id = RUN_ID
        self._load = load
        # Random, as Flower's are: whatever depended on them would be found out.
        self._contexts = {
            node_id: Context(RUN_ID, node_id, dict(node), RecordDict(), run_config)
            for node_id, node in ((secrets.randbits(62) | 2, node) for node in nodes)
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The only run."""
        return Run.create_empty(RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Build a message the way Flower's grids do."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the messages and keep their replies until they are pulled."""
        sent = list(messages)
        replies = self.send_and_receive(sent)
        self._replies |= {reply.metadata.reply_to_message_id: reply for reply in replies}
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run the messages in order; what is not done when the time is over has no reply."""
        deadline = time.monotonic() + (timeout or float("inf"))
        replies = []
        for message in messages:
            reply = self.answer(numbered(message), self._call)
            if time.monotonic() > deadline:
                break
            replies.append(reply)
        return replies

    def _call(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self._load()(message, context), context

    def answer(
        self, message: Message, call: Callable[[Message, Context], tuple[Message, Context]]
    ) -> Message:
        """Return the client's reply, or Flower's error in place of one."""
        node_id = message.metadata.dst_node_id
        try:
            reply, self._contexts[node_id] = call(message, self._contexts[node_id])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)
        return reply

    def close(self) -> None:
        """Release what the nodes hold."""


def numbered(message: Message) -> Message:
    """Give a message the id that its reply will name, as Flower does when it is pushed."""
    message.metadata.__dict__["_message_id"] = secrets.token_hex(16)
    return message

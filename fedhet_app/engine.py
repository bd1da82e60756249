"""Runs a configured app on this machine: on Flower's Ray backend, or in this process.

Both engines are a Flower ``Grid`` that hands each message to the same ClientApp, while the
ServerApp runs in the calling thread. `RayGrid` feeds Flower's own Ray backend in the order in which
messages are sent, most work first; Flower's link state, which polls and scans every node for every
message, is left out (``flwr run`` uses it).
"""

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Literal

import psutil
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend.backend import Backend
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedhet_app.config import Config
from fedhet_app.errors import FedhetError
from fedhet_app.options import Scalar

RUN_ID = 1
SERVER_NODE = 1
CLIENT_APP_RAISED = 2
GRACE_SECONDS = 0.5
ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray listen on loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
}

NodeConfig = dict[str, Scalar]
Engine = Literal["ray", "inline"]


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
            reply = self._answer(_numbered(message), self._call)
            if time.monotonic() > deadline:
                break
            replies.append(reply)
        return replies

    def _call(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self._load()(message, context), context

    def _answer(
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


def _numbered(message: Message) -> Message:
    message.metadata.__dict__["_message_id"] = secrets.token_hex(16)
    return message


class RayGrid(InlineGrid):
    """A grid whose nodes run on Flower's Ray backend, as many at a time as the cluster has room.

    Ray takes seconds to start, so it does that in the background until the first message.

    Args:
        run_config: The flat run config that clients see.
        nodes: One node config per node.
        resources: What one client occupies, by Ray's names (``num_cpus``, ``num_gpus``).
        load: Returns the app that runs every message.
    """

    def __init__(
        self,
        run_config: dict[str, Scalar],
        nodes: Sequence[NodeConfig],
        resources: dict[str, float],
        load: Callable[[], ClientApp] = load_client_app,
    ) -> None:
        super().__init__(run_config, nodes, load)
        self._before = set(psutil.Process().children(recursive=True))
        self._starter = ThreadPoolExecutor(1)
        self._backend = self._starter.submit(self._start, resources)

    def _start(self, resources: dict[str, float]) -> tuple[Backend, ThreadPoolExecutor]:
        # Imports Ray, which the in-process engine does without.
        from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend

        quiet = {"logging_level": "error", "log_to_driver": False}
        backend = RayBackend({"client_resources": resources, "init_args": quiet})  # type: ignore[dict-item]
        try:
            backend.build(self._load)
        except ValueError as error:
            backend.terminate()
            remedy = f"this machine has no room for a client that takes {resources}; lower it"
            raise FedhetError("client-cpus, client-gpus", resources, remedy) from error
        return backend, ThreadPoolExecutor(backend.num_workers)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Hand the messages out in order; what is not done when the time is over has no reply.

        Raises:
            FedhetError: The machine has no room for even one client.
        """
        backend, workers = self._backend.result()
        futures: list[Future[Message]] = [
            workers.submit(self._answer, _numbered(message), backend.process_message)
            for message in messages
        ]
        replies: list[Message] = []
        try:
            replies.extend(future.result() for future in as_completed(futures, timeout))
        except TimeoutError:
            for future in futures:
                future.cancel()
        return replies

    def close(self) -> None:
        """End the actors and Ray, and leave no process behind."""
        self._starter.shutdown()
        if self._backend.exception() is not None:
            return
        backend, workers = self._backend.result()
        ours = [p for p in psutil.Process().children(recursive=True) if p not in self._before]
        flower = logging.getLogger("flwr")
        level = flower.level
        flower.setLevel(logging.CRITICAL)  # messages that are cut short are no news
        workers.shutdown(wait=False, cancel_futures=True)
        # Actors hold no state; ended first, they do not keep Ray from ending the rest in time.
        _kill(process for process in ours if "ClientAppActor" in process.name())
        backend.terminate()
        workers.shutdown()
        flower.setLevel(level)
        # Ray gives its daemon a second to end the others; a late one leaves them for a minute.
        _kill(psutil.wait_procs(ours, timeout=GRACE_SECONDS)[1])


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def virtual_nodes(count: int) -> list[NodeConfig]:
    """Return the node configs that Flower's simulation gives its nodes."""
    return [{"partition-id": i, "num-partitions": count} for i in range(count)]


def run(config: Config, *, engine: Engine, nodes: Sequence[NodeConfig] | None = None) -> None:
    """Run the ServerApp of a configuration to its end.

    Args:
        config: The run; its ``results-dir`` is absolute.
        engine: ``ray`` or ``inline``.
        nodes: Node configs; by default those of ``num-clients`` virtual nodes.
    """
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    run_config = config.flat()
    nodes = virtual_nodes(config.num_clients) if nodes is None else nodes
    grid = _grid(engine, run_config, nodes, config)
    try:
        from fedhet_app.server_app import app as server_app  # imports torch while Ray starts

        server_app(grid, Context(RUN_ID, SERVER_NODE, {}, RecordDict(), run_config))
    finally:
        grid.close()


def _grid(
    engine: Engine, run_config: dict[str, Scalar], nodes: Sequence[NodeConfig], config: Config
) -> InlineGrid:
    if engine == "inline":
        return InlineGrid(run_config, nodes)
    resources = {"num_cpus": config.client_cpus, "num_gpus": config.client_gpus}
    return RayGrid(run_config, nodes, resources)

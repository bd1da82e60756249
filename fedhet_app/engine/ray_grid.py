"""A Flower grid whose nodes run on Flower's own Ray backend."""

import logging
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend.backend import Backend

from fedhet_app.engine.inline import InlineGrid, NodeConfig, load_client_app, numbered
from fedhet_app.engine.processes import GRACE_SECONDS, descendants, end_late, handle_sigterm, kill
from fedhet_app.errors import FedhetError
from fedhet_app.options import Scalar


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
        self._before, self._on_sigterm = set(descendants()), signal.getsignal(signal.SIGTERM)
        self._futures: list[Future[Message]] = []
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
        handle_sigterm(self._on_sigterm)
        futures = self._futures = [
            workers.submit(self.answer, numbered(message), backend.process_message)
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
        if self._backend.exception() is None:
            self._end(*self._backend.result())
        # Last: the kernel kills Ray's daemons as soon as the thread that started them ends.
        self._starter.shutdown()

    def _end(self, backend: Backend, workers: ThreadPoolExecutor) -> None:
        ours = [process for process in descendants() if process not in self._before]
        flower = logging.getLogger("flwr")
        level = flower.level
        flower.setLevel(logging.CRITICAL)  # messages that are cut short are no news
        workers.shutdown(wait=False, cancel_futures=True)
        # Actors hold no state; ended first, they do not keep Ray from ending the rest in time.
        kill(process for process in ours if "ClientAppActor" in process.name())
        # A thread that waits for an actor when Ray ends would not always wake up again.
        wait(self._futures, timeout=GRACE_SECONDS * 4)
        backend.terminate()
        workers.shutdown()
        flower.setLevel(level)
        end_late(ours)

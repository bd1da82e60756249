"""A Flower grid whose nodes run on Flower's own Ray backend."""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhet_app.engine.inline import InlineGrid, NodeConfig, load_client_app, numbered
from fedhet_app.engine.processes import descendants, end_late, handle_sigterm, kill
from fedhet_app.errors import FedhetError
from fedhet_app.options import Scalar

if TYPE_CHECKING:
    from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend
    from flwr.simulation.ray_transport.ray_actor import BasicActorPool

ACTOR = "ray::ClientAppA"  # Linux cuts the name of a process to fifteen characters


class RayGrid(InlineGrid):
    """A grid whose nodes run on Flower's Ray backend, as many at a time as the cluster has room.

    Ray takes seconds to start, so it does that in the background until the first message. Replies
    are waited for in the calling thread: a signal ends that wait at once, while a thread that
    waits for the result of an actor may sleep on after the actor and Ray have ended.

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
        self._running: dict[Any, Message] = {}
        self._starter = ThreadPoolExecutor(1)
        self._backend = self._starter.submit(self._start, resources)

    def _start(self, resources: dict[str, float]) -> "RayBackend":
        # Imports Ray, which the in-process engine does without.
        from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend

        quiet = {"logging_level": "error", "log_to_driver": False}
        backend = RayBackend({"client_resources": resources, "init_args": quiet})  # type: ignore[dict-item]
        try:
            backend.build(self._load)
        except ValueError as error:
            backend.terminate()
            asked = ", ".join(str(amount) for amount in resources.values())
            remedy = "this machine has no room for a client that takes that; lower it"
            raise FedhetError("client-cpus, client-gpus", asked, remedy) from error
        return backend

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Hand the messages out in order; what is not done when the time is over has no reply.

        Raises:
            FedhetError: The machine has no room for even one client.
        """
        import ray

        pool = self._backend.result().pool
        assert pool is not None  # `build` has made it
        handle_sigterm(self._on_sigterm)
        deadline = time.monotonic() + timeout if timeout else None
        waiting = deque(numbered(message) for message in messages)
        late = set(self._running)
        replies: list[Message] = []
        while waiting or self._running.keys() - late:
            while waiting and pool.is_actor_available():
                self._hand_out(pool, waiting.popleft())
            left = None if deadline is None else max(0, deadline - time.monotonic())
            done, _ = ray.wait(list(self._running), timeout=left)
            if not done:
                break
            for future in done:
                reply = self._collect(pool, future)
                if future not in late:
                    replies.append(reply)
        return replies

    def _hand_out(self, pool: "BasicActorPool", message: Message) -> None:
        context = self._contexts[message.metadata.dst_node_id]
        job = (self._load, message, str(context.node_config["partition-id"]), context)
        future = pool.submit(lambda actor, *its: actor.run.remote(*its), job)
        self._running[future] = message

    def _collect(self, pool: "BasicActorPool", future: Any) -> Message:  # noqa: ANN401
        from ray.exceptions import RayActorError

        def fetch(_message: Message, _context: Context) -> tuple[Message, Context]:
            try:
                return pool.fetch_result_and_return_actor_to_pool(future)
            except Exception as error:
                pool.add_actor_back_to_pool(future)
                if isinstance(error, RayActorError):
                    pool.pool.pop()  # its process has ended
                    pool.add_actors_to_pool(1)
                raise

        return self.answer(self._running.pop(future), fetch)

    def close(self) -> None:
        """End the actors and Ray, and leave no process behind."""
        if self._backend.exception() is None:
            ours = [process for process in descendants() if process not in self._before]
            # Actors hold no state; ended first, they do not keep Ray from ending the rest in time.
            kill(ours, ACTOR)
            self._backend.result().terminate()
            end_late(ours)
        # Last: the kernel kills Ray's daemons as soon as the thread that started them ends.
        self._starter.shutdown()

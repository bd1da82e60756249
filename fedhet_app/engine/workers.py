"""Processes that run whole configurations side by side: Ray tasks on one machine or a cluster.

Ray starts on this machine alone, unless the environment variable RAY_ADDRESS names a cluster; the
folder of the results must then be the same on all of its machines.
"""

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedhet_app.config import Config
from fedhet_app.engine import ENVIRONMENT
from fedhet_app.engine.execute import execute
from fedhet_app.engine.processes import descendants, end_late, handle_sigterm
from fedhet_app.errors import FedhetError, one_line
from fedhet_app.suite_results import LOG_FILE
from fedhet_app.suites import Key

STOP_SECONDS = 15.0
OBJECT_STORE_BYTES = 100 << 20  # what travels is one configuration and one line of text


class Workers:
    """Worker processes for a number of runs; close it, or use it as a context.

    Args:
        configs: What is to run.
        jobs: How many at a time; by default as many as the machine or the cluster has CPUs for.

    Raises:
        FedhetError: No machine has room for one of the runs.
    """

    def __init__(self, configs: Sequence[Config], jobs: int | None) -> None:
        for key, value in ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        import ray

        self._before = set(descendants())
        self._tasks: dict[Any, tuple[Key, Config]] = {}
        cpus = max(config.client_cpus for config in configs)
        try:
            self._start(jobs * cpus if jobs else None)
            _check_room(configs)
        except BaseException:
            self.close()
            raise
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.jobs = jobs or max(1, int(total["CPU"]) // cpus)

    def _start(self, num_cpus: int | None) -> None:
        import ray

        address = os.environ.get("RAY_ADDRESS")
        own: dict[str, Any] = {
            "num_cpus": num_cpus,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(
            address=address or "local",
            logging_level=logging.ERROR,
            log_to_driver=False,
            **({} if address else own),
        )
        handle_sigterm(handler)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, key: Key, config: Config) -> None:
        """Begin a run as soon as a worker is free; ``ended`` names it by ``key``."""
        import ray

        task = ray.remote(execute).options(
            num_cpus=config.client_cpus, num_gpus=config.client_gpus, max_retries=0
        )
        self._tasks[task.remote(config)] = (key, config)

    def ended(self, timeout: float) -> dict[Key, str]:
        """Wait until a run ends; return those that did, with why they failed or ''.

        Args:
            timeout: Seconds after which to return even if none has ended.
        """
        import ray

        done, _ = ray.wait(list(self._tasks), timeout=timeout)
        reasons = {}
        for task in done:
            key, config = self._tasks.pop(task)
            reasons[key] = _reason(task, config)
        return reasons

    def close(self) -> None:
        """Stop what runs so that it leaves a checkpoint; end Ray, and leave no process behind."""
        import ray

        try:
            for task in self._tasks:
                ray.cancel(task)
            if self._tasks:
                ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=STOP_SECONDS)
        finally:
            ours = [process for process in descendants() if process not in self._before]
            ray.shutdown()
            end_late(ours)


def _reason(task: Any, config: Config) -> str:  # noqa: ANN401
    import ray
    from ray.exceptions import RayError, WorkerCrashedError

    try:
        return str(ray.get(task))
    except WorkerCrashedError:
        reason = "its worker process died: it was killed, or crashed"
    except RayError as error:
        reason = one_line(error)
    directory = Path(config.results_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOG_FILE).open("a", encoding="utf-8") as log:
        log.write(f"{reason}\n")  # the worker could not say it
    return reason


def _check_room(configs: Sequence[Config]) -> None:
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    for config in configs:
        wanted = {"CPU": config.client_cpus, "GPU": config.client_gpus}
        if not any(
            all(machine.get(kind, 0) >= amount for kind, amount in wanted.items())
            for machine in machines
        ):
            remedy = "no machine has room for a run that takes that; lower it"
            asked = f"{config.client_cpus}, {config.client_gpus}"
            raise FedhetError("client-cpus, client-gpus", asked, remedy)

"""Runs a configured app on this machine: on Flower's Ray backend, or in this process.

Both engines are a Flower ``Grid`` that hands each message to the same ClientApp, while the
ServerApp runs in the calling thread. `RayGrid` feeds Flower's own Ray backend in the order in which
messages are sent, most work first; Flower's link state, which polls and scans every node for every
message, is left out (``flwr run`` uses it).
"""

import os
from collections.abc import Sequence
from typing import Literal

from flwr.app import Context, RecordDict

from fedhet_app.config import Config
from fedhet_app.engine.inline import RUN_ID, SERVER_NODE, InlineGrid, NodeConfig
from fedhet_app.engine.ray_grid import RayGrid
from fedhet_app.options import Scalar

__all__ = ["InlineGrid", "NodeConfig", "RayGrid", "run", "virtual_nodes"]

ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^A worker died",  # Ray's line, amid ours; we give the reason
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray listen on loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # at Ray's own 15 clients starve beside anything else that runs
}

Engine = Literal["ray", "inline"]


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

"""ServerApp: configuration -> profiles of the nodes -> strategy -> rounds -> results."""

import logging
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from client_apps import CLIENTS
from fedhet_app import checkpoint, queries
from fedhet_app.config import PATHS, Config, parse
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader, RunWriter, check_free, run_directory
from fedhet_app.task import Task, task_for
from fedhet_app.versions import versions
from strategies import STRATEGIES
from strategies.federation import Federation, gather
from strategies.shares import (
    as_begun,
    check_declared,
    describe_shares,
    say_what_was_measured,
    task_of,
)
from strategies.watched_grid import WatchedGrid

LOG = logging.getLogger("fedhet")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation from start to results."""
    under_flower = not LOG.handlers
    if under_flower:
        LOG.addHandler(logging.StreamHandler(sys.stderr))
        LOG.setLevel(logging.INFO)
    try:
        config = parse(context.run_config)
        watched = WatchedGrid(grid)
        directory = answer(watched, config) if config.queries else run(watched, config)
    except FedhetError as error:
        if under_flower:  # whoever called from Python gets the exception alone
            LOG.error("error: %s", error)
        raise
    if under_flower:  # the command line ends with the directory itself
        LOG.info("results: %s", directory)


def answer(grid: Grid, config: Config) -> Path:
    """Let the clients of a finished run answer the images that ``queries`` names.

    Returns:
        The file that the answers were added to.

    Raises:
        FedhetError: Anything the user can mend.
    """
    _check_paths(config)
    answers = queries.answer(grid, config, queries.image_files(config.queries))
    for each in answers:
        away = "" if each.client == each.answered_by else f" (client {each.client} is away)"
        LOG.info("%s: client %d%s: class %d", each.image, each.answered_by, away, each.label)
    return queries.write(Path(config.results_dir), answers)


def run(grid: WatchedGrid, config: Config) -> Path:
    """Run one federation on the nodes of ``grid`` and return its run directory.

    Raises:
        FedhetError: Anything the user can mend, before anything is written where possible.
    """
    _check_rows(config)
    _check_paths(config)
    directory = run_directory(config)
    if not config.resume:
        check_free(directory)
    task_for(config).check()
    federation = gather(grid, config)
    config = _for_nodes(config, federation)
    task = task_of(config, federation)
    data = {"dataset": task.dataset.fingerprint, "partition": task.partition.fingerprint}
    resumed = checkpoint.load(directory, config, data) if config.resume else None
    if resumed:
        federation = as_begun(federation, RunReader(directory).partition)
    check_declared(task, federation)
    say_what_was_measured(federation)
    _say_what_is_odd(task, federation)
    start = STRATEGIES[config.strategy].prepare(task, federation)
    writer = RunWriter(directory, resume_at=resumed.server_round if resumed else None)
    try:
        writer.write_config(config.flat(), versions(), data)
        writer.write_partition(describe_shares(task, federation))
        if task.dataset.shift_example is not None:
            writer.write_shift(task.dataset.shift_example)
        LOG.info("writing to %s", directory)
        if resumed and resumed.server_round == config.num_server_rounds:
            LOG.info("all its rounds are done already")
        strategy = start(writer=writer, resumed=resumed)
        strategy.run(grid)
        strategy.write_model()
        writer.write_summary(strategy.totals.summary(config, "completed"))
    finally:
        writer.close()
    return directory


def _check_rows(config: Config) -> None:
    """Refuse a method that has only one of its two halves."""
    halves = {"strategies": tuple(STRATEGIES), "client_apps": tuple(CLIENTS)}
    for package, rows in halves.items():
        if config.strategy not in rows:
            raise FedhetError("strategy", config.strategy, f"add its row to {package}/__init__.py")


def _check_paths(config: Config) -> None:
    """Refuse a relative path: under ``flwr run`` it would depend on where Flower was started."""
    for key in PATHS:
        value = str(config.flat()[key])
        if value and not Path(value).is_absolute():
            remedy = "must be an absolute path: Flower runs the app in a folder of its own"
            raise FedhetError(key, value, remedy)


def _for_nodes(config: Config, federation: Federation) -> Config:
    nodes = len(federation.profiles)
    if nodes == config.num_clients:
        return config
    warning = "num-clients is %d, but %d nodes are here: %s"
    what = "the run is with those" if config.clients_own else "the data is divided over those"
    LOG.warning(warning, config.num_clients, nodes, what)
    return config.with_nodes(nodes)


def _say_what_is_odd(task: Task, federation: Federation) -> None:
    """Warn of what a user would want to know before the run."""
    config = task.config
    if config.too_short_to_adapt:
        LOG.warning(
            "num-server-rounds = %d ends before %s adapts for the first time: widths stay at the "
            "capacities",
            config.num_server_rounds,
            config.strategy,
        )
    if config.privacy.mode == "local" and config.privacy.epsilon >= 1:
        LOG.warning(
            "privacy.epsilon = %g: the formula of the noise is proven below 1 alone",
            config.privacy.epsilon,
        )
    if task.device.type == "cuda" and all(p.device == "cpu" for p in federation.profiles):
        LOG.warning("a GPU is here, but clients train on the CPU: set client-gpus above 0")
    for width in sorted(set(federation.caps.tolist())):
        widest = task.slicer.largest_ratio(width)
        if widest > width:
            LOG.warning(
                "capacity %g: rounding up to whole channels and groups makes a layer %.3g wide",
                width,
                widest,
            )

"""One run of a sweep, in a worker process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedhet_app.config import Config
from fedhet_app.engine import run
from fedhet_app.errors import FedhetError, one_line
from fedhet_app.suite_results import LOG_FILE, has_ended

LOG = logging.getLogger("fedhet")


def execute(config: Config) -> str:
    """Run one configuration in this process, its log in its run directory.

    Returns:
        Why it failed, in one line; empty if it did not, or diverged as it was to show.
    """
    directory = Path(config.results_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with _logging_to(directory / LOG_FILE):
        try:
            run(config, engine="inline")
        except FedhetError as error:
            LOG.error("error: %s", error)
            return "" if has_ended(config) else str(error)
        except (Exception, SystemExit) as error:
            LOG.exception("the run failed")
            return one_line(error)
    return ""


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    levels = {LOG: logging.INFO, logging.getLogger("flwr"): logging.WARNING}
    before = {log: (log.handlers, log.level) for log in levels}
    for log, level in levels.items():
        log.handlers = [handler]
        log.setLevel(level)
    try:
        yield
    finally:
        for log, (handlers, level) in before.items():
            log.handlers = handlers
            log.setLevel(level)
        handler.close()

"""The runs of a suite side by side: each when those it needs are finished, and none twice."""

from collections.abc import Sequence

from fedhet_app.engine.workers import Workers
from fedhet_app.results import RunReader
from fedhet_app.suite_results import (
    Failure,
    claimed,
    rounds_done,
    stage_of,
    to_go_on,
    write_manifest,
)
from fedhet_app.suites import Key, Suite, SuiteRun
from fedhet_app.sweep_display import SweepDisplay

POLL_SECONDS = 1.0


def sweep(
    suite: Suite, runs: Sequence[SuiteRun], *, jobs: int | None, display: SweepDisplay
) -> list[Failure]:
    """Run what is not finished of some runs of a suite, and return what failed.

    Args:
        suite: The suite; its manifest is written.
        runs: Some of its runs, with all that they need.
        jobs: How many at a time; by default as many as there are CPUs for.
        display: Shows how far it is.

    Raises:
        FedhetError: Before anything runs: the results are in use, are of another suite or another
            configuration, or no machine has room for a run.
    """
    with claimed(suite.results):
        todo = [run for run in runs if stage_of(run) != "finished"]
        write_manifest(suite)
        with display.showing(runs=len(runs), finished=len(runs) - len(todo)):
            if not todo:
                return []
            with Workers([run.config for run in todo], jobs) as workers:
                schedule = _Schedule(todo, workers, display)
                schedule.complete()
                return schedule.failures


class _Schedule:
    """Hands runs to workers in the order of the file, as far as needs allow."""

    def __init__(self, runs: Sequence[SuiteRun], workers: Workers, display: SweepDisplay) -> None:
        self.failures: list[Failure] = []
        self._waiting = {run.key: run for run in runs}
        self._running: dict[Key, SuiteRun] = {}
        self._rounds_ended = 0
        self._workers, self._display = workers, display

    def complete(self) -> None:
        """Run all there is to run."""
        self._show_rounds()
        while self._waiting or self._running:
            self._start_ready()
            for key, reason in self._workers.ended(POLL_SECONDS).items():
                run = self._running.pop(key)
                self._rounds_ended += rounds_done(run)
                if reason:
                    self._fail(run, reason)
                else:
                    self._display.finished(run, RunReader(run.directory).summary)
            self._show_rounds()

    def _start_ready(self) -> None:
        for key, run in list(self._waiting.items()):
            if len(self._running) == self._workers.jobs:
                return
            if run.needed.isdisjoint(self._waiting.keys() | self._running.keys()):
                self._running[key] = self._waiting.pop(key)
                self._workers.start(key, to_go_on(run))

    def _fail(self, run: SuiteRun, reason: str) -> None:
        """Note a failure, and that the runs that need this one are not run."""
        self.failures.append(Failure(run=run, reason=reason))
        self._display.failed(run, reason)
        for key, other in list(self._waiting.items()):
            if run.key in other.needed and key in self._waiting:
                del self._waiting[key]
                self._fail(other, f"not run, because it needs {run}")

    def _show_rounds(self) -> None:
        left = [*self._waiting.values(), *self._running.values()]
        done = self._rounds_ended + sum(map(rounds_done, left))
        total = self._rounds_ended + sum(run.config.num_server_rounds for run in left)
        self._display.rounds(done, total)

"""What ``fedhet sweep`` shows: a bar over all rounds, a line for each run, the failures."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedhet_app.suite_results import Failure
from fedhet_app.suites import SuiteRun

MEMORY_SECONDS = 900.0  # runs differ in speed: the time left goes by the rounds of these last ones


class SweepDisplay:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
        console: Where.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._runs = self._ended = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds, time left"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=MEMORY_SECONDS,
            disable=not console.is_terminal,
        )

    @contextmanager
    def showing(self, *, runs: int, finished: int) -> Iterator[None]:
        """Show a sweep of so many runs, of which some were finished before."""
        self._runs, self._ended = runs, finished
        if finished:
            self._print(f"{finished} of {runs} runs were finished before")
        with self._bar:
            yield

    def rounds(self, done: int, total: int) -> None:
        """Show how many rounds are done, of all those of the runs to run."""
        description = f"{self._ended} of {self._runs} runs"
        if not self._bar.tasks:
            self._bar.add_task(description, total=total, completed=done)
        task = self._bar.task_ids[0]
        self._bar.update(task, description=description, completed=done, total=total)

    def finished(self, run: SuiteRun, summary: Mapping[str, Any]) -> None:
        """Print the line of a run that has finished."""
        accuracy, seconds = summary["final-accuracy"], summary["wall-seconds"]
        diverged = " (diverged)" if summary["status"] == "diverged" else ""
        self._end(f"{run}: accuracy {accuracy:.4f}{diverged}, {seconds:.0f} s")

    def failed(self, run: SuiteRun, reason: str) -> None:
        """Print the line of a run that has failed, or was not run."""
        self._end(f"{run}: failed: {reason}")

    def _end(self, line: str) -> None:
        self._ended += 1
        left = self._bar.tasks[0].time_remaining
        time = f", about {timedelta(seconds=int(left))} left" if left else ""
        self._print(f"{line} ({self._ended} of {self._runs} runs{time})")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def failure_table(console: Console, failures: Iterable[Failure]) -> None:
    """Show what failed, why, and where its log is below the folder of the results."""
    table = Table(title="Runs that failed")
    for column in ("run", "seed", "reason", "log"):
        table.add_column(column, overflow="fold")
    for failure in failures:
        run = failure.run
        table.add_row(run.label, str(run.seed), escape(failure.reason), failure.log)
    console.print(table)

"""What ``fedhet run`` shows: the plan, a progress bar, the closing table."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedhet_app.config import Config
from fedhet_app.results import Row, round_observer

if TYPE_CHECKING:  # both load torch, which a command that shows nothing of theirs does without
    from fedhet_app.queries import RoutedAnswer
    from fedhet_app.task import Task


class LogHandler(logging.Handler):
    """Prints log lines above the progress bar, unwrapped, so that a path can be copied."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(console: Console, config: Config) -> Iterator[None]:
    """Show rounds, accuracy and time left while the block runs."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(
            f"{config.strategy} on {config.dataset}", total=config.num_server_rounds, accuracy="-"
        )

        def advance(row: Row) -> None:
            bar.update(task, completed=row["round"])
            if "accuracy" in row:
                bar.update(task, accuracy=f"{row['accuracy']:.4f}")
            if not console.is_terminal and row["round"] % 10 == 0:
                accuracy = f"{row['accuracy']:.4f}" if "accuracy" in row else "-"
                console.print(f"round {row['round']}: accuracy {accuracy}", highlight=False)

        token = round_observer.set(advance)
        try:
            yield
        finally:
            round_observer.reset(token)


SUMMARY_ROWS = (
    ("status", "status", "{}"),
    ("rounds", "rounds", "{}"),
    ("final accuracy", "final-accuracy", "{:.4f}"),
    ("best accuracy", "best-accuracy", "{:.4f}"),
    ("balanced accuracy", "balanced-accuracy", "{:.4f}"),
    ("final loss (nats)", "final-loss", "{:.4f}"),
    ("system accuracy", "system-accuracy", "{:.4f}"),
    ("average accuracy", "average-accuracy", "{:.4f}"),
    ("balanced average accuracy", "balanced-average-accuracy", "{:.4f}"),
    ("routing accuracy", "routing-accuracy", "{:.4f}"),
    ("accuracy of the clients' vote", "vote-accuracy", "{:.4f}"),
    ("worst client's accuracy", "worst-client-accuracy", "{:.4f}"),
    ("mean width", "mean-width", "{:.3f}"),
    ("parameters never trained", "never-trained", "{:.1%}"),
    ("uploaded (MB)", "upload-bytes", "{:.1f}"),
    ("downloaded (MB)", "download-bytes", "{:.1f}"),
    ("local steps", "local-steps", "{}"),
    ("replies dropped", "rejected", "{}"),
    ("updates clipped", "clipped", "{}"),
    ("seconds", "wall-seconds", "{:.1f}"),
)


def closing_table(console: Console, summary: Mapping[str, Any]) -> None:
    """Show the summary of a finished run."""
    table = Table(title=f"{summary['strategy']} on {summary['dataset']}, seed {summary['seed']}")
    table.add_column("")
    table.add_column("value", justify="right")
    for title, key, form in SUMMARY_ROWS:
        if key not in summary:
            continue
        value = summary[key] / 1e6 if key.endswith("-bytes") else summary[key]
        table.add_row(title, "not finite" if value is None else form.format(value))
    console.print(table)


def answers(console: Console, routed: Sequence["RoutedAnswer"]) -> None:
    """Show who answered each image, and what."""
    table = Table()
    for column in ("image", "client", "P(client)", "P(component)", "prediction", "P(class)"):
        table.add_column(column, overflow="fold")
    for each in routed:
        away = "" if each.answered_by == each.client else f" (away; {each.answered_by} answers)"
        table.add_row(
            Path(each.image).name,
            f"{each.client}{away}",
            f"{each.probability:.4f}",
            " ".join(f"{weight:.3f}" for weight in each.components),
            f"{each.label} {each.class_name}".strip(),
            f"{each.confidence:.4f}",
        )
    console.print(table)


def dry_run(console: Console, config: Config) -> None:
    """Show the resolved configuration and what each tier costs, without training."""
    from fedhet_app.task import task_for

    for key, value in config.flat().items():
        console.print(f"{key} = {json.dumps(value)}", markup=False, highlight=False, soft_wrap=True)
    task = task_for(config)
    task.check()
    if config.routes:
        _cost_of_mixture(console, task)
    else:
        _cost_of_tiers(console, task)


def _cost_of_mixture(console: Console, task: "Task") -> None:
    from fedhet_app.gaussian_model import routing_model_of

    model = routing_model_of(task)
    table = Table(title="What each client holds; the shared part travels, the other does not")
    for column in ("part", "parameters", "bytes"):
        table.add_column(column, justify="right")
    for part, size in model.parts.items():
        table.add_row(part, f"{size:,}", f"{4 * size:,}")
    console.print(table)


def _cost_of_tiers(console: Console, task: "Task") -> None:
    from fedhet_app.submodel.cost import cost_table

    config = task.config
    costs = cost_table(task.builder, task.spec, config.tiers)
    full = cost_table(task.builder, task.spec, [1.0])[0]
    table = Table(title="Cost of each tier; bytes are of one slice, one way")
    for column in ("width", "parameters", "multiply-accumulates", "bytes"):
        table.add_column(column, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.width:g}",
            f"{cost.params:,} ({cost.params / full.params:.1%})",
            f"{cost.macs:,} ({cost.macs / full.macs:.1%})",
            f"{cost.bytes:,}",
        )
    console.print(table)

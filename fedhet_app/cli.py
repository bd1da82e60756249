"""The ``fedhet`` command: run, sweep, audit, report, evaluate, export, route."""

import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhet_app import display
from fedhet_app.config import PATHS, Config, parse
from fedhet_app.config_files import load_toml, parse_pairs
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader, check_free, run_directory
from fedhet_app.versions import ROOT

USER_ERROR, INTERRUPTED = 2, 130
ENGINES = ("ray", "inline")

# What each argument is stands in the docstrings: click drops the help of typer's arguments from 8.5
# on, and Flower keeps typer at a version that does not know.
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning when clients differ.",
)
console = Console()


def main() -> None:
    """Run the command line; a mistake of the user is one line on stderr and status 2."""
    # A console script does not put the working directory on the path, and a user's model is there;
    # a package of the app's own names there must not come first.
    sys.path += [str(ROOT), str(Path.cwd())]
    try:
        app()
    except FedhetError as error:
        _say(f"error: {error}")
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _say(message: str) -> None:
    Console(stderr=True, soft_wrap=True).print(message, markup=False, highlight=False)


@app.command()
def run(
    preset: Annotated[Path | None, typer.Argument()] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value pairs in one string; text needs no quotes. The keys: `fedhet run "
            "--dry-run`, and `Options` in the README.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="ray or inline.")] = "ray",
    results: Annotated[Path | None, typer.Option(help="Run directory to write.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory to continue.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Show configuration and cost only.")] = False,
) -> None:
    """Train one federation; the last line is the run directory.

    PRESET is a TOML file of options, as in configs/<dataset>/; without one the defaults hold.
    """
    if engine not in ENGINES:
        raise FedhetError("--engine", engine, f"must be one of {', '.join(ENGINES)}")
    config = _configured(preset, set_ or [], results, resume)
    if dry_run:
        display.dry_run(console, config)
        return
    from fedhet_app.engine import run as run_engine

    directory = Path(config.results_dir)
    if not config.resume:
        check_free(directory)
    _log_to(console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as clean an end as Ctrl-C
    try:
        with display.progress(console, config):
            run_engine(config, engine="ray" if engine == "ray" else "inline")
    except KeyboardInterrupt:
        _say(f"interrupted; continue with: fedhet run --resume {directory}")
        raise
    display.closing_table(console, RunReader(directory).summary)
    console.print(str(directory), soft_wrap=True, highlight=False)


def _configured(
    preset: Path | None, pairs: list[str], results: Path | None, resume: Path | None
) -> Config:
    """Return the configuration that options, preset and a run to resume add up to."""
    values = load_toml(preset) if preset else {}
    if resume is not None:
        if preset is not None or results is not None:
            remedy = "continues a run as it was started; give no preset and no --results with it"
            raise FedhetError("--resume", str(resume), remedy)
        values = RunReader(resume).config | {"resume": True, "results-dir": str(resume.resolve())}
    for text in pairs:
        values |= parse_pairs(text)
    if results is not None:
        values["results-dir"] = str(results)
    config = parse(values)
    values = config.flat() | {"results-dir": str(run_directory(config))}
    absolute = {key: str(Path(str(values[key])).resolve()) for key in PATHS if values[key]}
    return parse(values | absolute)


def _log_to(console: Console) -> None:
    """Show the app's own log above the progress bar, and Flower's only where it warns."""
    os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")
    log = logging.getLogger("fedhet")
    log.handlers = [display.LogHandler(console)]
    log.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.WARNING)


@app.command()
def sweep(
    suite: Path,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; else as CPUs allow.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder for the run directories.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run of the suite to run.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of the suite to run.")] = None,
) -> None:
    """Run a suite, or continue it; the last line is the folder of its results.

    SUITE is a YAML file of runs and seeds, as in configs/suites/.
    """
    from fedhet_app import sweep_display
    from fedhet_app.suites import load_suite

    if jobs is not None and jobs < 1:
        raise FedhetError("--jobs", jobs, "must be at least 1")
    loaded = load_suite(suite, results)
    runs = loaded.select(only or [], seed or [])
    from fedhet_app.engine.sweep import sweep as run_sweep

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        display = sweep_display.SweepDisplay(console)
        failures = run_sweep(loaded, runs, jobs=jobs, display=display)
    except KeyboardInterrupt:
        _say(f"interrupted; continue with: fedhet {shlex.join(sys.argv[1:])}")
        raise
    if failures:
        sweep_display.failure_table(console, failures)
    console.print(str(loaded.results), soft_wrap=True, highlight=False)
    raise typer.Exit(1 if failures else 0)


@app.command()
def evaluate(
    directory: Path,
    width: Annotated[float, typer.Option(help="Width of the slice to measure.")] = 1.0,
) -> None:
    """Measure a finished run's model, or a slice of it, on the test set.

    DIRECTORY is the run's, the last line that `fedhet run` prints.
    """
    from fedhet_app import finished

    model = finished.load(directory)
    result = finished.evaluate(model, width)
    console.print(f"accuracy {result.accuracy:.4f}  loss {result.loss:.4f}", highlight=False)


@app.command()
def export(
    directory: Path,
    file: Path,
    width: Annotated[float, typer.Option(help="Width of the slice to write.")] = 1.0,
) -> None:
    """Write a finished run's model, or a slice of it, for a device.

    DIRECTORY is the run's, FILE the safetensors file to write.
    """
    from fedhet_app import finished

    finished.export(finished.load(directory), width, file)
    console.print(str(file.resolve()), soft_wrap=True, highlight=False)


@app.command()
def route(
    directory: Path,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...")],
) -> None:
    """Route new images to the clients of a finished run, and show what those predict.

    DIRECTORY is that of a run of a method that routes (fedspm, feddrm, fedgmm), each IMAGE a file.
    """
    from fedhet_app import queries
    from fedhet_app.engine import InlineGrid, virtual_nodes

    values = RunReader(directory).config | {"results-dir": str(directory.resolve())}
    config = parse(values | {"resume": True})
    queries.check_routes(config)
    grid = InlineGrid(config.flat(), virtual_nodes(config.num_clients))
    display.answers(console, queries.answer(grid, config, images))


@app.command()
def audit(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    column: Annotated[
        str, typer.Option(help="Numeric column of clients.jsonl that is the estimate.")
    ] = "divergence",
    control: Annotated[
        list[Path] | None, typer.Option(help="Runs whose budget was spent without looking.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File to write everything to.")] = None,
) -> None:
    """Ask of finished runs whether an estimate knows the clients' data or restates capacity.

    Each DIR is a run, or a folder with runs below.
    """
    from fedhet_app.analysis.audit import display as audit_display
    from fedhet_app.analysis.audit.audit import audit as audit_runs
    from fedhet_app.analysis.audit.audit import check_column

    result = audit_runs(directories, column, control)
    check_column(result)
    audit_display.show(console, result)
    if json is not None:
        audit_display.write(json, result)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    out: Annotated[
        Path, typer.Option(help="Folder to write to; an earlier report is replaced.")
    ] = Path("report"),
) -> None:
    """Write tables and figures of finished runs; the last line is the HTML page.

    Each DIR is a run, or a folder with runs below.
    """
    from fedhet_app.analysis.report import write_report

    page = write_report(directories, out)
    console.print(str(page.resolve()), soft_wrap=True, highlight=False)


if __name__ == "__main__":
    main()

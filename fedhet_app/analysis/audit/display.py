"""How an audit is shown on a terminal and written as JSON."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedhet_app.analysis.audit.audit import Audit, GroupAudit
from fedhet_app.analysis.audit.measures import LABELS, TIERED, RunAudit
from fedhet_app.analysis.audit.verdict import as_text, counted
from fedhet_app.analysis.correlation import Correlation
from fedhet_app.results import write_json


def show(console: Console, audit: Audit) -> None:
    """Print a table, the verdicts and the cautions of each group."""
    for group in audit.groups:
        console.print(_table(group, audit.column))
        for line in _lines(group):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print()
    for caution in audit.cautions:
        console.print(f"caution: {caution}", markup=False, highlight=False, soft_wrap=True)


def write(path: Path, audit: Audit) -> None:
    """Write everything as JSON; what is undefined is null.

    Raises:
        FedhetError: The file cannot be written.
    """
    write_json(path, _plain(asdict(audit)), key="--json")


def _table(group: GroupAudit, column: str) -> Table:
    title = escape(f"{group.name} (estimate: {column})")
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("r [95 % interval]", no_wrap=True, justify="right")
    pool = f"pooled over {counted(len(group.runs), 'run')}"
    for key, label in LABELS.items():
        table.add_row(label)
        for run in group.runs:
            correlation = run.correlations[key]
            tiers = _tiers(correlation) if key in TIERED else ""
            table.add_row(f"  seed {run.seed}{tiers}", _cell(correlation))
        table.add_row(f"  {pool}", _cell(group.pooled[key]), end_section=True)
    return table


def _cell(correlation: Correlation) -> str:
    return "undefined" if correlation.reason else escape(as_text(correlation))


def _tiers(correlation: Correlation) -> str:
    tiers = correlation.parts + correlation.left_out
    return f", {correlation.parts} of {tiers} tiers" if tiers else ""


def _of_run(run: RunAudit) -> str:
    read = f"estimates of round {run.read_at}" if run.read_at else "estimates are means over rounds"
    adapted = counted(run.adaptations, "adaptation round")
    return f"seed {run.seed}: {counted(run.clients, 'client')}, {adapted}, {read}"


def _lines(group: GroupAudit) -> list[str]:
    reasons: dict[tuple[int, str], list[str]] = {}
    for run in group.runs:
        for key, correlation in run.correlations.items():
            if correlation.reason:
                reasons.setdefault((run.seed, correlation.reason), []).append(LABELS[key])
    seeds: dict[tuple[str, str], list[str]] = {}
    for (seed, reason), labels in reasons.items():
        seeds.setdefault((reason, ", ".join(labels)), []).append(str(seed))
    return [
        *map(_of_run, group.runs),
        *(f"verdict: {verdict}" for verdict in group.verdicts),
        *(f"caution: {caution}" for caution in group.cautions),
        *(
            f"undefined (seed {', '.join(of)}): {labels}: {reason}"
            for (reason, labels), of in seeds.items()
        ),
    ]


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value in what JSON knows: no tuple, no NaN."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What widths cost (Paper A, Section 3.4), and what runs uploaded of it."""

from collections.abc import Sequence

from fedhet_app.analysis import paper_a
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.study_run import Row, Run
from fedhet_app.analysis.tables.cells import Cell, Column, Table


def costs(section: Section) -> dict[str, Sequence[Row]]:
    """Return what each width of each network costs, by the network's model and preset."""
    found: dict[str, Sequence[Row]] = {}
    for run in section.runs:
        if run.full_cost:
            found.setdefault(f"{run.config['model']}, {run.config['model-preset']}", run.cost)
    return found


def cost_table(section: Section) -> Table | None:
    """Return what each width costs; ``None`` where no run of the section counted it."""
    rows = [
        (network, *_cells(row, by_width[-1]))
        for network, by_width in costs(section).items()
        for row in by_width
    ]
    if not rows:
        return None
    columns = [
        Column(name="Network"),
        Column(name="Width", form=".2f"),
        Column(name="Parameters"),
        Column(name="Multiply-accumulates"),
        Column(name="Bytes, one way"),
        Column(name="Parameters (%)"),
        Column(name="Multiply-accumulates (%)"),
        Column(name="paper"),
    ]
    note = "Of one forward pass of one example; bytes are of the slice as it travels."
    return Table(
        name="cost",
        title="Cost of each width",
        columns=tuple(columns),
        rows=tuple(rows),
        note=note,
    )


def _cells(row: Row, full: Row) -> list[Cell]:
    counts = [int(row[key]) for key in ("params", "macs", "bytes")]
    shares = [100 * int(row[key]) / int(full[key]) for key in ("params", "macs")]
    return [float(row["width"]), *counts, *shares, paper_a.COST.get(float(row["width"]))]


def relative_upload(section: Section, run: Run) -> float | None:
    """Return a client's mean upload in a round as a share of the full model; ``None`` if unknown.

    The full model's bytes are those counted in ``cost.json``, else a FedAvg client's upload.
    """
    if run.full_cost:
        return run.upload / float(run.full_cost["bytes"])
    full = next((each.upload for each in section.of("fedavg")), None)
    return run.upload / full if full else None

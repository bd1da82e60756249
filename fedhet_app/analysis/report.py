"""The report on Paper A's study: its tables and figures from run directories alone.

A folder with ``report.html``, which needs no other file, ``report.md``, and each table (markdown
and CSV) and figure (PNG) as a file of its own. The same runs give the same report.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.figure import Figure

from fedhet_app.analysis import paper_a
from fedhet_app.analysis.audit.verdict import counted
from fedhet_app.analysis.page import Block, Bullets, Heading, Image, Paragraph, html, markdown
from fedhet_app.analysis.plots import allocation, curves
from fedhet_app.analysis.study import Section, Study, load_study
from fedhet_app.analysis.tables.audit import audit_labels, audit_table, correlation_table, verdicts
from fedhet_app.analysis.tables.cells import Table
from fedhet_app.analysis.tables.claims import claims_table, open_question_table
from fedhet_app.analysis.tables.cost import cost_table
from fedhet_app.analysis.tables.paper import allocation_table, comparison_table, coverage_table
from fedhet_app.analysis.tables.side import (
    all_runs_table,
    difference_table,
    left_out_table,
    settings_table,
    stale_table,
)
from fedhet_app.errors import FedhetError

TITLE = "HAS-FL study: report"

_OF_THE_STUDY: Sequence[Callable[[Study], Table | None]] = (
    left_out_table,
    claims_table,
    open_question_table,
)
_BAND = "mean over seeds, and the range from the lowest to the highest seed"
_FIGURES: Sequence[tuple[str, Callable[[Section], Figure | None], str]] = (
    ("figure-3", curves.allocation_curves, f"Figure 3. Allocation strategies: {_BAND}."),
    (
        "figure-4",
        allocation.estimates_over_rounds,
        "Figure 4. HAS-FL's mean estimate, divided by its mean at every normalisation, and the "
        "mean of the widths it allots.",
    ),
    (
        "figure-5",
        allocation.final_allocation,
        "Figure 5. HAS-FL's final allocation, a point for each client of each seed, against its "
        "capacity (dotted: width = capacity) and against the skew of its data.",
    ),
    (
        "figure-6",
        curves.frontier,
        "Figure 6. Final accuracy against upload; bars are one standard deviation over seeds.",
    ),
    ("figure-7", curves.comparison_curves, f"Figure 7. Full models and sub-models: {_BAND}."),
    ("figure-8", curves.loss_curves, f"Figure 8. Test loss: {_BAND}."),
)


@dataclass(kw_only=True)
class _Report:
    """What the report consists of so far."""

    blocks: list[Block] = field(default_factory=list)
    images: dict[str, bytes] = field(default_factory=dict)

    def add_table(self, table: Table | None, prefix: str = "") -> None:
        if table is not None:
            self.blocks.append(replace(table, name=prefix + table.name))

    def add_figure(self, figure: Figure | None, name: str, caption: str) -> None:
        if figure is None:
            return
        png = io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
        path = f"figures/{name}.png"
        self.images[path] = png.getvalue()
        self.blocks.append(Image(path=path, caption=caption))


def write_report(directories: Sequence[Path], folder: Path) -> Path:
    """Write the report on all runs in and below directories.

    Args:
        directories: Run directories, results of sweeps, or folders that hold either anywhere below.
        folder: Where to; files of the same names are replaced.

    Returns:
        The HTML page.

    Raises:
        FedhetError: There is no finished run, a file of one is damaged, or the folder cannot be
            written to.
    """
    report = _report_on(load_study(directories))
    page = folder / "report.html"
    try:
        for each in ("tables", "figures"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        for path, png in report.images.items():
            (folder / path).write_bytes(png)
        for table in report.blocks:
            if isinstance(table, Table):
                stem = folder / "tables" / table.name
                stem.with_name(f"{table.name}.md").write_text(table.markdown() + "\n", "utf-8")
                stem.with_name(f"{table.name}.csv").write_text(table.csv(), "utf-8")
        (folder / "report.md").write_text(markdown(report.blocks), "utf-8")
        page.write_text(html(TITLE, report.blocks, report.images), "utf-8")
    except OSError as error:
        remedy = f"cannot be written to ({error.strerror}); name another folder"
        raise FedhetError("--out", str(folder), remedy) from error
    return page


def _report_on(study: Study) -> _Report:
    report = _Report(blocks=[Heading(text=TITLE, level=1)])
    for make in _OF_THE_STUDY:
        report.add_table(make(study))
    caption = "Figure 2. Cost of a client by width, of the full model's."
    report.add_figure(allocation.cost_bars(study.sections), "figure-2", caption)
    for section, prefix in zip(study.sections, _prefixes(study.sections), strict=True):
        _add_section(report, section, f"{prefix}-")
    return report


def _add_section(report: _Report, section: Section, prefix: str) -> None:
    suite = f" ({section.suite})" if section.suite else ""
    name = paper_a.NAMES.get(section.dataset, section.dataset)
    report.blocks.append(Heading(text=f"{name}{suite}", level=2))
    report.blocks += [Paragraph(text=text) for text in _introduction(section)]
    audited = audit_labels(section)
    for table in (
        allocation_table(section),
        coverage_table(section),
        correlation_table(section, audited),
        comparison_table(section),
        difference_table(section),
        audit_table(audited),
    ):
        report.add_table(table, prefix)
    if audited:
        report.blocks.append(Bullets(items=tuple(verdicts(audited))))
    for table in (stale_table(section), cost_table(section)):
        report.add_table(table, prefix)
    for key, draw, caption in _FIGURES:
        report.add_figure(draw(section), prefix + key, f"{name}. {caption}")
    for table in (all_runs_table(section), settings_table(section)):
        report.add_table(table, prefix)


def _introduction(section: Section) -> Iterator[str]:
    config = (section.of("has-fl") or section.runs)[0].config
    seeds = sorted({run.seed for run in section.runs})
    skew = f", alpha {config['alpha']:g}" if config["partition"] == "dirichlet" else ""
    yield (
        f"{counted(len(section.runs), 'finished run')}, {counted(len(section.labels), 'label')}, "
        f"seeds {', '.join(map(str, seeds))}. {config['num-server-rounds']} rounds; "
        f"{config['num-clients']} clients, of which {config['fraction-train']:.0%} train in a "
        f"round; model {config['model']} ({config['model-preset']}, norm {config['norm']}); "
        f"partition {config['partition']}{skew}."
    )
    if settings_table(section):
        yield "That is not so of every run: the last table of this part lists what differs."
    if part := config.get("evaluate-examples"):
        yield (
            f"During a run accuracy is measured on {part} examples of the test set, after its last "
            "round on all of them: best and final are not of the same examples."
        )
    if section.dataset in paper_a.STAND_INS:
        other = paper_a.NAMES[paper_a.source(section.dataset)]
        name = paper_a.NAMES[section.dataset]
        yield f"The paper has no {name}: its {other} numbers, of other data, stand beside these."


def _prefixes(sections: Sequence[Section]) -> list[str]:
    """Return what the names of each section's files start with: its data set, told apart."""
    prefixes: list[str] = []
    for section in sections:
        shared = sum(other.dataset == section.dataset for other in sections) > 1
        name = f"{section.dataset} {section.suite}" if shared else section.dataset
        prefix = re.sub(r"[^\w.]+", "-", name).strip("-.")
        prefixes.append(prefix if prefix not in prefixes else f"{prefix}-{len(prefixes)}")
    return prefixes

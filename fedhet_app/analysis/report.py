"""The report on a study of Paper A or B: its tables and figures from run directories alone.

A folder with ``report.html``, which needs no other file, ``report.md``, and each table (markdown
and CSV) and figure (PNG) as a file of its own. The same runs give the same report.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from matplotlib.figure import Figure

from fedhet_app.analysis import mixture_part, paper_a, paper_b, submodel_part
from fedhet_app.analysis.audit.verdict import counted
from fedhet_app.analysis.page import Block, Heading, Image, Paragraph, html, markdown
from fedhet_app.analysis.plots.allocation import cost_bars
from fedhet_app.analysis.report_folder import PAGE, TEXT, TITLE_END, check_folder, write_files
from fedhet_app.analysis.study import Section, Study, load_study
from fedhet_app.analysis.tables.cells import Table
from fedhet_app.analysis.tables.claims import claims_table, open_question_table
from fedhet_app.analysis.tables.side import all_runs_table, left_out_table, settings_table


class _Part(Protocol):
    """What a report has of one section, by the paper that it is a study of.

    Attributes:
        FIGURES: File names, drawings and captions.
    """

    FIGURES: Sequence[tuple[str, Callable[[Section], Figure | None], str]]

    def blocks(self, section: Section, /) -> Iterator[Block | None]:
        """Return its tables and what else stands before the figures."""

    def setting(self, config: Mapping[str, Any], /) -> str:
        """Return the network, and how the clients differ."""


@dataclass(kw_only=True)
class _Report:
    """What the report consists of so far."""

    blocks: list[Block] = field(default_factory=list)
    images: dict[str, bytes] = field(default_factory=dict)

    def add_blocks(self, blocks: Iterable[Block | None], prefix: str = "") -> None:
        for block in blocks:
            if isinstance(block, Table):
                self.blocks.append(replace(block, name=prefix + block.name))
            elif block is not None:
                self.blocks.append(block)

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
        folder: Where to; an earlier report there is replaced.

    Returns:
        The HTML page.

    Raises:
        FedhetError: There is no finished run, a file of one is damaged, or the folder cannot be
            written to or holds something else.
    """
    check_folder(folder)  # before the work, which takes a while
    study = load_study(directories)
    report = _report_on(study)
    texts = {
        TEXT: markdown(report.blocks),
        PAGE: html(_title(study), report.blocks, report.images),
    }
    for table in report.blocks:
        if isinstance(table, Table):
            texts[f"tables/{table.name}.md"] = table.markdown() + "\n"
            texts[f"tables/{table.name}.csv"] = table.csv()
    write_files(folder, report.images | {path: text.encode() for path, text in texts.items()})
    return folder / PAGE


def _title(study: Study) -> str:
    subjects = {section.dual: "FedSPM" if section.dual else "HAS-FL" for section in study.sections}
    return f"{' and '.join(subjects[each] for each in sorted(subjects))} {TITLE_END}"


def _report_on(study: Study) -> _Report:
    report = _Report(blocks=[Heading(text=_title(study), level=1)])
    report.add_blocks([left_out_table(study)])
    report.add_blocks([claims_table(study)])
    submodels = tuple(section for section in study.sections if not section.dual)
    if submodels:
        report.add_blocks([open_question_table(replace(study, sections=submodels))])
        caption = "Figure 2. Cost of a client by width, of the full model's."
        report.add_figure(cost_bars(submodels), "figure-2", caption)
    for section, prefix in zip(study.sections, _prefixes(study.sections), strict=True):
        _add_section(report, section, f"{prefix}-")
    return report


def _add_section(report: _Report, section: Section, prefix: str) -> None:
    part: _Part = mixture_part if section.dual else submodel_part
    suite = f" ({section.suite})" if section.suite else ""
    name = _name(section.dataset)
    made = section.dual and section.dataset not in paper_b.NATURAL
    dual = ", dual heterogeneity" if made else ""
    report.blocks.append(Heading(text=f"{name}{dual}{suite}", level=2))
    report.blocks += [Paragraph(text=text) for text in _introduction(section, part)]
    report.add_blocks(part.blocks(section), prefix)
    for key, draw, caption in part.FIGURES:
        report.add_figure(draw(section), prefix + key, f"{name}. {caption}")
    report.add_blocks((all_runs_table(section), settings_table(section)), prefix)


def _name(dataset: str) -> str:
    return paper_a.NAMES.get(dataset) or paper_b.NAMES.get(dataset, dataset)


def _introduction(section: Section, part: _Part) -> Iterator[str]:
    config = (section.of("has-fl") or section.of("fedspm") or section.runs)[0].config
    seeds = sorted({run.seed for run in section.runs})
    yield (
        f"{counted(len(section.runs), 'finished run')}, {counted(len(section.labels), 'label')}, "
        f"seeds {', '.join(map(str, seeds))}. {config['num-server-rounds']} rounds; "
        f"{config['num-clients']} clients, of which {config['fraction-train']:.0%} train in a "
        f"round; {part.setting(config)}."
    )
    if settings_table(section):
        yield "That is not so of every run: the last table of this part lists what differs."
    if examples := config.get("evaluate-examples"):
        yield (
            f"During a run accuracy is measured on {examples} examples of the test set, after its "
            "last round on all of them: best and final are not of the same examples."
        )
    if section.dataset in paper_a.STAND_INS and not section.dual:
        other = paper_a.NAMES[paper_a.source(section.dataset)]
        name = paper_a.NAMES[section.dataset]
        yield f"The paper has no {name}: its {other} numbers, of other data, stand beside these."


def _prefixes(sections: Sequence[Section]) -> list[str]:
    """Return what the names of each section's files start with: its data set, told apart."""
    prefixes: list[str] = []
    for section in sections:
        shared = sum(other.dataset == section.dataset for other in sections) > 1
        dual = "dual" if section.dual else ""
        name = f"{section.dataset} {dual} {section.suite}" if shared else section.dataset
        prefix = re.sub(r"[^\w.]+", "-", name).strip("-.")
        prefixes.append(prefix if prefix not in prefixes else f"{prefix}-{len(prefixes)}")
    return prefixes

import base64
import csv
import re
import sys
from html.parser import HTMLParser

import pytest
from study_runs import COST, adaptation, write_run, write_suite

from fedhet_app import cli
from fedhet_app.analysis.page import Bullets, Heading, Paragraph, html, markdown
from fedhet_app.analysis.report import write_report
from fedhet_app.analysis.study import load_study
from fedhet_app.analysis.tables.claims import claims_table, open_question_table
from fedhet_app.errors import FedhetError

PNG = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """What a browser would see: texts by tag, images, and links to elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.images, self.links = [], {}, [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "img":
            self.images.append(values)
        self.links += [value for name, value in attrs if name in {"href", "src"}]
        if tag not in {"img", "meta"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data.strip())


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A sweep of three methods, one of whose runs has not finished."""
    folder = tmp_path_factory.mktemp("sweep") / "results"
    write_suite(folder, "paper", [("has-fl", 42), ("fjord", 42), ("fedavg", 42), ("fedavg", 43)])
    capacity = [0.25, 0.5, 0.75, 1.0, 0.5, 0.75]
    rows = adaptation(
        15,
        capacity=capacity,
        width=capacity,
        divergence=[2.0, 1.0, 0.8, 0.5, 1.5, 0.9],
        allocated_width=[0.25, 0.5, 0.6, 1.0, 0.5, 0.7],
    )
    tv = [0.3, 0.5, 0.2, 0.6, 0.4, 0.7]
    write_run(folder / "has-fl" / "seed42", clients=rows, tv=tv, cost=COST)
    write_run(folder / "fjord" / "seed42", strategy="fjord", cost=COST)
    write_run(folder / "fedavg" / "seed42", strategy="fedavg", cost=COST)
    write_run(folder / "fedavg" / "seed43", strategy="fedavg", seed=43, status="")
    return folder


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    """The page of the report on it."""
    return write_report([study], tmp_path_factory.mktemp("written") / "report")


def test_the_report_is_one_page_and_a_file_for_each_table_and_figure(page):
    assert page.name == "report.html"
    out = page.parent
    figures = {path.stem for path in (out / "figures").iterdir()}
    assert figures == {"figure-2"} | {f"cifar10-figure-{number}" for number in range(3, 9)}
    assert all(path.read_bytes().startswith(PNG) for path in (out / "figures").iterdir())
    tables = {path.stem for path in (out / "tables").iterdir()}
    assert tables == {"left-out", "claims", "open-question"} | {
        f"cifar10-{name}"
        for name in (
            *("table-2", "table-4", "table-5", "paired-differences"),
            *("audit", "cost", "all-runs"),
        )
    }
    for name in tables:
        shown = (out / "tables" / f"{name}.md").read_text().rstrip("\n")
        assert shown in (out / "report.md").read_text()
        with (out / "tables" / f"{name}.csv").open(newline="") as file:
            read = list(csv.reader(file))
        assert len(read) == len(shown.splitlines()) - 1  # no rule under the header
        assert {len(row) for row in read} == {len(read[0])}


def test_the_page_needs_no_other_file(page):
    seen = Page(page.read_text())
    assert seen.open == []
    assert len(seen.images) == 7
    for image in seen.images:
        kind, data = image["src"].split(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data).startswith(PNG)
        assert image["alt"]
    assert all(link.startswith("data:") for link in seen.links)


def test_markdown_and_page_hold_the_same_numbers(page):
    cells = set(Page(page.read_text()).texts["td"])
    text = page.with_name("report.md").read_text()
    assert {
        "HAS-FL",
        "70.0",
        "74.5 ± 5.6",
        "unfinished: 3 of 120 rounds; continue it with --resume",
    } <= cells
    assert "| HAS-FL | 1 | 80.0 | 76.7 ± 4.9 | 70.0 | 74.5 ± 5.6 | 0.50 | 0.52 |" in text
    assert "| fedavg | 43 | seed43 | unfinished: 3 of 120 rounds" in text
    for path in re.findall(r"\]\((.*?)\)", text):
        assert (page.parent / path).exists()


def test_every_claim_is_judged_in_the_report(study, tmp_path):
    loaded = load_study([study])
    table = claims_table(loaded)
    verdicts = [row[-1] for row in table.rows]
    assert {row[0].split()[0].rstrip(",") for row in table.rows} >= {
        f"A{number}" for number in range(1, 19) if number != 14
    }
    assert all(
        verdict in {"holds", "does not hold"} or verdict.startswith("not measured: ")
        for verdict in verdicts
    )
    holds, fails = verdicts.count("holds"), verdicts.count("does not hold")
    rest = len(verdicts) - holds - fails
    assert table.note == f"{holds} hold, {fails} do not hold, {rest} not measured."
    assert next(row[0] for row in open_question_table(loaded).rows) == "paper"


def test_what_users_named_is_text_and_nothing_else(tmp_path):
    evil = "<script>alert(1)</script> | *a*"
    write_run(tmp_path / "run", dataset=evil)
    page = write_report([tmp_path / "run"], tmp_path / "report")
    assert "<script" not in page.read_text()
    assert evil in Page(page.read_text()).texts["h2"]
    text = page.with_name("report.md").read_text()
    assert r"## &lt;script>alert(1)&lt;/script> \| \*a\*" in text
    assert (page.parent / "tables" / "script-alert-1-script-a-table-2.csv").exists()


def test_the_same_runs_give_the_same_report(study, page, tmp_path):
    write_report([study], tmp_path)
    files = [path for path in page.parent.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        assert path.read_bytes() == (tmp_path / path.relative_to(page.parent)).read_bytes()


def test_suites_on_one_data_set_do_not_overwrite_each_other(tmp_path):
    for name in ("small", "large"):
        write_suite(tmp_path / name, name, [("has-fl", 42)])
        write_run(tmp_path / name / "has-fl" / "seed42")
    page = write_report([tmp_path], tmp_path / "report")
    tables = {path.name for path in (page.parent / "tables").iterdir()}
    assert {"cifar10-large-table-2.csv", "cifar10-small-table-2.csv"} <= tables
    headings = Page(page.read_text()).texts["h2"]
    assert headings == ["CIFAR-10 (large)", "CIFAR-10 (small)"]


def test_the_introduction_says_what_was_measured_on(tmp_path):
    write_run(tmp_path / "run", dataset="femnist", partition="natural", evaluate_examples=2000)
    write_run(tmp_path / "other", dataset="femnist", partition="natural", strategy="fjord", lr=0.5)
    text = write_report([tmp_path], tmp_path / "report").with_name("report.md").read_text()
    assert "2 finished runs, 2 labels, seeds 42." in text
    assert "partition natural." in text
    assert "measured on 2000 examples of the test set" in text
    assert "The paper has no FEMNIST: its EMNIST numbers, of other data, stand beside" in text
    assert "the last table of this part lists what differs" in text


def test_blocks_become_markdown_and_html():
    blocks = [
        Heading(text="A & B", level=2),
        Paragraph(text="1 < 2"),
        Bullets(items=("x", "y_z")),
    ]
    assert markdown(blocks) == "## A & B\n\n1 &lt; 2\n\n- x\n- y\\_z\n"
    page = html("T & t", blocks, {})
    assert "<title>T &amp; t</title>" in page
    assert "<h2>A &amp; B</h2>\n<p>1 &lt; 2</p>\n<ul><li>x</li><li>y_z</li></ul>" in page


def test_a_folder_that_cannot_be_written_to_is_refused(study, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FedhetError, match=r"--out = .*cannot be written to .*; name another"):
        write_report([study], tmp_path / "file")


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_report_replaces_an_earlier_one_and_leaves_what_stands_beside_it(study, page, tmp_path):
    write_run(tmp_path / "run", dataset="digits")
    out = tmp_path / "out"
    write_report([tmp_path / "run"], out)
    assert "tables/digits-table-2.csv" in files_of(out)
    (out / "README.md").write_text("how it was made")
    write_report([study], out)
    assert files_of(out) == files_of(page.parent) | {"README.md"}
    for name in files_of(page.parent):
        assert (out / name).read_bytes() == (page.parent / name).read_bytes()


FOREIGN = {
    "notes.txt": "holds notes.txt and no report; name a new folder, or an empty one",
    "report.md": "holds report.md and no report; name a new folder",
    "tables/mine.csv": "holds tables and no report; name a new folder",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_of_other_files_is_refused_and_left_as_it_is(name, study, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("# A study")
    with pytest.raises(FedhetError, match=f"--out = .*: {FOREIGN[name]}"):
        write_report([study], tmp_path)
    assert files_of(tmp_path) == {name}


@pytest.mark.parametrize("name", ["tables/notes.txt", "figures/old.csv", "figures/more/a.png"])
def test_other_files_among_those_of_a_report_are_not_removed(name, study, tmp_path):
    write_report([study], tmp_path)
    before = files_of(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    found = "/".join(name.split("/")[:2])
    with pytest.raises(FedhetError, match=f"holds {found}, which no report writes; move it else"):
        write_report([study], tmp_path)
    assert files_of(tmp_path) == before | {name}


def fedhet(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedhet", *map(str, arguments)])
    with pytest.raises(SystemExit) as status:
        cli.main()
    return status.value.code


def test_the_command_ends_with_the_page(study, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert fedhet(monkeypatch, "report", study, "--out", out) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "report.html")


def test_the_command_refuses_a_folder_without_runs(tmp_path, monkeypatch, capsys):
    assert fedhet(monkeypatch, "report", tmp_path) == cli.USER_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds no config.json" in line

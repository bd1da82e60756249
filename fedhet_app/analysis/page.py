"""A report as blocks, written as markdown and as one HTML page that holds its images."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fedhet_app.analysis.tables.cells import Table, escaped

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 68rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; margin: 2rem 0 .6rem; }
h2 { border-bottom: 1px solid #ccc; padding-bottom: .2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right;
         vertical-align: top; }
th { border-bottom: 2px solid #888; vertical-align: bottom; }
th:first-child, td:first-child, td.text { text-align: left; }
td.text { max-width: 22rem; }
.note { color: #555; font-size: .875rem; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .875rem; }
"""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A heading; level 1 is the page's title."""

    text: str
    level: int


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of plain texts."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Image:
    """A figure: the path of its PNG, relative to the report, and what it shows."""

    path: str
    caption: str


Block = Heading | Paragraph | Bullets | Image | Table


def markdown(blocks: Sequence[Block]) -> str:
    """Return blocks as GitHub's markdown, images by their paths."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def html(title: str, blocks: Sequence[Block], images: Mapping[str, bytes]) -> str:
    """Return one page that needs no other file.

    Args:
        title: The browser's title.
        blocks: What is on it, in order.
        images: PNG files by path.
    """
    body = "\n".join(_html(block, images) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {escaped(block.text)}"
        case Paragraph():
            return escaped(block.text)
        case Bullets():
            return "\n".join(f"- {escaped(item)}" for item in block.items)
        case Image():
            return f"![{escaped(block.caption)}]({block.path})\n\n{escaped(block.caption)}"
        case Table():
            note = f"\n\n{escaped(block.note)}" if block.note else ""
            return f"**{escaped(block.title)}**\n\n{block.markdown()}{note}"


def _html(block: Block, images: Mapping[str, bytes]) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
        case Paragraph():
            return f"<p>{escape(block.text)}</p>"
        case Bullets():
            items = "".join(f"<li>{escape(item)}</li>" for item in block.items)
            return f"<ul>{items}</ul>"
        case Image():
            data = base64.b64encode(images[block.path]).decode("ascii")
            return (
                f'<figure><img alt="{escape(block.caption)}" src="data:image/png;base64,{data}">'
                f"<figcaption>{escape(block.caption)}</figcaption></figure>"
            )
        case Table():
            return _html_table(block)


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column.name)}</th>" for column in table.columns)
    body = []
    for row, texts in zip(table.rows, table.texts(), strict=True):
        cells = (
            f"<td{' class=text' if isinstance(cell, str) else ''}>{escape(text)}</td>"
            for cell, text in zip(row, texts, strict=True)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h3>{escape(table.title)}</h3>\n<div class="wide"><table>\n<thead><tr>{head}</tr></thead>'
        f"\n<tbody>\n{chr(10).join(body)}\n</tbody>\n</table></div>{note}"
    )

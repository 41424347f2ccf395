"""A report as one self-contained HTML page: no scripts, no network, readable on a phone and on paper.

Everything that comes from outside (kernel names, paths) is escaped, and control characters are shown as escapes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from decodecalc._version import __version__
from decodecalc.safetext import plain
from decodecalc.tables.table import Table

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #18794e; --bad: #c62828; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
h1 { font-size: 1.35rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: 4px solid var(--line); padding: .4rem .8rem; background: var(--soft); }
.passed { border-color: var(--good); } .failed { border-color: var(--bad); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; white-space: nowrap; }
td.number, th.number { text-align: right; }
td.good { color: var(--good); font-weight: 600; } td.bad { color: var(--bad); font-weight: 600; }
details { margin: .4rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
li, p, dd { overflow-wrap: anywhere; } dl { display: grid; grid-template-columns: auto 1fr; gap: 0 1rem; }
dt { color: #888; } dd { margin: 0; } footer { color: #888; margin-top: 2rem; font-size: .85rem; }
figure { margin: 1rem 0; } figcaption { color: #888; font-size: .85rem; }
figure img { width: 100%; max-width: 60rem; height: auto; background: #fff; border-radius: 4px; }
@media (max-width: 40rem) { th, td { padding: .3rem; white-space: normal; } td.number { white-space: nowrap; } }
@media print { details > * { display: block; } }
"""
GOOD = frozenset({"match", "consistent", "passed", "pass", "yes", "ok"})
BAD = frozenset({"mismatch", "refused", "failed", "fail", "no", "error"})


@dataclass(frozen=True)
class Details:
    """A block to open under a table: a summary line and what is behind it, as lines or as name-value pairs."""

    summary: str
    lines: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Figure:
    """A picture inside the page. svg: the file's bytes; caption: what it shows, read out to who cannot see it."""

    svg: bytes
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading, figures, a table and blocks to open."""

    title: str
    table: Table | None = None
    details: Sequence[Details] = ()
    figures: Sequence[Figure] = ()


def page(title: str, sections: Sequence[Section], *, verdict: str = "", passed: bool | None = None) -> str:
    """The page. passed colours the verdict; None leaves it plain."""
    mark = "" if passed is None else " passed" if passed else " failed"
    body = [f"<h1>{_text(title)}</h1>"]
    if verdict:
        body.append(f'<p class="verdict{mark}">{_text(verdict)}</p>')
    for section in sections:
        body += _section(section)
    body.append(f"<footer>decodecalc {_text(__version__)}</footer>")
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n"
    )
    return head + "\n".join(body) + "\n</body></html>\n"


def _section(section: Section) -> list[str]:
    out = [f"<h2>{_text(section.title)}</h2>"] if section.title else []
    out += [_figure(figure) for figure in section.figures]
    if section.table is not None:
        out += _table(section.table)
    for block in section.details:
        lines = "".join(f"<li>{_text(line)}</li>" for line in block.lines)
        pairs = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in block.pairs)
        inside = (f"<dl>{pairs}</dl>" if pairs else "") + (f"<ul>{lines}</ul>" if lines else "")
        out.append(f"<details><summary>{_text(block.summary)}</summary>{inside}</details>")
    return out


def _figure(figure: Figure) -> str:
    """An image of its own (not inline markup): two pictures cannot clash over the names inside them."""
    data = b64encode(figure.svg).decode()
    caption = _text(figure.caption)
    image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _table(table: Table) -> list[str]:
    out = [f"<p>{_text(line)}</p>" for line in table.heading]
    if table.rows:
        columns = table.shown_columns()
        head = "".join(f"<th{_number(c.align)}>{_text(c.title)}</th>" for c in columns)
        out.append(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>')
        for row in table.rows:
            cells = "".join(_cell(c.text(row), c.align) for c in columns)
            out.append(f"<tr>{cells}</tr>")
        out.append("</tbody></table></div>")
    if table.notes:
        out.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in table.notes) + "</ul>")
    return out


def _cell(text: str, align: str) -> str:
    kind = "good" if text in GOOD else "bad" if text in BAD else "number" if align == "right" else ""
    return f"<td{f' class={kind}' if kind else ''}>{_text(text)}</td>"


def _number(align: str) -> str:
    return " class=number" if align == "right" else ""


def _text(value: Any) -> str:
    return escape(plain(value), quote=True)

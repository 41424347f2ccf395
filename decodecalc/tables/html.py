"""An answer as one self-contained HTML page: no scripts, no network, readable on a phone, in the dark and on paper.

A page goes from the answer to what stands behind it: the answer in a box, what was asked, what failed, figures, tables,
the meaning of the words, and last the exact command with the versions and sources that it used. Everything that comes
from outside (kernel names, paths) is escaped, and control characters are shown as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from decodecalc._version import __version__
from decodecalc.safetext import plain
from decodecalc.tables.glossary import meanings
from decodecalc.tables.svg import inline
from decodecalc.tables.table import BAD, GOOD, OFF, Column, Table
from decodecalc.units import counted

SOME_COLUMNS, MANY_COLUMNS = 4, 8
"""A table with more columns than the first turns into a list of records on a phone, with more than the second on a
tablet already."""
SYMBOLS = {GOOD: "✓", BAD: "✗", OFF: "!"}
"""What stands for a mark besides its colour, for readers who cannot tell the colours apart."""

# A table as a list of records, a heading beside each value.
_RECORDS = """@media (max-width: WIDTH) { .NAME thead { display: none; } .NAME, .NAME tbody { display: block; }
  .NAME tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: 0 1rem; padding:
  .5rem .3rem;
    border-bottom: 1px solid var(--line); }
  .NAME td, .NAME td.right { display: flex; justify-content: space-between; gap: .6rem; border: 0; padding: .1rem 0;
    text-align: right; white-space: nowrap; min-width: 0; }
  .NAME td.long { grid-column: 1 / -1; white-space: normal; overflow-wrap: anywhere; justify-content: flex-start; }
  .NAME td.text { display: block; white-space: normal; overflow-wrap: anywhere; text-align: left; grid-column: 1 / -1; }
  .NAME td.text::before { margin-right: .6rem; }
  .NAME td::before { content: attr(data-label); color: var(--dim); font-weight: 400; text-align: left; white-space:
  normal;
    overflow-wrap: normal; }
  .NAME td:first-child { grid-column: 1 / -1; font-weight: 700; text-align: left; justify-content: flex-start;
    white-space: normal; overflow-wrap: anywhere; }
  .NAME td.none { display: none; } }"""
_HINT = re.compile(r"(; | \()-v says why\)?")
"""What only a terminal can follow: a page shows all."""
_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --ink: #1b1f24; --dim: #59636e; --line: #d1d9e0; --soft: #f6f8fa;
  --good: #18794e; --bad: #c62828; --off: #8a5a00; --bad-soft: #c6282814; --link: #0757a8; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --ink: #e6e8ea; --dim: #9aa4ad; --line: #3a424a;
  --soft: #1d2226; --good: #4cc38a; --bad: #ff7b72; --off: #e3b341; --bad-soft: #ff7b7222;
  --link: #79b8ff; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 82rem; padding: 1rem 1.25rem; color: var(--ink);
  background: var(--back); }
h1 { font-size: 1.1rem; font-weight: 600; color: var(--dim); margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, li, dd, summary { overflow-wrap: anywhere; } p { max-width: 60rem; margin: .4rem 0; } .dim { color: var(--dim); }
.answer { font-size: 1.2rem; line-height: 1.4; font-weight: 600; max-width: none; margin: 0 0 .8rem;
  border: 1px solid var(--line); border-left: .4rem solid var(--line); border-radius: .3rem; padding: .7rem 1rem;
  background: var(--soft); }
.answer.good { border-left-color: var(--good); } .answer.bad { border-left-color: var(--bad); color: var(--bad); }
.answer.off { border-left-color: var(--off); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .45rem; text-align: left; vertical-align: top; }
th { vertical-align: bottom; font-weight: 600; line-height: 1.25; hyphens: manual; }
td { white-space: nowrap; } td.text { white-space: normal; min-width: 9rem; overflow-wrap: break-word; }
td.right, th.right { text-align: right; }
tbody tr:hover { background: var(--soft); } tr.bad { background: var(--bad-soft); }
td.good { color: var(--good); } td.bad { color: var(--bad); font-weight: 700; }
td.off { color: var(--off); font-weight: 700; }
abbr { text-decoration: underline dotted var(--dim) 1px; text-underline-offset: .2em; cursor: help; }
details { margin: .4rem 0; } summary { cursor: pointer; } summary.bad { color: var(--bad); font-weight: 600; }
summary.off { color: var(--off); font-weight: 600; }
ul { padding-left: 1.2rem; max-width: 60rem; } dl { display: grid; grid-template-columns: max-content 1fr; gap:
  .15rem 1rem;
  margin: .4rem 0; max-width: 70rem; } dt { color: var(--dim); } dd { margin: 0; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: .3rem; padding: .5rem .7rem; margin:
  .4rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; font: .85rem/1.45 ui-monospace, monospace; }
footer { color: var(--dim); margin-top: 2rem; font-size: .85rem; }
figure { margin: 1rem 0; max-width: 34rem; } figcaption { color: var(--dim); font-size: .85rem; }
figure svg { width: 100%; height: auto; display: block; }
@RECORDS@
@media (max-width: 40rem) { body { padding: .75rem; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin: 0 0
  .4rem; }
  th, td { padding: .3rem .35rem; white-space: normal; } td.right { white-space: nowrap; } .answer { font-size:
  1.05rem; } }
@media print { :root { --back: #fff; --ink: #000; } details > * { display: block; } }
""".replace(
    "@RECORDS@",
    "\n".join(
        _RECORDS.replace("NAME", name).replace("WIDTH", width) for name, width in (("many", "64rem"), ("some", "40rem"))
    ),
)


@dataclass(frozen=True)
class Details:
    """A block to open under a table: a summary line and what is behind it, as lines or as name-value pairs.

    mark: colours the summary line.
    """

    summary: str
    lines: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    mark: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture inside the page. svg: the file's bytes; caption: what it shows, read out to who cannot see it; title:
    the question that it answers, which stands above it."""

    svg: bytes
    caption: str
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, figures, a table and blocks to open."""

    title: str
    table: Table | None = None
    details: Sequence[Details] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Origin:
    """How the page was made. command: what to type to make it again; pairs: versions and sources by name."""

    command: str = ""
    pairs: Sequence[tuple[str, str]] = ()


def page(
    title: str,
    sections: Sequence[Section],
    *,
    answer: str = "",
    mark: str = "",
    origin: Origin | None = None,
) -> str:
    """The page. answer: the sentence in the box; mark: GOOD, OFF or BAD colours it. The headings of tables are
    explained as `decodecalc glossary` explains them."""
    body = [f"<h1>{_text(title)}</h1>"]
    if answer:
        symbol = f"{SYMBOLS[mark]} " if mark else ""
        body.append(f'<p class="answer{f" {mark}" if mark else ""}">{symbol}{_text(answer)}</p>')
    drawn = 0
    for section in sections:
        body += _section(section, drawn)
        drawn += len(section.figures)
    body += _meanings(sections) + _origin(origin or Origin())
    body.append(f"<footer>decodecalc {_text(__version__)}</footer>")
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n"
    )
    return head + "\n".join(body) + "\n</body></html>\n"


def _section(section: Section, drawn: int) -> list[str]:
    out = [f"<h2>{_text(section.title)}</h2>"] if section.title else []
    out += [_figure(figure, f"f{drawn + n}-") for n, figure in enumerate(section.figures)]
    if section.table is not None:
        out += _table(section.table)
    out += [_details(block) for block in section.details]
    return out


def _details(block: Details) -> str:
    lines = "".join(f"<li>{_text(line)}</li>" for line in block.lines)
    pairs = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in block.pairs)
    inside = (f"<dl>{pairs}</dl>" if pairs else "") + (f"<ul>{lines}</ul>" if lines else "")
    return f"<details><summary{_class(block.mark)}>{_text(block.summary)}</summary>{inside}</details>"


def _figure(figure: Figure, prefix: str) -> str:
    caption = _text(figure.caption)
    title = f"<strong>{_text(figure.title)}</strong>" if figure.title else ""
    return f"<figure>{title}{inline(figure.svg, prefix, caption)}<figcaption>{caption}</figcaption></figure>"


def _meanings(sections: Sequence[Section]) -> list[str]:
    """The legend of the headings that the page has: a phone has no pointer to hold over a word."""
    pairs = [pair for s in sections if s.table is not None and s.table.rows for pair in meanings(s.table).items()]
    return [_details(Details("What the words mean", pairs=list(dict.fromkeys(pairs))))] if pairs else []


def _origin(origin: Origin) -> list[str]:
    out = ["<h2>How this page was made</h2>"] if origin.command or origin.pairs else []
    out += [f"<pre>{_text(origin.command)}</pre>"] if origin.command else []
    pairs = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in origin.pairs)
    return out + ([f"<dl>{pairs}</dl>"] if pairs else [])


def _table(table: Table) -> list[str]:
    heading = [_HINT.sub("", line) for line in table.heading]
    out = [f"<p{_class('dim' if n else '')}>{_text(line)}</p>" for n, line in enumerate(heading)]
    rows, words = table.shown_rows(), meanings(table)
    if rows:
        columns, same = _told_apart(table.shown_columns(), rows)
        out += [f'<p class="dim">In every row: {_text(", ".join(same))}.</p>'] if same else []
        columns, rest = _fitting(columns, rows)
        out += _grid(columns, rows, words)
        if rest:
            out += ["<details><summary>More columns</summary>", *_grid([columns[0], *rest], rows, words), "</details>"]
    below = [_HINT.sub("", line) for line in (*table.facts, *table.notes)]
    if below:
        out.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in below) + "</ul>")
    if table.details:
        out.append(_details(Details(f"{counted(len(table.details), 'more note')}", table.details)))
    return out


def _grid(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], words: Mapping[str, str]) -> list[str]:
    long = {c.key for c in columns if c.align == "left" and max(len(c.text(row)) for row in rows) > LONG_TEXT}
    head = "".join(f"<th{_class('right' if c.align == 'right' else '')}>{_word(c.title, words)}</th>" for c in columns)
    size = len(columns)
    kind = "many" if size > MANY_COLUMNS or (long and size > SOME_COLUMNS) else "some" if size > SOME_COLUMNS else ""
    out = [f'<div class="wide"><table{_class(kind)}><thead><tr>{head}</tr></thead><tbody>']
    for row in rows:
        marks = [c.marked(row) for c in columns]
        cells = "".join(_cell(c, row, mark, c.key in long) for c, mark in zip(columns, marks))
        failed = _class(BAD if BAD in marks else "")
        out.append(f"<tr{failed}>{cells}</tr>")
    return [*out, "</tbody></table></div>"]


def _fitting(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[Column]]:
    """The columns that fit side by side on a laptop's screen, and the others: the least important go, from the
    right."""
    sizes = {c.key: _pixels(c, rows) for c in columns}
    shown = list(columns)
    while sum(sizes[c.key] for c in shown) > ROOM:
        spare = [c for c in shown[1:] if c.rank]
        if not spare:
            break
        place = max(range(len(spare)), key=lambda i: (spare[i].rank, i))
        shown.remove(spare[place])
    return shown, [c for c in columns if c not in shown]


def _pixels(column: Column, rows: Sequence[Mapping[str, Any]]) -> float:
    """About how wide the column is: headings fold at spaces, long texts fold at words."""
    longest = max(len(column.text(row)) for row in rows)
    heading = max(map(len, column.title.split()), default=0)
    return LETTER * max(min(longest, LONG_TEXT) if column.align == "left" else longest, heading) + 2 * PADDING


def _told_apart(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[str]]:
    """The columns that tell the rows apart, and what the others say in every row: a table of many rows stays narrow."""
    if len(rows) < FEW_ROWS:
        return list(columns), []
    alike = {c.key for c in columns[1:] if c.title and len({c.text(row) for row in rows}) == 1}
    same = [f"{c.title} {c.text(rows[0])}" for c in columns if c.key in alike and c.text(rows[0]) not in ("-", "")]
    return [c for c in columns if c.key not in alike], same


FEW_ROWS = 3
ROOM, LETTER, PADDING = 1200.0, 7.9, 7.0
"""Pixels: a window of 1280 without its margins, a letter of a wide font, the space on one side of a cell."""
LONG_TEXT, LONG_RECORD = 28, 19
"""Letters: a column with a longer text is folded at words; in a list of records a longer text with its heading has a
line of its own."""


def _cell(column: Column, row: Mapping[str, Any], mark: str, long: bool) -> str:
    text = column.text(row)
    longest_word = max(map(len, column.title.split()), default=0)
    kinds = [
        "right" if column.align == "right" else "",
        "text" if long else "long" if len(text) + longest_word > LONG_RECORD else "",
        mark,
        "none" if text in ("-", "") else "",
    ]
    label = f' data-label="{_text(column.title)}"' if column.title else ""
    return f"<td{_class(' '.join(kind for kind in kinds if kind))}{label}>{_text(text)}</td>"


def _word(title: str, words: Mapping[str, str]) -> str:
    meaning = words.get(title)
    return _text(title) if meaning is None else f'<abbr title="{_text(meaning)}">{_text(title)}</abbr>'


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _text(value: Any) -> str:
    return escape(plain(value), quote=True)

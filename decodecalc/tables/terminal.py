"""A table on a terminal: the answer first, then what fits, whole; text wraps at words, and nothing is cut in a cell.

Where the width is short, headings take several lines and text wraps. Then what every row has in common goes into one
line, the least important columns go (`Column.rank`, from the right; a line says which they were), and a cell that
people copy moves to a line of its own (`Column.below`). Where even the columns that always stay have no place, every
row becomes a short record.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from decodecalc.safetext import plain

if TYPE_CHECKING:
    from decodecalc.tables.table import Column, Table

GAP = 2  # spaces between columns
UNBROKEN = 16  # text up to this width is not wrapped: names, grids
LONGEST_WORD = 34  # longer words (paths, addresses) are folded in a narrow column; names of rows and flags never are
TITLE_LINES = 2  # lines that a heading takes at most
RECORD_RANK = 1  # the highest rank that a record shows
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_STYLE = re.compile("\x1b\\[[0-9]m")
_LABEL = re.compile(r"^( *)(\S+ {2,}|[-•] )?")


class Layout(NamedTuple):
    """Where the columns go, each by its index."""

    shown: tuple[int, ...]
    """Columns in the rows, or in the records."""
    widths: tuple[int, ...]
    """The width of each of them in a row; empty for records."""
    below: tuple[int, ...]
    """Columns whose cells stand on a line of their own below their row."""
    common: tuple[int, ...]
    """Columns without a place that have one value in all rows, which is said once."""
    hidden: tuple[int, ...]
    """Columns that are left out."""
    records: bool
    """Whether every row becomes a record."""


def layout(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> Layout:
    """How to show `cells` (rows of one text per column, headings not included) in `width` characters."""
    content = [max((len(row[i]) for row in cells), default=0) for i in range(len(columns))]
    full = [max(len(column.title), size) for column, size in zip(columns, content)]
    two_line_titles = [max(_title_width(c.title), size) for c, size in zip(columns, content)]
    least = [
        _wrapped_width(column, [row[i] for row in cells], whole_words=not i)
        if column.align == "left" and not column.below and content[i] > UNBROKEN
        else two_line_titles[i]
        for i, column in enumerate(columns)
    ]
    same = {i for i in range(len(columns)) if len({row[i] for row in cells}) == 1}
    # One row has every value in common with itself; its columns go by rank.
    said_once = {i for i in same if i} if len(cells) > 1 else set()
    shown = list(range(len(columns)))
    gone: set[int] = set()

    def too_wide() -> bool:
        return sum(least[i] for i in shown) + GAP * (len(shown) - 1) > width

    for rank in (1, 0):  # those that may be left out, then those that always stay
        if too_wide():
            gone |= {i for i in said_once if columns[i].rank >= rank}
            shown = [i for i in shown if i not in gone]
    while too_wide():
        spare = [i for i in shown if columns[i].rank or columns[i].below]
        if not spare or len(shown) == 1:
            gone = {i for i, column in enumerate(columns) if column.rank > RECORD_RANK} | said_once
            shown = [i for i in range(len(columns)) if i not in gone]
            return Layout(tuple(shown), (), (), tuple(sorted(gone & same)), tuple(sorted(gone - same)), True)
        gone.add(max(spare, key=lambda i: (columns[i].rank, columns[i].below, i)))
        shown = [i for i in shown if i not in gone]
    below = {i for i in gone if columns[i].below and i not in said_once}
    common = (gone - below) & same
    widths = _narrowed(shown, full, (two_line_titles, least), width)
    hidden = gone - below - common
    return Layout(tuple(shown), widths, tuple(sorted(below)), tuple(sorted(common)), tuple(sorted(hidden)), False)


def _narrowed(shown: list[int], full: list[int], floors: Sequence[list[int]], width: int) -> tuple[int, ...]:
    """Widths of the columns shown: their full ones, narrowed to the first floor and then to the next until they fit."""
    widths = {i: full[i] for i in shown}
    excess = sum(widths.values()) + GAP * (len(shown) - 1) - width
    for floor in floors:
        while excess > 0:
            i = max(shown, key=lambda i: widths[i] - floor[i])
            room = widths[i] - floor[i]
            if room == 0:
                break
            # Narrow the widest only as far as the next: no column pays for all.
            step = max(1, min(room, excess) // 2)
            widths[i] -= step
            excess -= step
    return tuple(widths[i] for i in shown)


def _wrapped_width(column: Column, texts: Sequence[str], whole_words: bool) -> int:
    """The least width of a column of text that wraps."""
    return max(longest_word(texts, None if whole_words else LONGEST_WORD), _title_width(column.title), UNBROKEN)


def _title_width(title: str) -> int:
    """The least width at which a heading takes at most TITLE_LINES lines."""
    width = longest_word([title])
    while len(wrapped(title, max(width, 1))) > TITLE_LINES:
        width += 1
    return width


def longest_word(texts: Sequence[str], fold_at: int | None = None) -> int:
    """The width that texts need so that only words longer than `fold_at` are folded, and no flag."""
    words = {word for text in texts for word in text.split()}
    return max((len(w) if fold_at is None or _is_flag(w) else min(len(w), fold_at) for w in words), default=0)


def _is_flag(word: str) -> bool:
    return word.lstrip("`'\"(").startswith("-")


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` characters. A word that is longer is folded, a flag stands whole."""
    lines: list[str] = []
    for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]:
        while len(line) > width and not any(_is_flag(word) for word in line.split()):
            lines.append(line[:width])
            line = line[width:]
        lines.append(line)
    return lines


def has_label(text: str) -> bool:
    """Whether a line begins with a label in a column of its own, or stands in the column beside one."""
    found = _LABEL.match(text)
    return found is not None and ((found[2] or "").endswith("  ") or len(found[1]) > 2)


def sentence_lines(text: str, width: int) -> list[str]:
    """A line of prose folded at words; what goes on stands under the text and not under its label or its dash."""
    lead = _LABEL.match(text)
    hang = len(lead[0]) if lead is not None and len(lead[0]) < width // 2 else 0
    return textwrap.wrap(
        text, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False, tabsize=1
    ) or [""]


def render_terminal(table: Table, width: int, verbose: bool = False, color: bool = True) -> str:
    """The table with the answer in bold and a rule under the headings, at most `width` characters wide where no single
    flag is wider."""
    columns = table.shown_columns()
    cells = [[column.text(row) for column in columns] for row in table.shown_rows()]
    found = layout(columns, cells, width)
    out: list[str] = []
    if table.answer:
        out += _styled(sentence_lines(plain(table.answer), width), BOLD)
    for line in table.heading:
        style = DIM if line.startswith("defaults") or table.answer else BOLD
        out += _styled(sentence_lines(plain(line), width), style)
    said_once = [
        f"{columns[i].title} {cells[0][i]}".strip() for i in found.common if cells and cells[0][i] not in ("", "-")
    ]
    if said_once and len(cells) > 1:
        out += _styled(sentence_lines(f"in every row: {'; '.join(said_once)}", width), DIM)
    if out and cells:
        out.append("")
    if cells:
        out += _records(columns, cells, found, width) if found.records else _grid(columns, cells, found, width)
    below: list[str] = []
    if said_once and len(cells) == 1:
        below += sentence_lines(f"also: {'; '.join(said_once)}", width)
    if found.hidden and cells:
        names = ", ".join(columns[i].title for i in found.hidden)
        below += _styled(sentence_lines(f"left out at this width: {names} (all are in --format csv)", width), DIM)
    for line in table.below(verbose):
        below += sentence_lines(plain(line), width)
    if cells and table.answer and table.command != "glossary":
        below += _styled(sentence_lines("`decodecalc glossary HEADING` explains a heading.", width), DIM)
    if below and out:
        out.append("")
    text = "\n".join([*out, *below]) + "\n"
    return text if color else _STYLE.sub("", text)


def _styled(lines: list[str], style: str) -> list[str]:
    return [f"{style}{line}{PLAIN}" if line else line for line in lines]


def _grid(columns: Sequence[Column], cells: Sequence[Sequence[str]], found: Layout, width: int) -> list[str]:
    titles = [wrapped(columns[i].title, max(size, 1)) for i, size in zip(found.shown, found.widths)]
    height = max(map(len, titles))
    titles = [[""] * (height - len(lines)) + lines for lines in titles]
    aligns = [columns[i].align for i in found.shown]
    out = _styled(_row_lines(titles, found.widths, aligns), BOLD)
    out.append("─" * min(sum(found.widths) + GAP * (len(found.widths) - 1), width))
    for row in cells:
        out += _row_lines([wrapped(row[i], max(size, 1)) for i, size in zip(found.shown, found.widths)],
                          found.widths, aligns)  # fmt: skip
        for i in found.below:
            if row[i] not in ("", "-"):
                out += _below_lines(columns[i].title, row[i], width)
    return out


def _row_lines(texts: list[list[str]], widths: Sequence[int], aligns: Sequence[str]) -> list[str]:
    out = []
    for k in range(max(map(len, texts))):
        line = [lines[k] if k < len(lines) else "" for lines in texts]
        padded = [t.ljust(w) if align == "left" else t.rjust(w) for t, w, align in zip(line, widths, aligns)]
        out.append((" " * GAP).join(padded).rstrip())
    return out


def _below_lines(title: str, text: str, width: int) -> list[str]:
    """A cell that has no place in its row, with its heading where both fit on a line."""
    room = max(width - GAP, 1)
    whole = f"{title}: {text}"
    lines = [whole] if len(whole) <= room else wrapped(text, room)
    return [" " * GAP + line for line in lines]


def _records(columns: Sequence[Column], cells: Sequence[Sequence[str]], found: Layout, width: int) -> list[str]:
    """Every row as its first cell and, below it, headings and values one after another."""
    first, *rest = found.shown
    room = max(width - GAP - 1, 1)  # a semicolon may follow
    out: list[str] = []
    for row in cells:
        out += _styled(wrapped(row[first], width), BOLD)
        line = ""
        for i in rest:
            if row[i] in ("", "-"):
                continue
            pair = f"{columns[i].title} {row[i]}".strip()
            joined = f"{line}; {pair}" if line else pair
            if len(joined) <= room:
                line = joined
                continue
            if line:
                out.append(" " * GAP + line + ";")
            *full, line = wrapped(pair, room)
            out += [" " * GAP + part for part in full]
        if line:
            out.append(" " * GAP + line)
    return out

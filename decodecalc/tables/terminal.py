"""A table on a terminal: what fits is shown whole, text wraps at words, and what does not fit is left out by name.

Nothing is cut inside a cell without need: a table whose numbers are folded over three lines cannot be read. Columns
that have to go are the least important ones (`Column.rank`), from the right, and a line says which they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from decodecalc.safetext import plain

if TYPE_CHECKING:
    from decodecalc.tables.table import Column, Table

GAP = 2  # spaces between columns
UNBROKEN = 16  # text up to this width is not wrapped: names, grids
LONGEST_WORD = 34  # longer words (paths) are folded where a column has to be narrowed


class Layout(NamedTuple):
    """Indexes of the columns shown, the width of each, and the indexes of those left out."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    hidden: tuple[int, ...]


def layout(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> Layout:
    """How to show `cells` (rows of one text per column, headings not included) in `width` characters."""
    texts = [[column.title, *(row[i] for row in cells)] for i, column in enumerate(columns)]
    full = [max(map(len, column)) for column in texts]
    least = [
        size if column.align != "left" or size <= UNBROKEN else max(_longest_word(text), UNBROKEN)
        for column, size, text in zip(columns, full, texts)
    ]
    shown = list(range(len(columns)))
    while sum(least[i] for i in shown) + GAP * (len(shown) - 1) > width:
        spare = [i for i in shown if columns[i].rank]
        if not spare or len(shown) == 1:
            break
        shown.remove(max(spare, key=lambda i: (columns[i].rank, i)))
    widths = {i: full[i] for i in shown}
    excess = sum(widths.values()) + GAP * (len(shown) - 1) - width
    while excess > 0:
        i = max(shown, key=lambda i: widths[i] - least[i])
        room = widths[i] - least[i]
        if room == 0:
            break
        # Narrow the widest text only as far as the next: no column pays for all.
        step = max(1, min(room, excess) // 2) if room > 1 else 1
        widths[i] -= step
        excess -= step
    hidden = tuple(i for i in range(len(columns)) if i not in shown)
    return Layout(tuple(shown), tuple(widths[i] for i in shown), hidden)


def _longest_word(texts: Sequence[str]) -> int:
    return min(max((len(word) for text in texts for word in text.split()), default=0), LONGEST_WORD)


def render_terminal(table: Table, width: int) -> str:
    """The table with a bold heading and a rule under the titles, at most `width` characters wide."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(width=width, force_terminal=True, highlight=False)
    columns = table.shown_columns()
    cells = [[column.text(row) for column in columns] for row in table.shown_rows()]
    found = layout(columns, cells, width)
    grid = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for i, size in zip(found.shown, found.widths):
        justify = "left" if columns[i].align == "left" else "right"
        grid.add_column(columns[i].title, justify=justify, width=size, overflow="fold")  # type: ignore[arg-type]
    for row in cells:
        grid.add_row(*(Text(row[i]) for i in found.shown))
    with console.capture() as capture:
        for line in table.heading:
            console.print(Text(plain(line), style="dim" if line.startswith("defaults") else "bold"))
        if table.heading:
            console.print()
        console.print(grid)
        if table.notes or found.hidden:
            console.print()
        if found.hidden:
            names = ", ".join(columns[i].title for i in found.hidden)
            console.print(Text(f"left out at this width: {names} (all are in --format csv)", style="dim"))
        for note in table.notes:
            console.print(Text(plain(note)))
    return capture.get()

"""Tables on terminals: whole where they fit, text wrapped at words, columns left out by name, numbers never folded."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.tables.render import render
from decodecalc.tables.table import Column, Table
from decodecalc.tables.terminal import GAP, UNBROKEN, layout

ENGINE = Column("engine", "engine", align="left", rank=0)
COLUMNS = (ENGINE, Column("a", "first"), Column("b", "second", rank=2), Column("c", "third"))
ROWS = [{"engine": "flash-attention-3", "a": 1234567, "b": 7654321, "c": 1111111}]


def shown(table: Table, width: int) -> list[str]:
    """Lines of the terminal form, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", render(table, "table", terminal=True, width=width)).splitlines()


def test_a_table_that_fits_is_shown_whole() -> None:
    """No column is missing and no line says so."""
    lines = shown(Table("t", {}, ROWS, COLUMNS), 80)
    assert lines[0].split() == ["engine", "first", "second", "third"]
    assert lines[2].split() == ["flash-attention-3", "1234567", "7654321", "1111111"]
    assert not any("left out" in line for line in lines)


def test_what_does_not_fit_is_left_out_by_rank_then_from_the_right() -> None:
    """The highest rank goes first; the line below names what went; what is left is not folded."""
    lines = shown(Table("t", {}, ROWS, COLUMNS), 38)
    assert lines[0].split() == ["engine", "first", "third"]
    assert "left out at this width: second" in lines[4]
    lines = shown(Table("t", {}, ROWS, COLUMNS), 28)
    assert lines[0].split() == ["engine", "first"]
    assert lines[2].split() == ["flash-attention-3", "1234567"]


def test_long_text_wraps_at_words_before_a_column_is_left_out() -> None:
    """A sentence takes several lines, the numbers beside it one."""
    columns = (ENGINE, Column("note", "note", align="left"), Column("a", "first"))
    rows = [{"engine": "x", "note": "starting and ending blocks, one after another", "a": 1234567}]
    lines = shown(Table("t", {}, rows, columns), 45)
    assert lines[0].split() == ["engine", "note", "first"]
    assert lines[2].split()[-1] == "1234567"
    text = " ".join(" ".join(line.split()) for line in lines[2:5]).replace("x ", "").replace(" 1234567", "")
    assert "starting and ending blocks, one after another" in text


@given(
    st.lists(st.tuples(st.text("ab ", max_size=40), st.booleans(), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(20, 120),
)
def test_a_layout_fits_or_has_nothing_left_to_leave_out(given_columns: list, width: int) -> None:
    """Shown and hidden columns are all columns; numbers and short text keep their width."""
    columns = [
        Column(str(i), "t", None, "left" if left else "right", rank) for i, (_, left, rank) in enumerate(given_columns)
    ]
    cells = [[text for text, _, _ in given_columns]]
    found = layout(columns, cells, width)
    assert sorted((*found.shown, *found.hidden)) == list(range(len(columns)))
    assert all(columns[i].rank for i in found.hidden)
    for i, size in zip(found.shown, found.widths):
        full = max(len(cells[0][i]), 1)
        assert size <= full
        if columns[i].align == "right" or full <= UNBROKEN:
            assert size == full
    if sum(found.widths) + GAP * (len(found.shown) - 1) > width:
        assert len(found.shown) == 1 or not any(columns[i].rank for i in found.shown)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Headings, notes and the table keep within it."""
    table = Table("t", {}, ROWS, COLUMNS, ["a heading " * 12], ["a note " * 30])
    assert max(map(len, shown(table, width))) <= width

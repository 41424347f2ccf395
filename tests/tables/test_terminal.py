"""Tables on terminals: the answer first; whole where they fit, then wrapped headings, fewer columns, short records.

Numbers are never folded and flags never broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from commands import CHOOSE, COMMANDS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from decodecalc.tables.render import render
from decodecalc.tables.table import MOST_NOTES, Column, Table
from decodecalc.tables.terminal import GAP, RECORD_RANK, UNBROKEN, layout, wrapped

ENGINE = Column("engine", "engine", align="left", rank=0)
COLUMNS = (ENGINE, Column("a", "first"), Column("b", "second", rank=2), Column("c", "third"))
ROWS = [{"engine": "flash-attention-3", "a": 1234567, "b": 7654321, "c": 1111111}]
TWO = [*ROWS, {"engine": "flashinfer", "a": 2345678, "b": 8765432, "c": 2222222}]


def shown(table: Table, width: int, verbose: bool = False) -> list[str]:
    """Lines of the terminal form, without colours."""
    text = render(table, "table", terminal=True, width=width, verbose=verbose)
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def words(lines: list[str]) -> str:
    """The text without the way it is folded."""
    return " ".join(" ".join(lines).split())


def test_a_table_that_fits_is_shown_whole() -> None:
    """No column is missing and no line says so."""
    lines = shown(Table("t", {}, ROWS, COLUMNS), 80)
    assert lines[0].split() == ["engine", "first", "second", "third"]
    assert lines[2].split() == ["flash-attention-3", "1234567", "7654321", "1111111"]
    assert not any("left out" in line for line in lines)


def test_what_does_not_fit_is_left_out_by_rank_then_from_the_right() -> None:
    """The highest rank goes first; the line below names what went; what is left is not folded."""
    lines = shown(Table("t", {}, TWO, COLUMNS), 38)
    assert lines[0].split() == ["engine", "first", "third"]
    assert lines[2].split() == ["flash-attention-3", "1234567", "1111111"]
    assert "left out at this width: second" in words(lines[4:])
    lines = shown(Table("t", {}, TWO, COLUMNS), 28)
    assert lines[0].split() == ["engine", "first"]
    assert lines[2].split() == ["flash-attention-3", "1234567"]


def test_the_values_of_a_single_row_are_all_said() -> None:
    """What has no place in the row stands below it: nothing is left out."""
    lines = shown(Table("t", {}, ROWS, COLUMNS), 38)
    assert lines[2].split() == ["flash-attention-3", "1234567", "1111111"]
    assert "also: second 7654321" in lines
    assert not any("left out" in line for line in lines)


def test_what_all_rows_have_in_common_is_said_once() -> None:
    """A column with one value costs no width where the width is short."""
    rows = [{**row, "c": 3} for row in TWO]
    lines = shown(Table("t", {}, rows, COLUMNS), 38)
    assert lines[0] == "in every row: third 3"
    assert lines[2].split() == ["engine", "first", "second"]
    assert "third" in shown(Table("t", {}, rows, COLUMNS), 80)[0]


def test_headings_wrap_before_columns_go() -> None:
    """Two lines of heading keep a column that one line would cost."""
    columns = (ENGINE, Column("a", "read a step"), Column("b", "stored on all GPUs"), Column("c", "third"))
    lines = shown(Table("t", {}, TWO, columns), 47)
    assert lines[0].split() == ["read", "a", "stored", "on"]
    assert lines[1].split() == ["engine", "step", "all", "GPUs", "third"]
    assert lines[3].split() == ["flash-attention-3", "1234567", "7654321", "1111111"]


def test_long_text_wraps_at_words_before_a_column_is_left_out() -> None:
    """A sentence takes several lines, the numbers beside it one."""
    columns = (ENGINE, Column("note", "note", align="left"), Column("a", "first"))
    rows = [{"engine": "x", "note": "starting and ending blocks, one after another", "a": 1234567}]
    lines = shown(Table("t", {}, rows, columns), 45)
    assert lines[0].split() == ["engine", "note", "first"]
    assert lines[2].split()[-1] == "1234567"
    text = " ".join(" ".join(line.split()) for line in lines[2:5]).replace("x ", "").replace(" 1234567", "")
    assert "starting and ending blocks, one after another" in text


def test_a_cell_to_copy_goes_below_its_row_whole() -> None:
    """A flag has a line of its own where the row is too narrow, and only rows with a flag have such a line."""
    flag = "--triton-attention-num-kv-splits 128"
    columns = (ENGINE, Column("a", "time", rank=0), Column("flag", "setting", align="left", below=True))
    rows = [{"engine": "sglang-triton", "a": 351, "flag": flag}, {"engine": "flashinfer", "a": 20, "flag": None}]
    assert shown(Table("t", {}, rows, columns), 80)[2].split() == ["sglang-triton", "351", *flag.split()]
    lines = shown(Table("t", {}, rows, columns), 56)
    assert lines[2].split() == ["sglang-triton", "351"]
    assert lines[3] == f"  setting: {flag}"
    assert lines[4].split() == ["flashinfer", "20"]
    assert shown(Table("t", {}, rows, columns), 40)[3] == f"  {flag}"


def test_short_records_where_no_row_fits() -> None:
    """Every row becomes its name and its values, each with its heading."""
    columns = [Column(column.key, column.title, align=column.align, rank=0) for column in COLUMNS]
    lines = shown(Table("t", {}, TWO, columns), 36)
    assert lines == [
        "flash-attention-3",
        "  first 1234567; second 7654321;",
        "  third 1111111",
        "flashinfer",
        "  first 2345678; second 8765432;",
        "  third 2222222",
    ]


def test_the_answer_comes_first_and_notes_are_few_until_asked_for() -> None:
    """The first line is the answer; below the table stand MOST_NOTES notes and how many more there are."""
    notes = [f"note {n}" for n in range(5)]
    table = Table("t", {}, ROWS, COLUMNS, ["the scenario"], notes, answer="It is so.", details=["because"])
    lines = shown(table, 80)
    assert lines[:3] == ["It is so.", "the scenario", ""]
    assert lines[-5:-1] == [*notes[:MOST_NOTES], "-v shows 3 more notes."]
    assert shown(table, 80, verbose=True)[-7:-1] == [*notes, "because"]
    assert "glossary" in lines[-1]
    for format in ("table", "markdown"):
        assert "It is so." in render(table, format).splitlines()[0]
        assert "note 4" not in render(table, format)
        assert "note 4" in render(table, format, verbose=True)


def test_without_colour_the_layout_stays() -> None:
    """NO_COLOR takes the styles away and nothing else."""
    table = Table("t", {}, ROWS, COLUMNS, ["the scenario"], answer="It is so.")
    plain = render(table, "table", terminal=True, width=38, color=False)
    assert "\x1b" not in plain
    assert plain.splitlines() == shown(table, 38)


def test_rows_are_sorted_by_a_heading_or_a_key() -> None:
    """Least first, or greatest first with a minus; rows without a value come last; an unknown name is an error."""
    table = Table("t", {}, [*TWO, {"engine": "mine", "a": None}], COLUMNS)
    assert [row["engine"] for row in table.sorted_by("first").rows] == ["flash-attention-3", "flashinfer", "mine"]
    assert [row["engine"] for row in table.sorted_by("-A").rows] == ["flashinfer", "flash-attention-3", "mine"]
    with pytest.raises(ValueError, match="unknown column 'frist': did you mean first"):
        table.sorted_by("frist")


@given(
    st.lists(st.tuples(st.text("ab ", max_size=40), st.booleans(), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(20, 120),
    st.booleans(),
)
def test_a_layout_fits_or_has_nothing_left_to_leave_out(given_columns: list, width: int, several: bool) -> None:
    """Every column is shown, below, said once or hidden; numbers and short text keep their width."""
    columns = [
        Column(str(i), "t", None, "left" if left else "right", rank) for i, (_, left, rank) in enumerate(given_columns)
    ]
    cells = [[text for text, _, _ in given_columns]]
    cells += [[f"{text}a" for text, _, _ in given_columns]] if several else []
    found = layout(columns, cells, width)
    assert sorted((*found.shown, *found.below, *found.common, *found.hidden)) == list(range(len(columns)))
    if found.records:
        assert all(columns[i].rank > RECORD_RANK for i in found.hidden)
        return
    assert all(columns[i].rank for i in found.hidden)
    for i, size in zip(found.shown, found.widths):
        full = max(*(len(row[i]) for row in cells), 1)
        assert size <= full
        if columns[i].align == "right" or full <= UNBROKEN:
            assert size == full
    assert sum(found.widths) + GAP * (len(found.shown) - 1) <= width


FLAGS = st.builds(
    lambda name, value: f"--{name} {value}" if value else f"--{name}",
    st.text("abcdefgh-", min_size=1, max_size=60).map(lambda text: text.strip("-") or "x"),
    st.integers(0, 4096),
)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=24), FLAGS, st.integers(0, 10**12)), min_size=1, max_size=5),
    st.integers(40, 200),
    st.booleans(),
)
@example([("a", f"--{'x' * 58}", 1), ("b", "--y 2", 2)], 40, False)
def test_no_width_breaks_a_flag_or_loses_a_row(rows: list, width: int, below: bool) -> None:
    """Names, flags and numbers of the wide table appear in the narrow one, in the same order."""
    columns = (ENGINE, Column("flag", "setting", align="left", rank=0, below=below), Column("n", "count", rank=0))
    table = Table("t", {}, [{"engine": e, "flag": f, "n": n} for e, f, n in rows], columns)
    lines = shown(table, width)
    tokens = words(lines).split()
    for engine, flag, number in rows:
        assert engine in tokens
        assert flag.split()[0] in [token.strip(";,") for token in tokens]
        assert str(number) in [token.strip(";,") for token in tokens]
    names = [token for token in tokens if token in {engine for engine, _, _ in rows}]
    if len({engine for engine, _, _ in rows}) == len(rows):
        assert list(dict.fromkeys(names)) == [engine for engine, _, _ in rows]


@given(st.text("ab -`'", max_size=80), st.integers(1, 60))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    """What is folded can be put together again; only flags may be wider than the width."""
    lines = wrapped(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    for line in lines:
        assert len(line) <= width or any(word.lstrip("`'").startswith("-") for word in line.split())


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Answers, headings, notes and the table keep within it."""
    table = Table("t", {}, ROWS, COLUMNS, ["a heading " * 12], ["a note " * 30], answer="an answer " * 20)
    assert max(map(len, shown(table, width))) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_choose_keeps_the_flag_and_the_times(table_of: Callable[..., Table], width: int) -> None:
    """At every usual width: S now, S to set, both times, and the flag in one piece."""
    lines = shown(table_of(*CHOOSE), width)
    (row,) = [i for i, line in enumerate(lines) if re.match(r"sglang-triton( |$)", line)]
    (advised,) = [r for r in table_of(*CHOOSE).rows if r["engine"] == "sglang-triton"]
    record = words(lines[row : row + 3])
    for key, column in {c.key: c for c in table_of(*CHOOSE).columns}.items():
        if key in ("splits_live", "flag_splits", "own_kernel_s", "flag_s"):
            assert column.text(advised) in record, key
    assert any(advised["flag"] in line for line in lines[row : row + 3])


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(width=st.integers(40, 200))
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_every_row_at_every_width(table_of: Callable[..., Table], name: str, width: int) -> None:
    """The narrow table has the rows of the wide one, in order, by their first cells and their flags; the answer is the
    first thing."""
    table = CACHE.setdefault(name, None) or CACHE.__setitem__(name, table_of(*COMMANDS[name])) or CACHE[name]
    lines = shown(table, width)
    text = words(lines)
    assert table.answer
    assert text.startswith(words([table.answer]))
    assert max(map(len, lines)) <= max(width, _widest_flag(table) + GAP)
    first = table.shown_columns()[0]
    place = 0
    for row in table.shown_rows():
        cell = first.text(row)
        place = text.find(cell, place)
        assert place >= 0, cell
    for column in table.shown_columns():
        for row in table.shown_rows() if column.below else ():
            for word in column.text(row).split():
                assert not word.startswith("-") or word in text


CACHE: dict[str, Any] = {}


def _widest_flag(table: Table) -> int:
    every = [column.text(row) for column in table.shown_columns() for row in table.shown_rows()]
    every += [*table.notes, *table.facts, table.answer, *table.heading]
    return max((len(word) for text in every for word in text.split()), default=0)

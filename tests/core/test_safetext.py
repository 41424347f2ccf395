"""No text from a file moves a cursor, turns a line around, opens a tag or begins a formula."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from decodecalc.csvtext import csv_cell, csv_lines
from decodecalc.safetext import formula_safe, json_safe, markdown_safe, plain
from decodecalc.tables.render import FORMATS, render
from decodecalc.tables.table import Table

any_text = st.text(st.characters(codec=None), max_size=30)
DANGEROUS = "\x1b[2J\u202e<script>\u2066\ud800"


@given(any_text)
def test_plain_text_is_printable_and_encodable(text: str) -> None:
    """Whatever comes in, what comes out holds no control character and is UTF-8."""
    shown = plain(text)
    shown.encode()
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066" for c in shown)


@given(any_text)
def test_json_keeps_its_value(text: str) -> None:
    """Escaping marks inside JSON text changes its spelling and not what it says."""
    spelled = json_safe(json.dumps(text, ensure_ascii=False))
    spelled.encode()
    assert json.loads(spelled) == text


def test_no_form_of_a_table_hands_on_what_a_name_carries() -> None:
    """Every format of every table, in heading, cells, notes and inputs."""
    table = Table("t", {"name": DANGEROUS}, [{"a": DANGEROUS}], (), [DANGEROUS], [DANGEROUS])
    for format in FORMATS:
        for terminal in (False, True):
            text = render(table, format, terminal=terminal)
            text.encode()
            assert "\x1b[2J" not in text
            assert "\u202e" not in text
            assert format != "markdown" or "<script>" not in text


def test_a_formula_is_a_word_in_csv() -> None:
    """A spreadsheet does not run what a name says; numbers stay numbers."""
    assert csv_lines(["a"], [{"a": "=cmd()"}, {"a": "-3"}, {"a": -3}]) == "a\n'=cmd()\n-3\n-3\n"
    assert csv_cell("@x") == "'@x"
    assert formula_safe("+1e9") == "+1e9"
    assert markdown_safe("a|b<i>") == "a\\|b&lt;i>"

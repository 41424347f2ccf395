"""The HTML page: well formed, self-contained, everything from outside escaped; the answer first, failures marked."""

from __future__ import annotations

from html import escape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.tables.glossary import meaning
from decodecalc.tables.html import Details, Figure, Origin, Section, page
from decodecalc.tables.table import BAD, GOOD, OFF, Column, Table

VOID = {"meta", "br", "hr", "link", "img"}
SVG = b"""<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="10pt" height="5pt" viewBox="0 0 10 5"
 xmlns="http://www.w3.org/2000/svg"><metadata><x>http://elsewhere</x></metadata>
<defs><path id="m" d="M0 0"/><clipPath id="c"><rect/></clipPath></defs>
<use xlink:href="#m" clip-path="url(#c)" style="fill: #0072b2"/><text>#0072b2</text></svg>"""


class Checker(HTMLParser):
    """Tags opened and closed in order; the text between them; the values of id, href and url()."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []
        self.names: list[str] = []
        self.used: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        for name, value in attrs:
            if name == "id":
                self.names.append(str(value))
            if name in ("href", "xlink:href"):
                self.used.append(str(value).removeprefix("#"))
            if value and value.startswith("url(#"):
                self.used.append(value[5:-1])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(text: str) -> Checker:
    """The page, parsed; every tag is closed."""
    out = Checker()
    out.feed(text)
    assert out.open == []
    return out


def one(value: str, answer: str = "") -> str:
    """A page that shows `value` in every place."""
    rows = [{"a": value, "b": 3}]
    table = Table("x", {}, rows, [Column("a", value, align="left"), Column("b", "b")], [value], [value])
    return page(
        value,
        [Section(value, table, [Details(value, [value], [(value, value)])], [Figure(SVG, value, value)])],
        answer=answer or value,
        mark=GOOD,
        origin=Origin(value, [(value, value)]),
    )


def test_a_page_shows_its_parts_and_fetches_nothing() -> None:
    """Title, answer, figure, table, notes, details, meanings, command and sources are there; no scripts, styles from
    elsewhere, images or addresses."""
    text = one("launch", "passed: all")
    found = checked(text)
    wanted = {"h1", "h2", "table", "details", "summary", "dl", "ul", "style", "svg", "figcaption", "pre"}
    assert wanted <= set(found.seen)
    assert not {"script", "link", "img", "iframe"} & set(found.seen)
    assert "passed: all" in "".join(found.text)
    assert 'name="viewport"' in text
    assert "http" not in text


def test_the_answer_stands_before_figures_and_tables_and_the_command_after_them() -> None:
    """Who opens the page reads the answer first, and finds last how it was made."""
    text = one("x", "the answer")
    places = [text.index(part) for part in ('class="answer good"', "<svg", "<table", "<pre>", "<footer>")]
    assert places == sorted(places)


def test_marks_colour_cells_and_a_failure_its_whole_row() -> None:
    """What failed is red, what is off amber, what holds green, and other values have no colour."""
    values = {"match": GOOD, "mismatch": BAD, "late": OFF}
    column = Column("s", "s", align="left", mark=lambda value: values.get(value, ""))
    text = page("t", [Section("", Table("x", {}, [{"s": s} for s in (*values, "other")], [column]))])
    for value, mark in values.items():
        assert f'<td class="{mark}" data-label="s">{value}</td>' in text
    assert '<td data-label="s">other</td>' in text
    assert text.count('<tr class="bad">') == 1
    for mark in (GOOD, OFF, BAD):
        assert f"td.{mark} {{ color: var(--{mark})" in text


@pytest.mark.parametrize("mark", [GOOD, OFF, BAD])
def test_the_answer_carries_its_mark_as_a_symbol_too(mark: str) -> None:
    """A reader who cannot tell the colours apart sees a sign."""
    text = page("t", [], answer="so it is", mark=mark)
    answer = text.partition(f'<p class="answer {mark}">')[2].partition("</p>")[0]
    assert answer.endswith("so it is")
    assert not answer[0].isalnum()


def test_pictures_do_not_share_names_and_every_name_that_is_used_is_there() -> None:
    """Two pictures with the same names inside stand in one page without clashing."""
    figures = [Figure(SVG, "one"), Figure(SVG, "two")]
    found = checked(page("t", [Section("", figures=figures), Section("", figures=figures)]))
    assert len(found.names) == len(set(found.names)) == 8
    assert set(found.used) <= set(found.names)


def test_a_picture_follows_the_scheme_and_its_words_stay() -> None:
    """Every colour in a tag has a light and a dark value; a word that looks like a colour is a word."""
    text = page("t", [Section("", figures=[Figure(SVG, "one")])])
    assert "fill: var(--f0-0072b2)" in text
    assert "--f0-0072b2: #0072b2;" in text
    dark = text.partition("<svg")[2].partition("prefers-color-scheme: dark")[2]
    assert "--f0-0072b2: #" in dark
    assert "<text>#0072b2</text>" in text


def test_columns_that_say_the_same_in_every_row_are_said_once() -> None:
    """A table of several rows shows what tells them apart; the rest is one line above it."""
    columns = [Column("name", "name"), Column("batch", "batch"), Column("time", "time")]
    rows = [{"name": name, "batch": 4, "time": i} for i, name in enumerate("abc")]
    text = page("t", [Section("", Table("x", {}, rows, columns))])
    assert "In every row: batch 4." in text
    assert '<td class="right" data-label="batch">' not in text
    assert '<td class="right" data-label="time">2</td>' in text


def test_columns_that_do_not_fit_a_laptop_are_folded_away_and_none_is_lost() -> None:
    """The least important columns go first, into a table to open."""
    columns = [Column("name", "name", rank=0)] + [Column(f"c{i}", f"column{i}", rank=i % 4) for i in range(30)]
    rows = [{"name": n, **{f"c{i}": 1000 * n + i for i in range(30)}} for n in range(2)]
    text = page("t", [Section("", Table("x", {}, rows, columns))])
    above, _, folded = text.partition("<summary>More columns</summary>")
    assert folded
    for i, column in enumerate(columns[1:]):
        label = f'data-label="column{i}"'
        assert (label in above) != (label in folded)
        if column.rank == 0:
            assert label in above


@given(st.text(max_size=40))
def test_any_text_stays_text(value: str) -> None:
    """Whatever a name holds, it opens no tag."""
    plain = set(checked(one("launch")).seen)
    assert set(checked(one(value + "<b onclick='x'>&amp;</td></table><script>")).seen) == plain


def test_headings_are_explained_by_the_glossary() -> None:
    """A heading carries its definition, which a legend repeats for phones; one without a definition stands as it is."""
    columns = [Column("a", "S*"), Column("b", "<b>mine</b>")]
    text = page("t", [Section("", Table("grid", {}, [{"a": 1, "b": 2}], columns))])
    told = meaning("S*", "grid")
    assert told is not None
    assert f'<abbr title="{escape(told)}">S*</abbr>' in text
    legend = text.partition("<summary>What the words mean</summary>")[2].partition("</details>")[0]
    assert f"<dt>S*</dt><dd>{escape(told)}</dd>" in legend
    assert '<th class="right">&lt;b&gt;mine&lt;/b&gt;</th>' in text

"""The HTML page: well formed, self-contained, everything from outside escaped."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from decodecalc.tables.html import Details, Section, page
from decodecalc.tables.table import Column, Table

VOID = {"meta", "br", "hr", "link", "img"}


class Checker(HTMLParser):
    """Tags opened and closed in order; the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

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


def one(value: str, verdict: str = "") -> str:
    """A page that shows `value` in every place."""
    table = Table(
        "x", {}, [{"a": value, "b": 3}], [Column("a", value, align="left"), Column("b", "b")], [value], [value]
    )
    return page(
        value, [Section(value, table, [Details(value, [value], [(value, value)])])], verdict=verdict, passed=True
    )


def test_a_page_shows_its_parts_and_fetches_nothing() -> None:
    """Title, verdict, table, notes and details are there; no scripts, styles from elsewhere or images."""
    found = checked(one("launch", "passed: all"))
    assert {"h1", "h2", "table", "details", "summary", "dl", "ul", "style"} <= set(found.seen)
    assert not {"script", "link", "img", "iframe"} & set(found.seen)
    assert "passed: all" in "".join(found.text)
    assert 'name="viewport"' in one("launch")


def test_statuses_are_coloured() -> None:
    """match and mismatch cells carry a class."""
    table = Table("x", {}, [{"s": "match"}, {"s": "mismatch"}], [Column("s", "s", align="left")])
    text = page("t", [Section("", table)])
    assert "<td class=good>match</td>" in text
    assert "<td class=bad>mismatch</td>" in text


@given(st.text(max_size=40))
def test_any_text_stays_text(value: str) -> None:
    """Whatever a name holds, it opens no tag."""
    plain = set(checked(one("launch")).seen)
    assert set(checked(one(value + "<b onclick='x'>&amp;</td></table><script>")).seen) == plain

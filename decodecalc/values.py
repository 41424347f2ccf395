"""What every value object can do in a notebook: show itself as a table, and become a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from decodecalc.safetext import plain
from decodecalc.units import human_bytes, human_rate, human_seconds

MOST_ROWS = 60
"""Rows that a notebook shows."""
MOST_TEXT = 300
"""Characters of a value that a table shows."""


class Shown:
    """Mixin for objects with `to_dict()`: an HTML repr for notebooks and `to_frame()`.

    >>> from decodecalc.batch import Batch
    >>> "seq_lens" in Batch([128])._repr_html_()
    True
    """

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values; every subclass has its own."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        name = type(self).__name__
        caption = name if type(self).__str__ is object.__str__ else f"{name}: {self}"
        values = self.to_dict()
        return html_table(caption, [(name, worded(name, value)) for name, value in values.items()])

    def to_frame(self) -> Any:
        """One row: nested values as columns of their own (`geometry.q_heads`). pandas is imported here."""
        import pandas as pd

        return pd.json_normalize([self.to_dict()])


class ShownRows:
    """Mixin for results of several rows: an HTML repr of the columns that people look at, and `to_frame()` of all."""

    __slots__ = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows, flat; every subclass has its own."""
        raise NotImplementedError

    def seen(self) -> tuple[str, Sequence[str]]:
        """What stands above the table, and the keys of the columns that people see; every subclass has its own."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        caption, keys = self.seen()
        rows = self.to_rows()
        body = [[worded(key, row.get(key)) for key in keys] for row in rows[:MOST_ROWS]]
        more = len(rows) - len(body)
        return html_table(caption + (f" ({more} more rows are in to_frame())" if more else ""), body, keys)

    def to_frame(self) -> Any:
        """A row for each row. pandas is imported here."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())


def html_table(caption: str, rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A table for a notebook, everything escaped. head: names of the columns; without it the first cell of every row is
    its name."""

    from html import escape  # it loads a table of entities, which only notebooks need

    def cell(tag: str, text: str) -> str:
        return f"<{tag} style='text-align:left'>{escape(plain(text))}</{tag}>"

    lines = ["".join(cell("th", text) for text in head)] if head else []
    lines += ["".join(cell("td" if i or head else "th", text) for i, text in enumerate(row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption style='text-align:left'>{escape(plain(caption))}</caption>{body}</table>"


def worded(name: str, value: Any) -> str:
    """A value as people read it, by the unit that its name ends in.

    >>> worded("total_s", 1.83e-5), worded("kv_read_bytes", 336e6), worded("waves", 0.12121212), worded("s_opt", None)
    ('18.3 µs', '336 MB', '0.121212', '-')
    >>> worded("hbm_bytes_per_s", 4.8e12), worded("bf16_flop_per_s", 9.89e14)
    ('4.8 TB/s', '9.89e+14')
    """
    if value is None:
        return "-"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for suffix, word in (("_bytes_per_s", human_rate), ("_bytes", human_bytes), ("_s", human_seconds)):
            if name.endswith(suffix) and (suffix != "_s" or not name.endswith("_per_s")):
                return word(value)
    return _short(value)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {worded(str(k), v)}" for k, v in value.items())[:MOST_TEXT]
    if isinstance(value, (list, tuple)):
        return ("; " if any(isinstance(v, Mapping) for v in value) else " ").join(map(_short, value))[:MOST_TEXT]
    return str(value)[:MOST_TEXT]

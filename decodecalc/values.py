"""What every value object can do in a notebook: show itself as a small table, and become a one-row DataFrame."""

from __future__ import annotations

from typing import Any


class Shown:
    """Mixin for objects with `to_dict()`: an HTML repr for notebooks and `to_frame()`.

    >>> from decodecalc.batch import Batch
    >>> "seq_lens" in Batch([128])._repr_html_()
    True
    """

    def to_dict(self) -> dict[str, Any]:
        """Plain values; every subclass has its own."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        import html

        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(str(name))}</th>"
            f"<td style='text-align:left'>{html.escape(_short(value))}</td></tr>"
            for name, value in self.to_dict().items()
        )
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{rows}</table>"

    def to_frame(self) -> Any:
        """One row: nested values as columns of their own (`geometry.q_heads`). pandas is imported here."""
        import pandas as pd

        return pd.json_normalize([self.to_dict()])


def _short(value: Any, most: int = 300) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())[:most]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "; ".join(_short(v) for v in value)[:most]
    return str(value)[:most]

"""The best rows of a sweep by one column, at constant memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.sweeps.columns import COLUMNS, Chunk
from decodecalc.sweeps.writers import LIST_COLUMNS, TEXT_COLUMNS

_FORM = re.compile(r"^\s*([0-9]+)\s+by\s+(-?)(\w+)\s*$")
MOST = 100_000


class Top:
    """`N by column` keeps the N largest, `N by -column` the N smallest; ties keep the earlier row."""

    def __init__(self, text: str) -> None:
        match = _FORM.match(text)
        if not match or len(match[1]) > len(str(MOST)) or not 1 <= int(match[1]) <= MOST:
            raise InputError(
                f"--top {text[:40]!r}: write N by COLUMN, for example '20 by -sm_coverage' (N up to {MOST})"
            )
        self.count, self._smallest, self.column = int(match[1]), bool(match[2]), match[3]
        if self.column not in COLUMNS or self.column in TEXT_COLUMNS + LIST_COLUMNS:
            numeric = [c for c in COLUMNS if c not in TEXT_COLUMNS + LIST_COLUMNS]
            raise UnknownNameError("numeric column in --top", self.column, numeric)
        self._best: list[tuple[float, int, dict[str, Any]]] = []
        self._seen = 0

    def add(self, chunk: Chunk, columns: list[str]) -> None:
        """Considers the rows of one chunk."""
        values = np.asarray(chunk.values(self.column), dtype=float)
        order = np.argsort(values if self._smallest else -values, kind="stable")[: self.count]
        if not len(order):
            return
        rows = [chunk.values(name) for name in columns]
        for i in order.tolist():
            score = values[i] if self._smallest else -values[i]
            self._best.append((float(score), self._seen + i, {n: column[i] for n, column in zip(columns, rows)}))
        self._best.sort(key=lambda item: item[:2])
        del self._best[self.count :]
        self._seen += chunk.rows

    def rows(self) -> list[dict[str, Any]]:
        """The best rows, best first."""
        return [row for _, _, row in self._best]

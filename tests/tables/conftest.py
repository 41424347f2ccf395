"""The tables behind commands, as they are before they are printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import decodecalc.cli.output
from decodecalc.cli.main import run
from decodecalc.tables.render import render
from decodecalc.tables.table import Table


@pytest.fixture
def table_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    """table_of("grid", "--model", "llama3-8b") is the table that the command prints."""

    def find(*argv: str) -> Table:
        seen: list[Table] = []

        def record(table: Table, *args: Any, **options: Any) -> str:
            seen.append(table)
            return render(table, *args, **options)

        monkeypatch.setattr(decodecalc.cli.output, "render", record)
        code = run(list(argv))
        assert seen, f"decodecalc {' '.join(argv)} ended with {code} and printed no table"
        return seen[-1]

    return find

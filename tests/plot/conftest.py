"""Figures as drawn: the axes that a command would have written to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodecalc.cli.main import run
from decodecalc.plot import style


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """drawn("occupancy", "--model", "llama3-8b") is the list of the figure's axes, as `decodecalc plot` makes them."""
    kept: list[Any] = []

    def keep(fig: Any, format: str, dpi: int | None) -> bytes:
        kept.append(fig)
        return b""

    monkeypatch.setattr(style, "figure_bytes", keep)

    def draw(figure: str, *argv: str) -> Any:
        assert run(["plot", figure, *argv, "-o", str(tmp_path / "x.svg")]) == 0
        return kept.pop().axes

    return draw

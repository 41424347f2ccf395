"""Wording that several tables share."""

from __future__ import annotations

from collections.abc import Iterable

from decodecalc.units import counted

FEW = 2  # up to this many absent engines are each explained at once


def because(engine: str, reason: str) -> str:
    """Why an engine is not there, its name in front exactly once.

    >>> because("mine", "pages must hold 64 keys"), because("mine", "mine: pages must hold 64 keys")
    ('mine: pages must hold 64 keys', 'mine: pages must hold 64 keys')
    """
    return reason if reason.startswith(engine) else f"{engine}: {reason}"


def absent(refusals: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Notes and details on (engine, reason) pairs of what a table does not show: the reasons of a few engines are a
    note each, those of many are details behind one note."""
    pairs = list(dict.fromkeys(refusals))
    lines = list(dict.fromkeys(f"not shown: {because(engine, reason)}" for engine, reason in pairs))
    engines = list(dict.fromkeys(engine for engine, _ in pairs))
    if len(lines) <= FEW:
        return lines, []
    note = f"{counted(len(engines), 'engine')} cannot run this and {'is' if len(engines) == 1 else 'are'} not shown"
    return [f"{note}; -v says why."], lines


def sentence(text: str) -> str:
    """The text as a sentence: a full stop at its end."""
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."

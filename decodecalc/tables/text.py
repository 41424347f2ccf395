"""Wording that several tables share."""

from __future__ import annotations


def because(engine: str, reason: str) -> str:
    """Why an engine is not there, its name in front exactly once.

    >>> because("mine", "pages must hold 64 keys"), because("mine", "mine: pages must hold 64 keys")
    ('mine: pages must hold 64 keys', 'mine: pages must hold 64 keys')
    """
    return reason if reason.startswith(engine) else f"{engine}: {reason}"

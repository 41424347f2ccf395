"""Checks whether the engines of this machine still follow our policies. Their sources are read and never imported."""

from __future__ import annotations

from decodecalc.drift.compare import Outcome, Verdict, inspect_environment, inspect_path

__all__ = ["Outcome", "Verdict", "inspect_environment", "inspect_path"]

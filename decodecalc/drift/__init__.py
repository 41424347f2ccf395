"""Whether the engines on this machine still follow our policies, read from their sources and never imported."""

from __future__ import annotations

from decodecalc.drift.compare import Outcome, Verdict, inspect_environment, inspect_path

__all__ = ["Outcome", "Verdict", "inspect_environment", "inspect_path"]

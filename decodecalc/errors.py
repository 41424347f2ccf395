"""Errors a user may meet. Each message says what was wrong, what is valid and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class DecodecalcError(Exception):
    """Base of every error this package raises on purpose. `exit_code` is what the command line returns."""

    exit_code = 2


class InputError(DecodecalcError, ValueError):
    """A value that cannot be used: wrong type, out of range, inconsistent with another."""


class UnknownNameError(InputError):
    """A model, GPU, engine or option that does not exist, with the nearest names that do and what else would work."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", nearest: Sequence[str] | None = None
    ) -> None:
        import difflib  # here, because only an error needs it

        known = sorted(set(known))
        spelled = {word.lower(): word for word in reversed(known)}
        alike = difflib.get_close_matches(name.lower()[:80], spelled, n=3, cutoff=0.5)
        near = list(nearest or (spelled[k] for k in alike))
        shown = ", ".join(near) if near else ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
        lead = "did you mean" if near else "known"
        guess = f": {lead} {shown}?" if near else f"; {lead}: {shown}{'.' if hint and not shown.endswith('…') else ''}"
        super().__init__(f"unknown {kind} {name[:80]!r}{guess}" + (f" {hint}" if hint else ""))
        self.name, self.nearest = name, tuple(near)


class ShardingError(InputError):
    """A tensor-parallel degree that does not fit the heads. The message names the degrees that do."""


class ModelConfigError(InputError):
    """A model configuration that cannot be read or that has no decode attention to plan."""


class GateError(InputError):
    """A setting that the engine itself refuses at start-up (not a slow path). `code` is a short machine word for it."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class MissingDependencyError(DecodecalcError):
    """Hardware or an optional package that the request needs is not there."""

    exit_code = 3


def check_type(name: str, value: Any, wanted: type | tuple[type, ...], how: str) -> None:
    """InputError when `value` is not of the type that `name` takes; `how` says where such an object comes from."""
    if isinstance(value, wanted):
        return
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    names = " or ".join(f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}" for kind in kinds)
    raise InputError(f"{name} must be {names} ({how}), not {type(value).__name__}")

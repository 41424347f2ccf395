"""What a server answers: the backend it runs, what that imposes, and why every other candidate was passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decodecalc.errors import GateError
from decodecalc.values import Shown

ARGUMENTS, CLI, SELECTION, START = "arguments", "cli", "selection", "start"


class Reason(NamedTuple):
    """One reason against a backend."""

    words: str
    """The server's own words."""
    detail: str = ""
    """What was asked and what would be taken, in ours; empty where the server's words already say it."""

    def __str__(self) -> str:
        return f"{self.words} ({self.detail})" if self.detail else self.words


class BackendCandidate(NamedTuple):
    """A backend that the server looked at, with every reason against it."""

    name: str
    """The backend's name."""
    reasons: tuple[Reason, ...] = ()
    """Why it cannot serve the layer; empty when it can."""

    @property
    def valid(self) -> bool:
        """Whether nothing speaks against the backend."""
        return not self.reasons

    def __str__(self) -> str:
        return f"{self.name}: {'can serve the layer' if self.valid else '; '.join(map(str, self.reasons))}"


class ServerRefusal(NamedTuple):
    """A configuration with which the server does not start."""

    stage: str
    """`cli` (not among the flag's choices), `arguments` (the configuration is refused), `selection` (no backend
    takes the layer) or `start` (the backend was selected and refuses when it is built)."""
    error: str
    """Class of the server's exception."""
    reasons: tuple[str, ...]
    """The server's words."""
    code: str
    """A short word for the refusal, in snake case."""

    def __str__(self) -> str:
        return "; ".join(self.reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution(Shown):
    """The server's answer to one question."""

    server: str
    """`vllm`, `sglang`, …"""
    version: str
    """The release asked about."""
    rules_version: str
    """The release that the rules were read from."""
    source: str
    """Repository, files and symbols of the rules."""
    backend: str | None
    """The backend's name in the server's words; None when the configuration is refused."""
    forced: bool = False
    """The user named the backend, so that it was looked at alone."""
    candidates: tuple[BackendCandidate, ...] = ()
    """Every backend that automatic selection looks at, in its order, with the reasons against each."""
    refused: ServerRefusal | None = None
    """Why the server does not start; None when it does."""
    kernel: str | None = None
    """The decode kernel inside the backend: fa2, fa3, fa4, native, xqa, trtllm-gen, …"""
    page_size: int | None = None
    """Keys of one page of the KV cache's manager."""
    kernel_page_size: int | None = None
    """Keys of one page as the kernel sees it."""
    query_dtype: str | None = None
    """Element type of the query that the kernel is handed, where the backend chooses it."""
    cuda_graphs: str | None = None
    """The backend's class of CUDA-graph support, or the mode that decode steps run in."""
    engine: str | None = None
    """The decodecalc engine that plans this kernel; None where there is no policy for it."""
    engine_version: str | None = None
    """The engine's version to plan with; None takes the newest."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the engine that follow from the server's settings."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """The server's own quantities beside these, by its own names."""
    notes: tuple[str, ...] = ()
    """What a user should know, in whole sentences."""

    def chain(self) -> tuple[str, ...]:
        """Why this backend: one sentence for every candidate, then the choice or the refusal."""
        lines = [str(candidate) for candidate in self.candidates]
        if self.backend is not None:
            how = "was asked for by name" if self.forced else "is the first candidate that can serve the layer"
            lines.append(f"{self.backend} {how}")
        if self.refused is not None:
            lines.append(f"{self.server} does not start: {self.refused}")
        return (*lines, *self.notes)

    def need_backend(self) -> str:
        """The backend's name. GateError when the configuration is refused, with its code."""
        if self.backend is None or self.refused is not None:
            why = self.refused or "no backend"
            raise GateError(f"{self.server} {self.version} does not start with this configuration: {why}", self.code)
        return self.backend

    @property
    def code(self) -> str:
        """The refusal's code, or an empty text."""
        return self.refused.code if self.refused else ""

    @property
    def valid(self) -> tuple[str, ...]:
        """Names of the candidates that nothing speaks against, in order."""
        return tuple(candidate.name for candidate in self.candidates if candidate.valid)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **{
                name: getattr(self, name)
                for name in (
                    "server", "version", "rules_version", "source", "backend", "forced", "kernel", "page_size",
                    "kernel_page_size", "query_dtype", "cuda_graphs", "engine", "engine_version",
                )
            },
            "refused": self.refused._asdict() if self.refused else None,
            "candidates": [
                {"name": c.name, "reasons": [reason._asdict() for reason in c.reasons]} for c in self.candidates
            ],
            "options": dict(self.options),
            "detail": dict(self.detail),
            "notes": list(self.notes),
        }  # fmt: skip

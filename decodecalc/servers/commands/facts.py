"""What is known of a server beside its choice of a backend: how it divides memory, its defaults, its flags."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from decodecalc.errors import UnknownNameError
from decodecalc.keyshare import AG_RS
from decodecalc.servers.commands.flags import Flag

# What a server's memory fraction is a share of.
SHARE_OF_TOTAL, SHARE_HELD_BACK, SHARE_OF_FREE, EXACT = "share_of_total", "share_held_back", "share_of_free", "exact"
MEMORY_RULES = {
    SHARE_OF_TOTAL: "a share of the GPU's memory holds weights, working memory and cache",
    SHARE_HELD_BACK: "a share of the GPU's memory holds weights and cache; working memory is outside it",
    SHARE_OF_FREE: "the cache gets a share of what weights and working memory leave free",
    EXACT: "the cache is made as large as the context asks for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One server."""

    memory_rule: str
    """A key of MEMORY_RULES."""
    memory_fraction: Callable[[Any, int], float]
    """The fraction where the command gives none, for a GPU and the number of ranks."""
    default_seqs: Callable[[Any], int]
    """Most sequences of a step where the command gives none, for a GPU."""
    seqs_are: str = "the default"
    """What that number is: the server's default, or an assumption."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """How a quantity is set, with `{}` for its value."""
    smaller_cache: str | None = None
    """The flag that halves the cache."""
    dcp_exchange: str = AG_RS
    """How the ranks that divide keys merge their outputs where the command does not say: of the newest release."""
    longer_than_model: str | None = None
    """The environment variable with which the server takes a context beyond the model's positions; None where it takes
    one by itself."""
    trials: tuple[str, ...] = ()
    """Flags worth trying on a command: each is added, and the step's time compared."""
    page_size: int = 16
    """Keys of a page where the server's answer names none."""
    flags_table: tuple[Flag, ...] = field(default=(), repr=False)
    """The flags that are read."""

    def flag(self, quantity: str, value: object) -> str | None:
        """The flag that sets a quantity to a value; None where the server has none."""
        text = self.flags.get(quantity)
        return None if text is None else text.format(value)


_FACTS = {
    "vllm": ("vllm", "FACTS"),
    "sglang": ("sglang", "FACTS"),
    "tensorrt-llm": ("others", "TRTLLM_FACTS"),
    "llama.cpp": ("others", "LLAMA_FACTS"),
    "lmdeploy": ("others", "LMDEPLOY_FACTS"),
}


def facts_of(server: str) -> Facts:
    """What is known of a server. UnknownNameError for one whose commands are not read."""
    if server not in _FACTS:
        raise UnknownNameError("server with a serve command", server, _FACTS)
    module, name = _FACTS[server]
    found: Facts = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return found

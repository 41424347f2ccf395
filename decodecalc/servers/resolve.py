"""The one door: which backend a server of a version runs for a layer."""

from __future__ import annotations

import importlib

from decodecalc.errors import UnknownNameError
from decodecalc.servers.question import Question
from decodecalc.servers.resolution import Resolution

# server -> module with `resolve(version, question)`; loaded on first use.
_MODULES = {"vllm": "decodecalc.servers.vllm.resolve", "sglang": "decodecalc.servers.sglang.resolve"}
SERVERS = tuple(_MODULES)


def resolve(server: str, version: str | None, question: Question) -> Resolution:
    """The server's answer; `version` None takes the newest release known.

    A configuration that the server refuses is an answer with `refused` set (`Resolution.need_backend` raises it).
    Errors: UnknownNameError for a server or release that is not known, InputError for a GPU without a compute
    capability or a gfx name.
    """
    name = server.strip().lower()
    if name not in _MODULES:
        raise UnknownNameError("server", server, _MODULES)
    answer: Resolution = importlib.import_module(_MODULES[name]).resolve(version, question)
    return answer

"""Names that servers use for backends, and how an engine argument with such a name is to be taken.

vLLM's names are in capitals (FLASH_ATTN), SGLang's in small letters (trtllm_mha); a server's own name stands for its
automatic choice. What such a name runs depends on the layer and the GPU: FLASH_ATTN is FlashAttention 2, 3 or 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from decodecalc.errors import UnknownNameError
from decodecalc.servers.question import Question
from decodecalc.servers.registry import SERVERS, resolve
from decodecalc.servers.resolution import Resolution
from decodecalc.servers.sglang import rules as sglang_rules
from decodecalc.servers.vllm import rules as vllm_rules

VLLM_NAMES = tuple(sorted({name for release in vllm_rules.RELEASES for name in release.backends}))
SGLANG_NAMES = tuple(sorted({name for release in sglang_rules.RELEASES for name in release.rules.choices}))


class ServerName(NamedTuple):
    """A name as a server's."""

    server: str
    """The server."""
    version: str | None
    """The release asked for with `@`; None takes the newest."""
    backend: str | None
    """The backend it forces; None for the server's automatic choice."""


def server_name(text: str) -> ServerName | None:
    """`vllm@0.27.1`, `FLASH_ATTN`, `trtllm_mha@0.5.23` as a server's name, or None when it is none.

    >>> server_name("FLASH_ATTN@0.30.0")
    ServerName(server='vllm', version='0.30.0', backend='FLASH_ATTN')
    >>> server_name("vllm-triton") is None
    True
    """
    name, _, version = text.strip().partition("@")
    asked = version.strip() or None
    if name.lower() in SERVERS:
        return ServerName(server=name.lower(), version=asked, backend=None)
    if name in VLLM_NAMES:
        return ServerName(server="vllm", version=asked, backend=name)
    if name in SGLANG_NAMES:
        return ServerName(server="sglang", version=asked, backend=name)
    return None


def resolve_name(text: str, question: Question) -> Resolution:
    """What the name runs for this question. UnknownNameError when no server has the name."""
    found = server_name(text)
    if found is None:
        raise UnknownNameError("server or backend", text, [*SERVERS, *VLLM_NAMES, *SGLANG_NAMES])
    asked = question if found.backend is None else replace(question, backend=found.backend)
    return resolve(found.server, found.version, asked)

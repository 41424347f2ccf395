"""Which servers there are, and the one door: which backend a server of a version runs for a layer."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

from decodecalc.engines.registry import engine_names, load_policy
from decodecalc.errors import UnknownNameError
from decodecalc.servers.libraries import engine_version
from decodecalc.servers.question import Question
from decodecalc.servers.resolution import Resolution

# server -> (its name as people write it, module, function `(version, question) -> Resolution`); loaded on first use.
_RESOLVERS = {
    "vllm": ("vLLM", "decodecalc.servers.vllm.resolve", "resolve"),
    "sglang": ("SGLang", "decodecalc.servers.sglang.resolve", "resolve"),
    "tensorrt-llm": ("TensorRT-LLM", "decodecalc.servers.others", "tensorrt_llm"),
    "lmdeploy": ("LMDeploy", "decodecalc.servers.others", "lmdeploy"),
    "llama.cpp": ("llama.cpp", "decodecalc.servers.others", "llama_cpp"),
    "transformers": ("Transformers", "decodecalc.servers.others", "transformers"),
}
SERVERS = tuple(_RESOLVERS)
TITLES = {server: title for server, (title, _, _) in _RESOLVERS.items()}


def resolve(server: str, version: str | None, question: Question) -> Resolution:
    """The server's answer; `version` None takes the newest release known.

    A configuration that the server refuses is an answer with `refused` set (`Resolution.need_backend` raises it).
    Errors: UnknownNameError for a server or release that is not known, InputError for a GPU without a compute
    capability or a gfx name.
    """
    name = server.strip().lower()
    if name not in _RESOLVERS:
        raise UnknownNameError("server", server, _RESOLVERS)
    _, module, function = _RESOLVERS[name]
    resolver: Callable[[str | None, Question], Resolution] = getattr(importlib.import_module(module), function)
    return _plannable(resolver(version, question))


def _plannable(answer: Resolution) -> Resolution:
    """The answer with an engine that exists, at a version that it has; another engine is never put in its place."""
    if answer.engine is None:
        return answer
    if answer.engine not in engine_names():
        note = f"There is no policy for {answer.engine} in this release of decodecalc: {answer.backend} is only named."
        return replace(answer, engine=None, engine_version=None, options={}, notes=(*answer.notes, note))
    wanted = answer.engine_version or engine_version(answer.engine, answer.server, answer.version)
    if wanted is None:
        return answer
    try:
        load_policy(answer.engine).version(wanted)
    except UnknownNameError:
        note = f"{answer.engine} is planned at its newest version: {wanted} was not read."
        return replace(answer, engine_version=None, notes=(*answer.notes, note))
    return replace(answer, engine_version=wanted)

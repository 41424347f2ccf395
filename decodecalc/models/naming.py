"""Names of checkpoints as people serve them: which model of the zoo, and how the weights are quantised.

A repository or a folder is often a copy or a quantised export of a model that the zoo knows: `Qwen3-32B-FP8`,
`Meta-Llama-3.1-70B-Instruct-quantized.w8a8`. What is concluded from a name is said, never silent.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from decodecalc.models.zoo import zoo_entries

# Marks in a checkpoint's name, the longest first, and how its linear layers are then stored.
_MARKS = (
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"(quantized[._-])?w4a16|awq(-int4|-4bit)?|gptq(-int4)?|int4|autoround|(bnb-)?4bit|q4_k_m|q4_0|iq4_xs", "int4"),
    (r"(quantized[._-])?w8a8|w8a16|(gptq-)?int8|8bit|q8_0", "int8"),
    (r"fp8(-dynamic|-static|-static-pertensor|-block|-kv)?|fp8", "fp8"),
    (r"bf16|fp16", "bf16"),
)  # fmt: skip
_TAIL = r"[-_.](instruct|chat|it|base|hf|thinking|reasoning|gguf|v0\.\d|\d{4}|2507|exp|text|preview)$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """What a checkpoint's name says."""

    zoo: str | None
    """The zoo's model of this name; None where there is none."""
    stored: str | None
    """How the name says that weights are stored (a name of `LINEAR_BYTES`); None where it says nothing."""


def recognise(name: str) -> Recognised:
    """The model and the quantisation behind a repository id, a folder or a file.

    >>> recognise("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8")
    Recognised(zoo='llama3.1-70b', stored='int8')
    >>> recognise("/models/Qwen3-Coder-30B-A3B-Instruct").zoo
    'qwen3-30b-a3b'
    """
    text = name.strip().rstrip("/").lower()
    key = text.rpartition("/")[2].replace("___", ".").removesuffix(".gguf")
    exact, stored = _by_key().get(key), None
    for pattern, kind in _MARKS:
        found = re.search(rf"[-_.]({pattern})(?=$|[-_.])", key)
        if found:
            stored, key = kind, key[: found.start()] + key[found.end() :]
            break
    if exact is not None:
        return Recognised(zoo=exact, stored=stored)
    known = _by_key()
    for candidate in _shorter(key):
        if candidate in known:
            return Recognised(zoo=known[candidate], stored=stored)
    return Recognised(zoo=None, stored=stored)


def _shorter(key: str) -> list[str]:
    """The name, then the name without one ending after another, with the usual prefixes taken off."""
    out = []
    while True:
        out += [key, key.removeprefix("meta-"), key.replace("-coder-30b", "-30b"), _distilled(key)]
        cut = re.sub(_TAIL, "", key)
        if cut == key:
            return out
        key = cut


def _distilled(key: str) -> str:
    """Distillates of DeepSeek-R1 have the shapes of what they were distilled into."""
    match = re.fullmatch(r"deepseek-r1-distill-(qwen|llama)-(\d+b)", key)
    if match is None:
        return key
    sizes = {"qwen": "qwen2.5-{}", "llama": "llama3.1-{}"}
    return sizes[match[1]].format(match[2])


@functools.cache
def _by_key() -> dict[str, str]:
    index: dict[str, str] = {}
    for entry in zoo_entries():
        for spelled in (entry.name, entry.repo, *entry.aliases):
            key = spelled.rpartition("/")[2].lower()
            index.setdefault(key, entry.name)
            while True:
                cut = re.sub(_TAIL, "", key)
                if cut == key:
                    break
                key = cut
                index.setdefault(key, entry.name)
            index.setdefault(key.removeprefix("meta-"), entry.name)
    return index

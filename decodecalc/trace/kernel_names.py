"""Takes kernel names apart: the function's own name, its template arguments, and what those fix.

Triton kernels carry their Python name (older Triton appends the specialisation, `_0d1d2d`). CUDA kernels carry their
demangled signature, whose template arguments give tile, head dim and path. HIP profiles sometimes have a mangled name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Kernels that only call the one in their template arguments: CUTLASS's, and Composable Kernel's behind its block size.
_WRAPPERS = ("device_kernel", "kentry", "kentry_pt")
_LEADING_NUMBERS = re.compile(r"^(?:\s*(?:\([\w: ]+\))?\s*(?:\d+[ul]*|true|false)\s*,)+\s*", re.IGNORECASE)
_TRITON_SUFFIX = re.compile(r"_0[a-z]+\d\w*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFacts:
    """What a kernel's name and template arguments fix. A field is None where they fix nothing."""

    split: bool | None = None
    """Whether it is the instantiation of the split path."""
    tile_rows: int | None = None
    """Query rows of a tile."""
    tile_keys: int | None = None
    """Keys of a tile."""
    head_dim: int | None = None
    """Width of a key."""
    head_dim_v: int | None = None
    """Width of a value."""
    group: int | None = None
    """Query heads that share a KV head."""
    windowed: bool | None = None
    """Whether the instantiation has a sliding window."""
    split_range: tuple[int, int] | None = None
    """The least and the most splits that an instantiation of the merge serves."""
    page_size: int | None = None
    """Keys of a page."""
    partition_keys: int | None = None
    """Keys of a split whose size is compiled in."""


def function_name(name: str) -> str:
    """The function's own name, without return type, namespaces, template arguments and parameters.

    >>> function_name("void some::two_stage_kernel<float, 128>(float*)")
    'two_stage_kernel'
    >>> function_name("_fwd_kernel_stage2_0d1d2d3d")
    '_fwd_kernel_stage2'
    >>> function_name("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::C<8> > >(int)")
    'FlashAttnFwdCombine'
    >>> function_name("void some::kentry<256, 2, some::FmhaFwdSplitKVKernel<some::Traits<1> > >(some::Args)")
    'FmhaFwdSplitKVKernel'
    """
    name = name.replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].strip()
    own = head.rsplit("::", 1)[-1].rsplit(" ", 1)[-1]
    if own in _WRAPPERS and "<" in name:
        inner = _LEADING_NUMBERS.sub("", name.split("<", 1)[1])
        # Skip the guards around the real kernel, enable_sm90_or_later<…>.
        while True:
            head = re.split(r"[<(,>]", inner, maxsplit=1)[0].strip()
            own = head.rsplit("::", 1)[-1]
            if not own.startswith("enable_") or "<" not in inner:
                return own
            inner = inner.split("<", 1)[1]
    return _TRITON_SUFFIX.sub("", own) if own == name else own


def template_arguments(name: str, of: str) -> list[str]:
    """Arguments of the first `of<…>` in the name, split at their own level; empty when there is none.

    >>> template_arguments("void f<a<1, 2>, b, (int)3>(int)", "f")
    ['a<1, 2>', 'b', '(int)3']
    """
    start = name.find(of + "<")
    if start < 0:
        return []
    out: list[str] = []
    piece: list[str] = []
    depth = 0
    for char in name[start + len(of) + 1 :]:
        if char in "<(":
            depth += 1
        elif char in ">)":
            if char == ">" and depth == 0:
                out.append("".join(piece).strip())
                return out
            depth -= 1
        if char == "," and depth == 0:
            out.append("".join(piece).strip())
            piece = []
        else:
            piece.append(char)
    return []


def integer(text: str) -> int | None:
    """A template argument that is a number: `128`, `16u`, `(int)3`, `cute::C<64>`.

    >>> integer("16u"), integer("(int)3"), integer("cute::C<64>"), integer("true")
    (16, 3, 64, None)
    """
    match = re.fullmatch(r"(?:\([\w: ]+\))?\s*(\d{1,9})[ul]*|(?:\w+::)*C<(\d{1,9})>", text.strip(), re.IGNORECASE)
    return int(match[1] or match[2]) if match else None


def flag(text: str) -> bool | None:
    """A template argument that is a truth value."""
    return {"true": True, "false": False, "1": True, "0": False, "(bool)1": True, "(bool)0": False}.get(text.strip())


def split_range(log: int | None, smallest: int) -> tuple[int, int] | None:
    """The least and the most splits that a merge compiled for up to 2^log splits serves, where the smallest one
    compiled is for 2^smallest. For fewer splits the next smaller one would have been launched.

    >>> split_range(6, 5), split_range(5, 5), split_range(None, 5)
    ((33, 64), (2, 32), None)
    """
    if log is None or log > 10:
        return None
    return (2 if log <= smallest else (1 << (log - 1)) + 1, 1 << log)

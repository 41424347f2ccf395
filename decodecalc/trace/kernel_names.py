"""Kernel names taken apart: the function's own name, its template arguments, and what those fix.

Triton kernels carry their Python name (older Triton appends the specialisation, `_0d1d2d`); CUDA kernels their
demangled signature, where the template arguments say tile, head dim and path; HIP profiles sometimes a mangled one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRITON_SUFFIX = re.compile(r"_0[a-z]+\d\w*$")


@dataclass(frozen=True)
class NameFacts:
    """What a kernel's template arguments fix; None where they do not.

    split: the split path's instantiation. tile_rows, tile_keys: query rows and keys of a tile. split_range: least and
    most splits a merge instantiation serves. page_size: keys of a page.
    """

    split: bool | None = None
    tile_rows: int | None = None
    tile_keys: int | None = None
    head_dim: int | None = None
    head_dim_v: int | None = None
    group: int | None = None
    windowed: bool | None = None
    split_range: tuple[int, int] | None = None
    page_size: int | None = None
    partition_keys: int | None = None


def function_name(name: str) -> str:
    """The function's own name, without return type, namespaces, template arguments and parameters.

    >>> function_name("void vllm::paged_attention_v2_kernel<float, 128>(float*)")
    'paged_attention_v2_kernel'
    >>> function_name("_fwd_kernel_stage2_0d1d2d3d")
    '_fwd_kernel_stage2'
    >>> function_name("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::C<8> > >(int)")
    'FlashAttnFwdCombine'
    """
    name = name.replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].strip()
    own = head.rsplit("::", 1)[-1].rsplit(" ", 1)[-1]
    if own == "device_kernel" and "<" in name:
        inner = name.split("<", 1)[1]
        # Guards around the real kernel, enable_sm90_or_later<…>, are transparent.
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


def flash_attention_2(name: str) -> NameFacts:
    """Flash_fwd_kernel_traits<D, kBlockM, kBlockN, …> and flash_fwd_splitkv_kernel<traits, causal, local, alibi,
    even_MN, even_K, softcap, Split, Append_KV> (csrc/flash_attn/src/flash_fwd_launch_template.h)."""
    traits = template_arguments(name, "Flash_fwd_kernel_traits")
    dim, rows, keys = ([integer(t) for t in traits[:3]] + [None] * 3)[:3]
    own = template_arguments(name, "flash_fwd_splitkv_kernel")
    return NameFacts(
        split=flag(own[7]) if len(own) >= 9 else None,
        windowed=flag(own[2]) if len(own) >= 9 else None,
        tile_rows=rows,
        tile_keys=keys,
        head_dim=dim,
    )


def flash_attention_2_combine(name: str) -> NameFacts:
    """flash_fwd_splitkv_combine_kernel<traits, kBlockM, Log_max_splits, …>: serves up to 2^Log splits."""
    own = template_arguments(name, "flash_fwd_splitkv_combine_kernel")
    log = integer(own[2]) if len(own) >= 3 else None
    return NameFacts(split_range=_split_range(log, 1), tile_rows=integer(own[1]) if len(own) >= 2 else None)


def flash_attention_3(name: str) -> NameFacts:
    """CollectiveMainloopFwdSm90<stages, cluster, tile MNK, Dv, element, float, arch, causal, local, …> and
    CollectiveEpilogueFwd<tile, cluster, element, arch, threads, varlen, PackGQA, Split, …> of hopper/. The mainloop's
    later flags moved between versions; the epilogue's did not."""
    loop = template_arguments(name, "CollectiveMainloopFwdSm90")
    epilogue = template_arguments(name, "CollectiveEpilogueFwd")
    tile = [integer(t) for t in template_arguments(loop[2], "tuple")] if len(loop) > 8 else []
    rows, keys, dim = ([*tile, None, None, None])[:3]
    return NameFacts(
        split=flag(epilogue[7]) if len(epilogue) > 7 else None,
        tile_rows=rows,
        tile_keys=keys,
        head_dim=dim,
        head_dim_v=integer(loop[3]) if len(loop) > 8 else None,
        windowed=flag(loop[8]) if len(loop) > 8 else None,
    )


def flash_attention_3_combine(name: str) -> NameFacts:
    """FlashAttnFwdCombine<tile, kLogMaxSplits, …>: with tiles of 8 rows the smallest instantiation serves up to 32
    (hopper/flash_fwd_combine_launch_template.h)."""
    own = template_arguments(name, "FlashAttnFwdCombine")
    tile = [integer(t) for t in template_arguments(own[0], "tuple")] if own else []
    rows = tile[0] if tile else None
    log = integer(own[1]) if len(own) > 1 else None
    smallest = 5 if rows == 8 else 4
    return NameFacts(split_range=_split_range(log, smallest), tile_rows=rows)


def flashinfer_prefill(name: str) -> NameFacts:
    """KernelTraits<mask mode, CTA_TILE_Q, MMA_Q, MMA_KV, MMA_D_QK, MMA_D_VO, warps Q, warps KV, …>
    (include/flashinfer/attention/prefill.cuh): head dims are 16 times the MMA counts."""
    own = template_arguments(name, "KernelTraits")
    numbers = [integer(t) for t in own[1:8]]
    if len(numbers) < 7 or any(n is None for n in numbers):
        return NameFacts()
    tile_q, _, mma_kv, qk, vo, _, warps_kv = (n or 0 for n in numbers)
    return NameFacts(tile_rows=tile_q, tile_keys=mma_kv * warps_kv * 16, head_dim=qk * 16, head_dim_v=vo * 16)


def flashinfer_decode(name: str) -> NameFacts:
    """BatchDecodeWithPagedKVCacheKernel<pos mode, stages, tile per bdx, vec size, bdx, bdy, bdz, …>
    (include/flashinfer/attention/decode.cuh): head dim is vec size times bdx, the group bdy."""
    own = [integer(t) for t in template_arguments(name, "BatchDecodeWithPagedKVCacheKernel")[:7]]
    if len(own) < 7 or any(n is None for n in own[2:]):
        return NameFacts()
    tile, vec, bdx, bdy, bdz = (n or 0 for n in own[2:7])
    return NameFacts(tile_keys=tile * bdy * bdz, head_dim=vec * bdx, group=bdy)


def paged_attention(name: str) -> NameFacts:
    """paged_attention_v1_kernel<scalar, cache, HEAD_SIZE, BLOCK_SIZE, threads, …>, v2 with PARTITION_SIZE at the end
    (vLLM csrc/attention/)."""
    for own_name in ("paged_attention_v1_kernel", "paged_attention_v2_kernel"):
        own = template_arguments(name, own_name)
        if len(own) >= 5:
            partition = integer(own[-1]) if own_name.endswith("v2_kernel") else None
            return NameFacts(
                head_dim=integer(own[2]),
                page_size=integer(own[3]),
                partition_keys=partition or None,
                split=bool(partition),
            )
    return NameFacts()


def rocm_paged(name: str) -> NameFacts:
    """paged_attention_ll4mi_QKV_…<…, BLOCK_SIZE, HEAD_SIZE, NUM_THREADS, ALIBI, GQA_RATIO, …> (vLLM csrc/rocm,
    aiter): block, head size and threads are three plain numbers in a row, the flag ALIBI and the group follow them."""
    own: list[str] = []
    for own_name in ("paged_attention_ll4mi_QKV_mfma16_kernel", "paged_attention_ll4mi_QKV_mfma4_kernel"):
        own = own or template_arguments(name, own_name)
    for i in range(len(own) - 4):
        block, head, threads, group = (integer(own[i + j]) for j in (0, 1, 2, 4))
        typed = any(own[i + j].startswith("(") for j in range(3))  # (vllm::Fp8KVCacheDataType)0 is no block size
        if None not in (block, head, threads, group) and not typed and own[i + 3] in ("true", "false"):
            return NameFacts(page_size=block, head_dim=head, group=group, split=True)
    return NameFacts(split=True)


def _split_range(log: int | None, smallest: int) -> tuple[int, int] | None:
    if log is None or log > 10:
        return None
    return (2 if log <= smallest else (1 << (log - 1)) + 1, 1 << log)

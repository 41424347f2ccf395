"""Whose launch it is, where names alone do not say: content of the launch and the company it keeps.

vLLM and aiter share the names of the unified attention kernels; SGLang and vLLM share those of Triton decode attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from decodecalc.trace.events import TraceDevice
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import (
    FA2,
    FA3,
    FLASHINFER,
    FLASHMLA,
    FLEX,
    MERGE,
    OTHER,
    PAGED,
    PREFILL,
    ROCM,
    SCHEDULER,
    TRITON_DECODE,
    UNIFIED,
)

FA3_DECODE_ROWS = 64  # hopper/tile_size.h of vLLM's fork: one MMA warpgroup while q_len * group is at most 64
DECODE, PREFILLS, UNKNOWN = "decode", "prefill", "other"
FLASHINFER_PREFILL_TILE = 128  # CTA_TILE_Q of prefill; decode packs its group into 16 rows (64 for larger groups)


@dataclass(frozen=True)
class Belief:
    """What a launch group is taken for.

    what: decode (an engine's decode attention), prefill, or other (attention of no engine that is modelled).
    engines: who may have launched it, likeliest first. path_split: whether the split path ran, None when unknown.
    """

    what: str
    engines: tuple[str, ...]
    path_split: bool | None
    why: str


@dataclass(frozen=True)
class Company:
    """What else the traces hold. names: whose other kernels; scheduled: SGLang's split-count kernel; decode_tiles: FA3
    launches with tiles of 64 rows, which vLLM's fork uses for decode and not for prefill."""

    names: frozenset[str] = frozenset()
    scheduled: bool = False
    decode_tiles: bool = False

    @classmethod
    def of(cls, groups: Sequence[LaunchGroup], names: Iterable[str]) -> Company:
        """The company that these groups keep."""
        return cls(
            frozenset(names),
            any(g.scheduler is not None or g.kind.role == SCHEDULER for g in groups if g.family == TRITON_DECODE),
            any(g.kind.facts.tile_rows == FA3_DECODE_ROWS for g in groups if g.family == FA3),
        )


def believe(group: LaunchGroup, company: Company, device: TraceDevice | None) -> Belief:
    """What the group is, from its names, its launch and its company."""
    kind = group.kind
    if kind.role == PREFILL:
        return _prefill(group)
    if kind.role == MERGE:
        return Belief(UNKNOWN, (), None, f"{kind.why}, without the kernel whose states it merges")
    if kind.role == SCHEDULER:
        return Belief(UNKNOWN, (), None, f"{kind.why}, without the kernel that it is for")
    if kind.role == OTHER:
        return Belief(UNKNOWN, (), None, kind.why)
    if kind.family == UNIFIED:
        return _unified(group, device)
    if kind.family == TRITON_DECODE:
        return _triton_decode(group, company)
    if kind.family == PAGED:
        v2 = "v2" in function_name(group.stage1.name)
        return Belief(DECODE, (f"paged-attention-{'v2' if v2 else 'v1'}",), v2, kind.why)
    if kind.family == FLASHINFER and (kind.facts.tile_rows or 0) >= FLASHINFER_PREFILL_TILE:
        rows = kind.facts.tile_rows
        return Belief(PREFILLS, (), None, f"{kind.why} with tiles of {rows} query rows, which decode never needs")
    if kind.family == FA2 and group.stage1.grid is not None and group.stage1.grid[0] > 1:
        tiles = group.stage1.grid[0]
        return Belief(PREFILLS, (), None, f"{kind.why} with {tiles} tiles of 64 query rows per head: a prefill chunk")
    rows = kind.facts.tile_rows or 0
    if kind.family == FA3 and rows > FA3_DECODE_ROWS and company.decode_tiles and group.merge is None:
        why = f"{kind.why} with tiles of {rows} rows, beside decode launches with tiles of {FA3_DECODE_ROWS}"
        return Belief(PREFILLS, (), None, why)
    split = kind.facts.split if kind.facts.split is not None else group.merge is not None
    engines = {FA2: "flash-attention-2", FA3: "flash-attention-3", FLASHINFER: "flashinfer", FLASHMLA: "flashmla",
               ROCM: "rocm-paged", FLEX: "flex-decoding"}  # fmt: skip
    return Belief(DECODE, (engines[kind.family],), split, kind.why)


def _prefill(group: LaunchGroup) -> Belief:
    grid = group.stage1.grid
    if group.family == FA2 and grid is not None and grid[0] == 1:
        return Belief(
            UNKNOWN, (), False,
            f"{group.kind.why}: one tile of query rows, which a short prefill and an unsplit decode share",
        )  # fmt: skip
    return Belief(PREFILLS, (), None, group.kind.why)


def _unified(group: LaunchGroup, device: TraceDevice | None) -> Belief:
    name, grid = function_name(group.stage1.name), group.stage1.grid
    amd = device is not None and (device.gfx is not None or device.warp_size == 64 or "AMD" in device.name)
    if name == "kernel_unified_attention":
        split = group.merge is not None if grid is None else grid[2] > 1
        path = "" if grid is None else f"; grid z is {grid[2]}: {'split' if split else 'unsplit'}"
        why = "one kernel name for both paths: vLLM 0.20 and later" + path
        return Belief(DECODE, ("vllm-triton",), split, why)
    split = name.endswith("_3d")
    if not amd:
        return Belief(
            DECODE, ("vllm-triton",), split, "a kernel for each path: vLLM up to 0.19, as aiter runs on AMD only"
        )
    if not split and grid is not None:
        if grid[0] < grid[1]:
            why = f"2D grid {grid} has KV heads first: aiter's order (vLLM's is query blocks first)"
            return Belief(DECODE, ("aiter-unified", "vllm-triton"), split, why)
        why = f"2D grid {grid} has query blocks first: vLLM's order up to 0.19 (aiter's is KV heads first)"
        return Belief(DECODE, ("vllm-triton", "aiter-unified"), split, why)
    if split and grid is not None and grid[2] != 16:
        return Belief(DECODE, ("aiter-unified",), split, f"{grid[2]} segments: vLLM up to 0.19 always has 16")
    why = "a kernel for each path on an AMD GPU: aiter, whose names vLLM up to 0.19 shares"
    return Belief(DECODE, ("aiter-unified", "vllm-triton"), split, why)


def _triton_decode(group: LaunchGroup, company: Company) -> Belief:
    grid = group.stage1.grid
    split = None if grid is None else grid[2] > 1
    if company.scheduled:
        why = "get_num_kv_splits_triton runs in this trace: SGLang chooses split counts on the device"
        return Belief(DECODE, ("sglang-triton",), split, why)
    if "vllm" in company.names and "sglang" not in company.names:
        why = "vLLM's kernels around it and no split-count kernel: vLLM's Triton MLA, which shares SGLang's names"
        return Belief(DECODE, ("vllm-triton-mla", "sglang-triton"), split, why)
    why = "no split-count kernel: SGLang with static or deterministic counts, or vLLM's Triton MLA"
    return Belief(DECODE, ("sglang-triton", "vllm-triton-mla"), split, why)

"""vllm-triton-diffkv: vLLM's Triton backend for layers whose keys and values have different widths (MiMo-V2).

A fork of the unified kernel: the server settles threshold, capture sizes and scratch as for vllm-triton, partial states
are as wide as a value, and the split path is open to one query token of a request. From 0.32 on it is also open to the
tokens of a speculative step (up to 16, without a window, where they fit the scratch), whose blocks then hold all query
rows of a request.

Read from the vLLM source distributions 0.24.0 to 0.33.0: vllm/v1/attention/backends/triton_attn_diffkv.py
(TritonAttentionDiffKVBackend, TritonAttentionDiffKVMetadataBuilder) and
vllm/v1/attention/ops/triton_unified_attention_diffkv.py (unified_attention_diffkv).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.vllm.triton import DEFAULT_WARPS, LARGE_WARPS, Segments, VllmTriton
from decodecalc.engines.vllm.triton_path import MIN_BLOCK_ROWS, TritonStep, decide
from decodecalc.engines.vllm.triton_rules import VERSIONS, VllmTritonRules
from decodecalc.engines.vllm.triton_server import (
    MIN_HEAD_DIM,
    NARROW_TILE,
    PAGE_MULTIPLE,
    WIDE_TILE,
    Server,
    VllmTritonOptions,
    cache_types,
    check_fp8,
    check_pages,
    query_is_fp8,
    refusal,
)
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, at
from decodecalc.launch.policy import PolicyVersion, version_key
from decodecalc.launch.takes import Numbers, Takes
from decodecalc.launch.traits import COUNT, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

FIRST_RELEASE = "0.24.0"
SPECULATIVE_SINCE = "0.32.0"
SPECULATIVE_MAX_Q = 16  # _SPEC_3D_MAX_Q
SPECULATIVE_ROWS = 128  # _SPEC_3D_BLOCK_M: most rows of such a block; from here on it has 8 warps


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffKvRules:
    """What differs between versions."""

    server: VllmTritonRules
    """The rules of the server that the backend inherits."""
    speculative: bool
    """The split path takes steps with several query tokens of a request, and FP8 caches are served."""

    @property
    def cache_dtypes(self) -> tuple[str, ...]:
        """Cache element types that the backend takes."""
        return ("bf16", "fp16", "fp32", "fp8") if self.speculative else ("bf16", "fp16", "fp32")


def _version(inherited: PolicyVersion) -> PolicyVersion:
    """The version of this backend in a release of vllm-triton."""
    covers = inherited.covers or (inherited.name, inherited.name)
    speculative = version_key(inherited.name) >= version_key(SPECULATIVE_SINCE)
    return PolicyVersion(
        inherited.name,
        f"vLLM {inherited.name}: vllm/v1/attention/backends/triton_attn_diffkv.py, "
        "vllm/v1/attention/ops/triton_unified_attention_diffkv.py",
        covers,
        DiffKvRules(server=inherited.rules, speculative=speculative),
        "speculative steps are split, FP8 caches are served" if inherited.name == SPECULATIVE_SINCE else "",
    )


class VllmTritonDiffKv(VllmTriton):
    """16 segments of whole tiles, or none, for keys and values of different widths."""

    name = "vllm-triton-diffkv"
    title = "vLLM Triton attention for different key and value widths (TRITON_ATTN_DIFFKV)"
    versions = tuple(_version(v) for v in VERSIONS if version_key(v.name) >= version_key(FIRST_RELEASE))
    rule = (
        "split (3D) while requests <= threshold = 128 // KV heads, snapped to the nearest CUDA-graph size, with one "
        "query token, or up to 16 without a window whose rows fit the scratch; 16 segments of ceil(L / (16 * tile)) "
        "tiles each; grid (tokens // BLOCK_Q + requests, KV heads[, segments]), BLOCK_M = min(128, pow2(q * group)) "
        "for several tokens"
    )
    traits = Traits(
        server_names=("TRITON_ATTN_DIFFKV",),
        invariant_option=("batch_invariant", True),
        eager_option=("capture_sizes", None),
        replay_option=("padded_num_seqs", "auto"),
        partition=Partition(rule=COUNT, pads_grid=True),
    )

    def combinations(self, options: VllmTritonOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        layer = Takes(mla=False, head_dims=Numbers(low=MIN_HEAD_DIM), page_sizes=Numbers(step=PAGE_MULTIPLE))
        return cache_types(layer, version.rules.cache_dtypes, fp8_needs_sm89=True)

    def settle(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: VllmTritonOptions,
        version: PolicyVersion,
    ) -> tuple[Server, TritonStep]:
        """The server and its launcher's decision. GateError codes: page_size, allocator_page_size, mla, head_dim,
        kv_dtype, causal, capture_sizes."""
        rules: DiffKvRules = version.rules
        _check(self.name, geo, kv, gpu, options, rules)
        server = Server.settle(geo, kv, gpu, options, rules.server)
        started = decide(geo, batches, server)
        several = (started.max_q > 1) & (started.max_q <= SPECULATIVE_MAX_Q) & (geo.window is None) & rules.speculative
        speculative = several & (started.tokens <= started.rows)
        short = (started.max_q <= 1) | several
        has_rows = (started.max_q <= 1) | (started.tokens <= started.rows)
        few = started.num_seqs <= server.threshold
        is_3d = few & ((started.max_q <= 1) | speculative) & server.can_split

        usual = MIN_BLOCK_ROWS if geo.group <= MIN_BLOCK_ROWS else next_power_of_2(geo.group)
        rows = np.minimum(SPECULATIVE_ROWS, next_power_of_2(np.maximum(started.max_q, 1) * geo.group))
        tall = is_3d & speculative & (rows > usual) & (rows % geo.group == 0)
        block_m = np.where(tall, rows, usual)
        block_q = block_m // geo.group
        narrow = np.where(tall, NARROW_TILE, WIDE_TILE if query_is_fp8(kv, gpu, rules.server) else NARROW_TILE)
        server = server._replace(narrow_tile=narrow, wide_tile=WIDE_TILE, tunes_large_head=False)
        step = started._replace(
            block_m=block_m, block_q=block_q, q_blocks=started.tokens // block_q + started.num_seqs,
            few=few, short=short, has_rows=has_rows, large=np.zeros_like(is_3d), is_3d=is_3d,
        )  # fmt: skip
        return server, step

    def warps(self, step: TritonStep) -> Any:
        """8 where a block holds the 128 rows of a speculative step."""
        tall = step.is_3d & (step.max_q > 1) & (np.asarray(step.block_m) >= SPECULATIVE_ROWS)
        return np.where(tall, LARGE_WARPS, DEFAULT_WARPS)

    def kernels(
        self,
        geo: Geometry,
        batches: Batches,
        gpu: Gpu,
        server: Server,
        step: TritonStep,
        cut: Segments,
        live_programs: IntArray,
    ) -> tuple[KernelArray, ...]:
        """One kernel for both paths, and the merge."""
        warp, name = gpu.warp_size or 32, "kernel_unified_attention_diffkv"
        tall = self.warps(step) == LARGE_WARPS
        blocks = (step.q_blocks, geo.kv_heads)
        split = tuple(
            KernelArray(
                name=name, role="stage1", grid=(*blocks, cut.segments), threads=warps * warp, live_blocks=live_programs,
                tile_keys=cut.tile, when=step.is_3d & when,
            )
            for warps, when in ((DEFAULT_WARPS, ~tall), (LARGE_WARPS, tall))
        )  # fmt: skip
        unsplit = KernelArray(
            name=name, role="stage1", grid=blocks, threads=DEFAULT_WARPS * warp, live_blocks=live_programs,
            tile_keys=cut.tile, when=~step.is_3d,
        )  # fmt: skip
        merge = KernelArray(
            name="kernel_reduce_segments_diffkv", role="merge", grid=(step.tokens, geo.q_heads),
            threads=DEFAULT_WARPS * warp, live_blocks=batches.query_tokens * geo.q_heads, when=step.is_3d,
        )  # fmt: skip
        return (*split, unsplit, merge)

    def resident(self, geo: Geometry, kv: KvCache, gpu: Gpu, step: TritonStep) -> Any:
        """Nobody compiled this kernel."""
        return 0

    def gates(self, geo: Geometry, kv: KvCache, gpu: Gpu, server: Server, step: TritonStep) -> tuple[GateArray, ...]:
        """The launcher's conditions, in its order."""
        window = f"a window of {geo.window} keys" if geo.window is not None else "no window"

        def rows(n: int) -> str:
            return (
                f"{at(step.tokens, n)} query tokens, {at(step.rows, n)} scratch rows (compared for several tokens only)"
            )

        return (
            GateArray(
                name="threshold",
                passed=step.few,
                reason=lambda n: (
                    f"{at(step.num_seqs, n)} requests, at most {server.threshold} are split (128 // "
                    f"{server.model_kv_heads} KV heads = {server.unsnapped}, the nearest capture size)"
                ),
            ),
            GateArray(
                name="query_len",
                passed=step.short,
                reason=lambda n: (
                    f"longest query {at(step.max_q, n)}, {window}: one token, or from {SPECULATIVE_SINCE} on up to "
                    f"{SPECULATIVE_MAX_Q} without a window"
                ),
            ),
            GateArray(name="scratch_rows", passed=step.has_rows, reason=rows),
            GateArray(
                name="batch_invariant",
                passed=server.can_split,
                reason=lambda n: f"batch-invariant mode is {'off' if server.can_split else 'on: always the 2D grid'}",
            ),
            GateArray(
                name="page_size",
                passed=True,
                reason=lambda n: f"page size {kv.page_size} is a multiple of {PAGE_MULTIPLE}",
            ),
        )


def _check(name: str, geo: Geometry, kv: KvCache, gpu: Gpu, options: VllmTritonOptions, rules: DiffKvRules) -> None:
    refuse = refusal(name)
    check_pages(name, kv)
    if geo.mla:
        raise GateError(f"{refuse}MLA models take another backend; see vllm-triton-mla", "mla")
    if geo.head_dim < MIN_HEAD_DIM:
        raise GateError(f"{refuse}head dim {geo.head_dim} is below {MIN_HEAD_DIM}", "head_dim")
    if kv.dtype not in rules.cache_dtypes:
        raise GateError(f"{refuse}the KV cache is {kv.dtype}; valid are {', '.join(rules.cache_dtypes)}", "kv_dtype")
    check_fp8(name, kv, gpu)
    if not options.causal:
        raise GateError(f"{refuse}it supports causal masks only", "causal")


POLICY = VllmTritonDiffKv()

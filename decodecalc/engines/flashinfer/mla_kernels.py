"""Which kernel of FlashInfer's MLA wrapper runs, and for what there is no kernel.

Read from flashinfer-ai/flashinfer: flashinfer/mla/_batch_mla (`_auto_policy.py`; `_backends/_fa_common.py`:
`_validate_generated_fa_plan`, `_generated_fa_shared_bytes`), flashinfer/utils.py (`determine_mla_backend`),
include/flashinfer/attention/mla.cuh (`DISPATCH_SMEM_CONFIG`, `SharedStorageQKVO`) and mla_hopper.cuh, in the wheels of
0.6.18.post1, 0.7.1, 0.7.2.post1 and 0.7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, at

if TYPE_CHECKING:
    from decodecalc.engines.flashinfer.options import FlashInferMlaOptions
    from decodecalc.gpus import Gpu

CTA_ROWS = 64  # CTA_TILE_Q
FA3_VALUE_DIMS = (128, 256, 512)
# fa2: (least shared memory of an SM, keys of a tile, stages), DISPATCH_SMEM_CONFIG.
FA2_SHAPES = ((221696, 64, 2), (147968, 32, 2), (92672, 16, 1))
FP8_TILE_KEYS = 32
KERNELS = {"fa2": "BatchMLAPagedAttentionKernel", "fa3": "BatchMLAPageAttentionHopperKernel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaRules:
    """The differences between versions, which are in the wrapper and never in the planner."""

    ranked_capabilities: tuple[tuple[int, int], ...] = ((10, 0), (10, 3), (10, 7))
    """Devices on which `auto` ranks other kernels before fa2."""
    checks_work: bool = True
    """The wrapper refuses more work items than the plan's arrays hold, and masks that the kernel rounds otherwise."""


def chosen_backend(geo: Geometry, gpu: Gpu, options: FlashInferMlaOptions, rules: MlaRules) -> str:
    """fa2 or fa3."""
    if options.backend != "auto":
        return options.backend
    has_width = geo.v_dim in FA3_VALUE_DIMS or not rules.ranked_capabilities
    return "fa3" if gpu.is_sm(90) and has_width else "fa2"


def backend_gate(
    geo: Geometry, batches: Batches, gpu: Gpu, options: FlashInferMlaOptions, rules: MlaRules, backend: str
) -> tuple[Any, Callable[[int], str]]:
    """(the planned backend runs [N], why): on SM100 `auto` tries fa2 first only for little work outside CUDA graphs."""
    if options.backend != "auto":
        return True, lambda n: f"the backend is {backend}"
    if gpu.compute_capability not in rules.ranked_capabilities:
        return True, lambda n: f"`auto` tries {backend} first on {gpu.label}"
    if options.cuda_graph:
        return False, lambda n: "`auto` ranks trtllm-gen and CuTe DSL kernels before fa2 for CUDA graphs on SM100"
    first = _fa2_first(batches, geo.q_heads)
    return first, lambda n: (
        f"`auto` tries {'fa2' if at(first, n) else 'trtllm-gen or CuTe DSL kernels'} first on SM100 for "
        f"{at(batches.batch, n)} requests of at most {at(batches.max_seq_len, n)} keys; this plan is fa2's"
    )


def _fa2_first(batches: Batches, heads: int) -> BoolArray:
    """Whether `ordered_sm100_backends` (mla/_batch_mla/_auto_policy.py) names fa2 first outside CUDA graphs [N]."""
    tokens, keys = batches.query_tokens, batches.total(batches.seq_lens)
    work, output = heads * batches.total(batches.q_lens * batches.seq_lens), heads * tokens
    one, longest, few_keys = batches.max_q_len == 1, batches.max_seq_len, keys < 5 * 2**14
    small = (work <= 2**21) & (output <= 32768) & (longest <= 4096)
    shallow = np.logical_or(~one | (output <= 2048), longest <= 2048) & (heads >= 128)
    within = np.where(shallow, work < 5 * 2**20, work <= 2**22).astype(bool)
    medium = within & (output <= 32768) & (longest < 32768) & few_keys
    decode = one & (work < 5 * 2**20) & (longest <= 4096) & (output <= 2048) & (batches.batch < 32) & few_keys
    return (tokens > 0) & (keys > 0) & (small | medium | decode)


def checked_tile_keys(geo: Geometry, kv: KvCache, gpu: Gpu, backend: str) -> int:
    """Keys of a tile. Raises GateError where there is no kernel."""
    if not geo.mla:
        raise GateError(
            "flashinfer-mla needs an MLA geometry (one latent per key that is both key and value)", "not_mla"
        )
    if gpu.is_hip:
        raise GateError(f"flashinfer-mla is an NVIDIA kernel, and {gpu.label} is an AMD device", "not_nvidia")
    if geo.kv_heads != 1:
        raise GateError(f"flashinfer-mla takes one latent for all heads, not {geo.kv_heads} KV heads", "kv_heads")
    if geo.window is not None or geo.sinks or geo.softcap:
        raise GateError("flashinfer-mla has no sliding window, sinks or soft cap", "window_sinks_or_softcap")
    ckv, kpe = geo.v_dim, geo.head_dim - geo.v_dim
    if ckv % 128 or kpe % 64 or (backend == "fa3" and ckv not in FA3_VALUE_DIMS):
        raise GateError(
            f"flashinfer-mla needs value widths of a multiple of 128 (fa3: 128, 256, 512) and a rotary part of a "
            f"multiple of 64, not {ckv} and {kpe}",
            "head_dim",
        )
    capability = gpu.compute_capability
    if backend == "fa3" and not gpu.is_sm(90):
        raise GateError(f"flashinfer-mla: fa3 runs on SM90 (Hopper) only, not on {gpu.label}", "not_sm90")
    if capability is not None and capability < (8, 0):
        raise GateError(f"flashinfer-mla: fa2 runs from SM80 on, not on {gpu.label}", "compute_capability")
    _check_types(kv, gpu, ckv, kpe)
    return _tile_keys(kv, gpu, backend, ckv, kpe)


def _check_types(kv: KvCache, gpu: Gpu, ckv: int, kpe: int) -> None:
    if kv.dtype == "fp8":
        if not gpu.is_sm(90) or kv.query_dtype != "bf16" or ckv != 512 or kpe not in (0, 64):
            raise GateError(
                "flashinfer-mla: FP8 keys need SM90, bf16 queries and a latent of 512 + 64 or 512, not "
                f"{kv.query_dtype} queries and {ckv} + {kpe} on {gpu.label}",
                "fp8_keys",
            )
    elif kv.dtype not in ("bf16", "fp16") or kv.query_dtype != kv.dtype:
        raise GateError(
            f"flashinfer-mla takes bf16 or fp16 for both keys and queries, or FP8 keys, not {kv.dtype} keys and "
            f"{kv.query_dtype} queries",
            "dtype",
        )


def _tile_keys(kv: KvCache, gpu: Gpu, backend: str, ckv: int, kpe: int) -> int:
    """Keys of a tile, after the check that its buffers fit: SharedStorageQKVO and HopperSharedStorageQKVO."""
    fp8, per_sm, per_block = kv.dtype == "fp8", gpu.smem_bytes_per_sm, gpu.max_smem_bytes_per_block
    queries, key_bytes = CTA_ROWS * (ckv + kpe) * 2, 1 if fp8 else 2
    if backend == "fa3":
        tile_keys = 64
        stage = 64 * ckv * key_bytes + max(64 * kpe * key_bytes, 64 * 64 * 2)
        repack = 64 * ckv * 2 + round_up(max(64 * kpe, 1) * 2, 16) if fp8 else 32
        needed = queries + max(2 * stage + repack, 64 * ckv * 2) + 3 * 64 * 4 + 64
    else:
        shapes = [shape for shape in FA2_SHAPES if per_sm is None or per_sm >= shape[0]]
        if not shapes:
            raise GateError(
                f"flashinfer-mla: fa2 needs SMs with {FA2_SHAPES[-1][0]} bytes of shared memory, not {per_sm}",
                "shared_memory",
            )
        _, tile_keys, stages = shapes[0]
        tile_keys = FP8_TILE_KEYS if fp8 else tile_keys
        keys = stages * tile_keys
        repack = keys * ckv * 2 + round_up(keys * max(kpe, 1) * 2, 16) if fp8 else 32
        needed = queries + keys * (ckv + max(kpe, 64)) * key_bytes + repack + 2 * 64 * 4
        needed = max(needed, 64 * ckv * 2)
    if per_block is not None and needed > per_block:
        raise GateError(
            f"flashinfer-mla: {backend} needs {needed} bytes of shared memory for a block, and {gpu.label} has "
            f"{per_block}",
            "shared_memory",
        )
    return tile_keys

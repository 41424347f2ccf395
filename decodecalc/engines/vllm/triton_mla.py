"""vllm-triton-mla: vLLM's Triton MLA decode backend (TRITON_MLA). Its split count depends on the longest request only.

There is one latent KV head, and a block serves 16 query heads of one query token and one split. Every row of queries is
cut into the same number of equal slices, which are not rounded to tiles. The split kernel and the merge run even with
one split. Several query tokens of a request become rows of their own; the t-th of q sees L - q + t keys. A full CUDA
graph freezes the count: graphs are captured with the longest model length of the server in place of the batch's.

Read from the vLLM wheels on PyPI: vllm/v1/attention/backends/mla/triton_mla.py (`_compute_num_kv_splits`,
`TritonMLAImpl.forward_mqa`), triton_decode_attention.py (`_decode_grouped_att_m_fwd`, `_decode_att_m_fwd`,
`_decode_softmax_reducev_fwd`) and, for the length at capture, vllm/v1/worker/gpu_model_runner.py
(`_build_attention_metadata`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.sglang.latent import view_fits
from decodecalc.engines.vllm.releases import RELEASES
from decodecalc.engines.vllm.triton_server import PAGE_MULTIPLE, cache_types, check_fp8, check_pages, refusal
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import Numbers, Takes
from decodecalc.launch.traits import COUNT, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

HEADS_PER_BLOCK = 16  # BLOCK_H
KEYS_PER_SPLIT, SPLITS_PER_SM = 512, 2  # _MIN_WORK_PER_SPLIT, _SPLIT_OCCUPANCY_MULTIPLIER
GROUPED_TILE, GROUPED_TILE_HIP = 32, 16
SINGLE_TILE, SINGLE_TILE_HIP = 64, 8  # one query head: the kernel without groups
WARPS = 4
MAX_QUERY_ROWS = 1 << 12  # rows of one request that a plan walks through


@dataclass(frozen=True, slots=True)
class VllmTritonMlaRules:
    """What differs between versions.

    fixed_splits: a constant count instead of the rule. batch_invariant: the mode forces one split.
    multi_token: several query tokens of a request take this path. cache_dtypes: element types of the latent cache.
    fp8_needs_sm89: FP8 caches are refused at start-up on older NVIDIA GPUs. value_is_view: V is taken from the K tile
    in registers; aligned_tiles: the K tile is as wide as V, and the rest of K has a tile of its own.
    """

    fixed_splits: int | None = None
    batch_invariant: bool = True
    multi_token: bool = True
    cache_dtypes: tuple[str, ...] = ("bf16", "fp16", "fp8")
    fp8_needs_sm89: bool = True
    value_is_view: bool = True
    aligned_tiles: bool = True


@dataclass(frozen=True, slots=True)
class VllmTritonMlaOptions(EngineOptions):
    """What a server's settings add to the launch."""

    batch_invariant: bool = option(False, "bool", "results do not depend on the batch", "VLLM_BATCH_INVARIANT=1")
    captured_max_len: int | None = option(
        None,
        "int?",
        "longest model length, from which a full CUDA graph freezes the split count; none: launched eagerly",
        "--max-model-len",
        low=1,
    )


class VllmTritonMlaDetail(NamedTuple):
    """num_kv_splits: the count of the launch. decided_by_len [N]: the length that it follows from. block_h: query heads
    of a block."""

    num_kv_splits: Any
    decided_by_len: Any
    max_splits: int
    block_h: int
    rows: Any
    kv_len_per_split: Any


def _version(name: str, first: str, last: str, rules: VllmTritonMlaRules, note: str) -> PolicyVersion:
    source = (
        f"vLLM wheel {name}: vllm/v1/attention/backends/mla/triton_mla.py (TritonMLAImpl), triton_decode_attention.py"
    )
    return PolicyVersion(name, source, covers=(first, last), rules=rules, note=note)


_NO_FP8 = ("bf16", "fp16")


class VllmTritonMla(Policy):
    """The split count is min(next power of two of L // 512, 2 SMs), in any batch."""

    name = "vllm-triton-mla"
    title = "vLLM Triton MLA (TRITON_MLA)"
    releases = RELEASES
    word_for_split = "kv_split"
    options_type = VllmTritonMlaOptions
    versions = (
        _version("0.33.0", "0.31.0", "0.33.0", VllmTritonMlaRules(), "drafts are verified on this path"),
        _version("0.30.0", "0.26.0", "0.30.0", VllmTritonMlaRules(multi_token=False), "single query tokens"),
        _version(
            "0.25.1",
            "0.21.0",
            "0.25.1",
            VllmTritonMlaRules(multi_token=False, fp8_needs_sm89=False),
            "latents of any widths",
        ),
        _version(
            "0.20.2",
            "0.20.0",
            "0.20.2",
            VllmTritonMlaRules(multi_token=False, fp8_needs_sm89=False, aligned_tiles=False),
            "split count follows the longest request; V is a view of the K tile",
        ),
        _version(
            "0.19.1",
            "0.18.0",
            "0.19.1",
            VllmTritonMlaRules(4, multi_token=False, fp8_needs_sm89=False, value_is_view=False),
            "4 splits; FP8 caches; V is loaded apart from K",
        ),
        _version(
            "0.17.1",
            "0.11.1",
            "0.17.1",
            VllmTritonMlaRules(4, multi_token=False, cache_dtypes=_NO_FP8, value_is_view=False),
            "4 splits; batch-invariant mode",
        ),
        _version(
            "0.11.0",
            "0.9.2",
            "0.11.0",
            VllmTritonMlaRules(4, batch_invariant=False, multi_token=False, cache_dtypes=_NO_FP8, value_is_view=False),
            "4 splits",
        ),
    )
    rule = (
        "splits = min(next power of two of max(1, longest L // 512), 2 SMs), 1 in batch-invariant mode; "
        "grid (query tokens, ceil(heads / 16), splits); a split is ceil(L / splits) keys"
    )
    split_flag = "VLLM_BATCH_INVARIANT=1 (one split)"
    traits = Traits(
        server_names=("TRITON_MLA",),
        invariant_option=("batch_invariant", True),
        longest_option="captured_max_len",
        frozen_option="captured_max_len",
        partition=Partition(rule=COUNT, unit_keys=1),
        returns_lse=True,
    )

    def combinations(self, options: VllmTritonMlaOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        layer = Takes(mla=True, windows=False, softcaps=False, page_sizes=Numbers(step=PAGE_MULTIPLE))
        return cache_types(layer, version.rules.cache_dtypes, version.rules.fp8_needs_sm89)

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: VllmTritonMlaOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. GateError codes: not_mla, window, kv_dtype, page_size, allocator_page_size."""
        rules: VllmTritonMlaRules = version.rules
        _check_start_up(geo, kv, gpu, rules)
        max_q = int(batches.q_lens.max())
        if max_q > 1 and not rules.multi_token:
            raise InputError(
                f"vllm-triton-mla@{version.name} takes one query token per request, not {max_q}: it sends longer "
                f"queries to the prefill path (0.31.0 is the first that does not)"
            )
        if max_q > MAX_QUERY_ROWS:
            raise InputError(f"vllm-triton-mla plans up to {MAX_QUERY_ROWS} query tokens per request, not {max_q}")
        seq_lens, q_lens = batches.seq_lens, batches.q_lens
        longest = batches.max_seq_len
        if options.captured_max_len is not None:
            longest = np.full_like(longest, options.captured_max_len)
        most = SPLITS_PER_SM * gpu.sm_count
        invariant = options.batch_invariant and rules.batch_invariant
        if invariant:
            splits = np.ones_like(longest)
        elif rules.fixed_splits is not None:
            splits = np.full_like(longest, rules.fixed_splits)
        else:
            splits = np.minimum(next_power_of_2(longest // KEYS_PER_SPLIT), most)
        count = splits[:, None]

        grouped = geo.q_heads > 1
        heads = min(HEADS_PER_BLOCK, geo.q_heads)
        tiles = cdiv(geo.q_heads, heads)
        tile = GROUPED_TILE if grouped else SINGLE_TILE
        if gpu.is_hip:
            tile = GROUPED_TILE_HIP if grouped else SINGLE_TILE_HIP
        split_keys = np.maximum(cdiv(seq_lens, count), 1)
        has_work = (q_lens > 0) & (seq_lens > 0)
        live = cdiv(seq_lens, split_keys) * has_work
        tokens = batches.query_tokens
        threads = WARPS * (gpu.warp_size or 32)
        state = geo.v_dim + 1  # normalised output and log-sum-exp
        name = "_fwd_grouped_kernel_stage1" if grouped else "_fwd_kernel_stage1"
        live_blocks = _live_rows_times_splits(batches, count, max_q) * tiles
        stage1 = KernelArray(
            name=name,
            role="stage1",
            grid=(tokens, tiles, splits),
            threads=threads,
            live_blocks=live_blocks,
            tile_keys=tile,
        )
        merge = KernelArray(
            name="_fwd_kernel_stage2",
            role="merge",
            grid=(tokens, geo.q_heads),
            threads=threads,
            live_blocks=tokens * geo.q_heads,
        )
        return Launches(
            is_split=True,
            kernels=(stage1, merge),
            requested=count,
            launched=splits,
            live=live,
            split_keys=split_keys,
            blocks_per_split=q_lens * tiles,
            unsplit_blocks=batches.total(q_lens * has_work) * tiles,
            tile_keys=tile,
            block_rows=HEADS_PER_BLOCK if grouped else 1,
            live_rows=heads,
            state_values=state,
            scratch_bytes=tokens * geo.q_heads * splits * state * 4,
            determinism=_determinism(rules, options, invariant),
            gates=_gates(gpu, kv, rules, options, invariant, longest, splits, most),
            loads_value_apart=not (rules.value_is_view and grouped),
            detail=VllmTritonMlaDetail(
                num_kv_splits=splits,
                decided_by_len=longest,
                max_splits=most,
                block_h=HEADS_PER_BLOCK,
                rows=tokens,
                kv_len_per_split=split_keys,
            ),
        )


def _check_start_up(geo: Geometry, kv: KvCache, gpu: Gpu, rules: VllmTritonMlaRules) -> None:
    refuse = refusal("vllm-triton-mla")
    if not geo.mla:
        raise GateError(f"{refuse}it serves MLA models only, and this layer is {geo.kind}; see vllm-triton", "not_mla")
    check_pages("vllm-triton-mla", kv)
    if geo.window is not None or geo.softcap:
        raise GateError(f"{refuse}sliding windows and logit soft caps are not supported", "window")
    if rules.value_is_view and not rules.aligned_tiles and geo.q_heads > 1 and not view_fits(geo):
        raise GateError(
            f"vllm-triton-mla of vLLM 0.20 takes V from the K tile, and a latent of {geo.head_dim}/{geo.v_dim} needs "
            "tiles of two widths, which does not compile (0.21.0 is the first release that cuts them alike)",
            "head_dim",
        )
    if kv.dtype not in rules.cache_dtypes:
        raise GateError(f"{refuse}the KV cache is {kv.dtype}; valid are {', '.join(rules.cache_dtypes)}", "kv_dtype")
    if rules.fp8_needs_sm89:
        check_fp8("vllm-triton-mla", kv, gpu)


def _live_rows_times_splits(batches: Batches, count: IntArray, max_q: int) -> IntArray:
    """Live (query row, split) pairs [N]; the t-th of q rows sees L - q + t keys."""
    pairs = np.zeros_like(batches.seq_lens)
    for row in range(1, max_q + 1):
        extent = np.maximum(batches.seq_lens - batches.q_lens + row, 0)
        live = cdiv(extent, np.maximum(cdiv(extent, count), 1))
        pairs += live * (row <= batches.q_lens) * (batches.seq_lens > 0)
    return batches.total(pairs)


def _determinism(rules: VllmTritonMlaRules, options: VllmTritonMlaOptions, invariant: bool) -> str:
    if invariant:
        return "invariant"
    frozen = rules.fixed_splits is not None or options.captured_max_len is not None
    return "fixed count" if frozen else "batch-dependent"


def _gates(
    gpu: Gpu,
    kv: KvCache,
    rules: VllmTritonMlaRules,
    options: VllmTritonMlaOptions,
    invariant: bool,
    longest: IntArray,
    splits: IntArray,
    most: int,
) -> tuple[GateArray, ...]:
    if invariant:
        return (GateArray("batch_invariant", False, lambda n: "batch-invariant mode is on, so there is 1 split"),)
    if rules.fixed_splits is not None:
        return (
            GateArray("fixed_splits", True, lambda n: f"this version has {rules.fixed_splits} splits for every length"),
        )
    wanted = next_power_of_2(longest // KEYS_PER_SPLIT)
    origin = "the server's, frozen by the CUDA graph" if options.captured_max_len is not None else "the batch's"
    return (
        GateArray(
            "sm_cap",
            wanted <= most,
            lambda n: (
                f"longest L {at(longest, n)} ({origin}): next power of two of L // {KEYS_PER_SPLIT} = {at(wanted, n)} "
                f"{'<=' if at(wanted, n) <= most else '>'} 2 x {gpu.sm_count} SMs, which gives {at(splits, n)} splits"
            ),
        ),
        GateArray("batch_invariant", True, lambda n: "batch-invariant mode is off"),
        GateArray("page_size", True, lambda n: f"page size {kv.page_size} is a multiple of 16"),
    )


POLICY = VllmTritonMla()

"""paged-attention-v1 and -v2: vLLM's first decode kernels (2023), in which a block serves one query head.

v1 walks a whole request per block and keeps all its scores in shared memory. v2 cuts requests into partitions of 512
keys and reduces them. vLLM chooses between them for each step: it takes v1 where its scores fit and where either one
partition or the number of blocks makes v2 pointless. Neither shares keys over the group: KV is read once per query
head, for any number of KV heads.

Read from vLLM's source distributions 0.2.2, 0.6.6.post1, 0.7.3, 0.10.2, 0.11.0 and 0.11.2:
vllm/attention/ops/paged_attn.py (forward_decode), csrc/attention/paged_attention_v1.cu, paged_attention_v2.cu,
attention_kernels.cuh. The kernels were removed from vLLM in 2026-07.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decodecalc.engines.vllm.releases import RELEASES
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import AMD, FLOATS, NVIDIA, Takes, only
from decodecalc.launch.traits import SIZE, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

PARTITION_KEYS = 512
V1_MAX_KEYS = 8192  # vLLM's comment: the scores of v1 would not fit shared memory above this
V1_MIN_BLOCKS = 512  # more blocks than this are enough without partitions
THREADS = 128
BLOCK_SIZES = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class PagedAttentionRules:
    """head_dims: what the kernels are compiled for."""

    head_dims: tuple[int, ...] = (32, 64, 80, 96, 112, 120, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class PagedAttentionOptions(EngineOptions):
    """max_seq_len: the length for which the step is planned, when that is more than its longest request."""

    max_seq_len: int | None = option(
        None,
        "int?",
        "keys for which the launch is sized; for a captured CUDA graph, the longest request that it may replay",
        low=1,
    )


class PagedAttentionDetail(NamedTuple):
    """What the launcher computes. engine_picks: v1 or v2, which vLLM itself chooses for the step."""

    engine_picks_v1: Any
    max_num_partitions: Any
    dynamic_smem_bytes: Any
    head_dim_compiled: bool


def picks_v1(max_seq_len: Any, batch: Any, q_heads: int) -> Any:
    """Whether vLLM takes v1 for a step that is launched for `max_seq_len` keys. Takes numbers or arrays."""
    one_partition = cdiv(max_seq_len, PARTITION_KEYS) == 1
    return (max_seq_len <= V1_MAX_KEYS) & (one_partition | (batch * q_heads > V1_MIN_BLOCKS))


class PagedAttention(Policy):
    """What v1 and v2 share: one block per query head, request and partition."""

    releases = RELEASES
    word_for_split = "partition"
    options_type = PagedAttentionOptions
    partitioned: ClassVar[bool]
    versions = (
        PolicyVersion(
            "0.6.6.post1",
            "vllm 0.6.6.post1: vllm/attention/ops/paged_attn.py, csrc/attention/paged_attention_v{1,2}.cu",
            ("0.6.6", "0.11.2"),
            PagedAttentionRules(),
            "removed in 2026-07; the rule did not change from 0.2.2 to 0.11.2",
        ),
        PolicyVersion(
            "0.2.2",
            "vllm 0.2.2: vllm/model_executor/layers/attention.py, csrc/attention/attention_kernels.cu",
            ("0.2.2", "0.2.2"),
            PagedAttentionRules(head_dims=(64, 80, 96, 112, 128, 256)),
            "the kernels are compiled for fewer head dims",
        ),
    )
    rule = (
        "partitions = ceil(longest / 512); v1 iff longest <= 8192 and (partitions == 1 or B * q_heads > 512); "
        "blocks: q_heads x B x (1 for v1, partitions for v2)"
    )

    def combinations(self, options: PagedAttentionOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        compiled = ", ".join(map(str, version.rules.head_dims))
        return (
            Takes(
                devices=(NVIDIA, AMD),
                mla=False,
                sinks=False,
                cache_dtypes=FLOATS,
                value_dims=None,
                page_sizes=only(*BLOCK_SIZES),
                note=f"compiled for head sizes {compiled}: the gate head_dim_compiled says so",
            ),
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: PagedAttentionOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. Raises GateError for MLA, for several query tokens, and for a block size that is not
        compiled."""
        _check(self.name, geo, batches, kv)
        longest = planned_length(self.name, batches, options.max_seq_len)
        partitions = cdiv(longest, PARTITION_KEYS)
        v1 = picks_v1(longest, batches.batch, geo.q_heads)
        warps = THREADS // (64 if gpu.is_hip and gpu.warp_size == 64 else 32)
        outputs = warps // 2 * geo.head_dim * 4
        scores = PARTITION_KEYS if self.partitioned else round_up(longest, kv.page_size)
        smem = np.maximum(scores * 4, outputs) + np.zeros_like(longest)
        compiled = geo.head_dim in version.rules.head_dims
        has_keys = batches.seq_lens > 0
        split_keys = np.full_like(batches.seq_lens, PARTITION_KEYS) if self.partitioned else batches.seq_lens
        live = cdiv(batches.seq_lens, np.maximum(split_keys, 1))
        launched = partitions if self.partitioned else np.ones_like(longest)
        state_bytes = geo.v_dim * max(int(kv.query_element_bytes), 2) + 8  # partial output as T, sum and max as fp32
        tile_keys = warps * kv.page_size  # a warp walks one page at a time
        hidden = visible_start(batches, geo.window) // np.maximum(split_keys, 1)
        return Launches(
            is_split=np.full_like(longest, self.partitioned, dtype=bool),
            kernels=(
                KernelArray(
                    name=f"paged_attention_{'v2' if self.partitioned else 'v1'}_kernel",
                    role="stage1",
                    grid=(geo.q_heads, batches.batch, launched),
                    threads=THREADS,
                    live_blocks=geo.q_heads * batches.total(live),
                    tile_keys=tile_keys,
                ),
                KernelArray(
                    name="paged_attention_v2_reduce_kernel",
                    role="merge",
                    grid=(geo.q_heads, batches.batch),
                    threads=THREADS,
                    live_blocks=geo.q_heads * batches.total(has_keys * 1),
                    when=self.partitioned,
                ),
            ),
            requested=np.broadcast_to(launched[:, None], batches.seq_lens.shape),
            launched=launched,
            live=live,
            working=live - np.minimum(hidden, live) if self.partitioned else live,
            split_keys=np.maximum(split_keys, 1),
            blocks_per_split=np.full_like(batches.seq_lens, geo.q_heads),
            unsplit_blocks=geo.q_heads * batches.total(has_keys * 1),
            tile_keys=tile_keys,
            block_rows=1,
            live_rows=1,
            state_values=cdiv(state_bytes, 4),
            scratch_bytes=self.partitioned * batches.batch * geo.q_heads * partitions * state_bytes,
            determinism="fixed size" if self.partitioned else "invariant",
            detail=PagedAttentionDetail(v1, partitions, smem, compiled),
            gates=(
                GateArray(
                    "engine_picks_it",
                    v1 != self.partitioned,
                    lambda n: (
                        f"vLLM takes {'v1' if at(v1, n) else 'v2'} for {at(longest, n)} keys (v1 up to {V1_MAX_KEYS}), "
                        f"{at(partitions, n)} partitions, {at(batches.batch, n)} x {geo.q_heads} = "
                        f"{at(batches.batch, n) * geo.q_heads} blocks (more than {V1_MIN_BLOCKS} need no partitions)"
                    ),
                ),
                GateArray(
                    "head_dim_compiled",
                    compiled,
                    lambda n: f"head dim {geo.head_dim}; compiled are {', '.join(map(str, version.rules.head_dims))}",
                ),
                GateArray(
                    "shared_memory",
                    True if gpu.max_smem_bytes_per_block is None else smem <= gpu.max_smem_bytes_per_block,
                    lambda n: f"{at(smem, n)} bytes per block of {gpu.max_smem_bytes_per_block or 'unknown'} that fit",
                ),
                GateArray(
                    "window",
                    geo.window is None,
                    lambda n: "the layer has no window"
                    if geo.window is None
                    else f"the kernel reads every key in spite of window {geo.window}",
                ),
                GateArray(
                    "softcap",
                    geo.softcap is None,
                    lambda n: "logits have no cap"
                    if geo.softcap is None
                    else f"the kernel applies no cap of {geo.softcap:g} to logits",
                ),
            ),
        )


def _check(name: str, geo: Geometry, batches: Batches, kv: KvCache) -> None:
    if geo.mla:
        raise GateError(f"{name} has no MLA kernel", "mla")
    if kv.page_size not in BLOCK_SIZES:
        raise GateError(f"{name} takes block sizes of 8, 16 and 32, not {kv.page_size}", "block_size")
    if batches.max_q_len.max() > 1:
        raise GateError(f"{name} decodes one query token per request", "q_len")


def planned_length(name: str, batches: Batches, given: int | None) -> Any:
    """Keys for which a launch is sized [N]: those of the longest request, or more where a CUDA graph was captured for
    more."""
    if given is None:
        return np.maximum(batches.max_seq_len, 1)
    if (batches.max_seq_len > given).any():
        raise InputError(
            f"{name} option max_seq_len ({given}) is less than the longest request, {batches.max_seq_len.max()}"
        )
    return np.full_like(batches.max_seq_len, given)


class PagedAttentionV1(PagedAttention):
    """One block per query head and request, never split."""

    name = "paged-attention-v1"
    title = "vLLM PagedAttention v1 (CUDA, 2023)"
    partitioned = False


class PagedAttentionV2(PagedAttention):
    """Partitions of 512 keys and a reduction."""

    name = "paged-attention-v2"
    title = "vLLM PagedAttention v2 (CUDA, 2023)"
    traits = Traits(partition=Partition(rule=SIZE), frozen_option="max_seq_len")
    partitioned = True


POLICIES = {policy.name: policy for policy in (PagedAttentionV1(), PagedAttentionV2())}

"""rocm-paged: vLLM's custom paged attention for AMD, partitions of 256 keys, and the Triton kernel behind it.

A block serves the whole group of one KV head for one partition, and a reduce kernel follows whatever the number of
partitions. A step that fails one of the conditions takes `kernel_paged_attention_2d`, which never splits: one block
per request and KV head walks all keys, those outside a sliding window included.

Read from vLLM 0.33.0 (vllm/v1/attention/ops/chunked_prefill_paged_decode.py, vllm/platforms/rocm.py:
use_rocm_custom_paged_attention) and its sources csrc/rocm/attention*.cu(h); from the 0.11.0, 0.10.2, 0.7.3 and
0.6.6.post1 source distributions for the older versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.vllm.paged_attention import planned_length
from decodecalc.engines.vllm.releases import RELEASES
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import AMD, FLOATS, SIXTEEN_BITS, Numbers, Takes, only
from decodecalc.launch.traits import SIZE, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

TRITON_WARPS = 4  # the fallback is launched without num_warps: Triton's default
MAX_TRITON_TILE = 128  # MAX_TRITON_BLOCK_SIZE
ODD_TRITON_TILE = 32  # tile for block sizes that are not a power of two (544 of Qwen3-Next)
MFMA4_GROUP = 4  # CDNA: groups up to this take the 4-row kernel
_CDNA = ("gfx90a", "gfx942", "gfx950")  # _ON_GFX9 up to 0.26.0


@dataclass(frozen=True, slots=True)
class RocmPagedRules:
    """What differs between versions.

    partition_keys; max_keys: longest step of the custom kernel. cdna: prefixes of gfx names on the CDNA branch.
    rdna: whether there is a gfx11/gfx12 branch. reads_window: the custom kernel also takes sliding windows (and reads
    every key). single_reduce: the reduce kernel runs for one partition too. capped_tile: the fallback's tile is at
    most 128 keys. odd_tile: it is 32 for block sizes that are no power of two, else the block. triton_fallback: what
    fails the gates goes to Triton, not to paged-attention-v1/-v2. threads of a custom block.
    """

    partition_keys: int = 256
    max_keys: int = 128 * 1024
    cdna: tuple[str, ...] = ("gfx9", "gfx1250")
    rdna: bool = True
    reads_window: bool = False
    single_reduce: bool = True
    capped_tile: bool = True
    odd_tile: bool = True
    triton_fallback: bool = True
    threads: int = 256


@dataclass(frozen=True, slots=True)
class RocmPagedOptions(EngineOptions):
    """What the step is planned for beyond its geometry."""

    max_seq_len: int | None = option(
        None,
        "int?",
        "keys the launch is sized for; a captured CUDA graph takes max_model_len here, and its gate with it",
        low=1,
    )
    arch: str | None = option(
        None, "str?", "instruction family; from the GPU's gfx name when not given", choices=("cdna", "gfx1x", "other")
    )
    alibi: bool = option(False, "bool", "the model has ALiBi slopes (gfx1x: not in the custom kernel)")
    partition_tokens: int | None = option(
        None, "int?", "keys of a partition in builds that changed it (256, 512, 1024)", low=1
    )


class RocmPagedDetail(NamedTuple):
    """The dispatch in vLLM's words; 0 where the fallback runs. mfma: rows of the matrix instruction (4 or 16)."""

    kernel_path: Any
    custom: Any
    arch: str
    partition_tokens: int
    max_num_partitions: Any
    npar_loops: Any
    mfma: int
    triton_block_size: int


class RocmPaged(Policy):
    """Partitions of 256 keys where the gates hold, else one unsplit Triton block per request and KV head."""

    name = "rocm-paged"
    title = "vLLM custom paged attention (ROCm)"
    releases = RELEASES
    word_for_split = "partition"
    options_type = RocmPagedOptions
    versions = (
        PolicyVersion("0.33.0", "vllm 0.33.0", ("0.27.0", "0.33.0"), RocmPagedRules()),
        PolicyVersion(
            "0.26.0",
            "vllm 0.21.0 to 0.26.0: the same files",
            ("0.21.0", "0.26.0"),
            RocmPagedRules(cdna=_CDNA),
            "gfx1250 is not yet on the CDNA branch",
        ),
        PolicyVersion(
            "0.20.2",
            "vllm 0.14.0 to 0.20.2: the same files",
            ("0.14.0", "0.20.2"),
            RocmPagedRules(cdna=_CDNA, capped_tile=False),
            "the fallback's tile is the block size, 32 where that is no power of two",
        ),
        PolicyVersion(
            "0.11.0",
            "vllm 0.10.2 to 0.13.0: vllm/attention/ops/chunked_prefill_paged_decode.py, vllm/platforms/rocm.py",
            ("0.10.2", "0.13.0"),
            RocmPagedRules(cdna=_CDNA, capped_tile=False, odd_tile=False),
            "the fallback's tile is the block size",
        ),
        PolicyVersion(
            "0.7.3",
            "vllm 0.6.6.post1 and 0.7.3: vllm/attention/backends/rocm_flash_attn.py, csrc/rocm/attention.cu",
            ("0.6.6", "0.7.3"),
            RocmPagedRules(
                partition_keys=512, max_keys=32768, cdna=("gfx90a", "gfx940", "gfx941", "gfx942"), rdna=False,
                reads_window=True, single_reduce=False, capped_tile=False, odd_tile=False,
                triton_fallback=False, threads=512,
            ),
            "partitions of 512 keys, up to 32768 keys; the fallback was paged-attention-v1 or -v2",
        ),
    )  # fmt: skip
    rule = (
        "custom iff no window, no sinks, L <= 131072 and on CDNA: D in {64, 128}, block in {16, 32}, group 1 to 16; on "
        "gfx11/12: D 128, block 16, group 3 to 16, no ALiBi, unquantised cache. Grid (B, ceil(longest / 256), kv_heads)"
    )
    traits = Traits(server_names=("ROCM_ATTN",), partition=Partition(rule=SIZE), frozen_option="max_seq_len")

    def combinations(self, options: RocmPagedOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        rules: RocmPagedRules = version.rules
        if rules.triton_fallback:
            return (Takes(devices=(AMD,), mla=False, cache_dtypes=FLOATS, value_dims=None),)
        return (
            Takes(
                devices=(AMD,) if options.arch else rules.cdna,
                mla=False,
                sinks=False,
                cache_dtypes=FLOATS,
                query_dtypes=SIXTEEN_BITS,
                head_dims=only(64, 128),
                value_dims=None,
                groups=Numbers(high=16),
                page_sizes=only(16, 32),
            ),
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: RocmPagedOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. GateError: not an AMD device, MLA, several query tokens."""
        if not gpu.is_hip:
            raise GateError(f"rocm-paged: an AMD kernel; {gpu.label} is not an AMD device", "not_amd")
        if geo.mla:
            raise GateError("rocm-paged: has no MLA kernel", "mla")
        if batches.max_q_len.max() > 1:
            raise GateError("rocm-paged: requests with several query tokens go to the prefill kernel", "q_len")
        rules: RocmPagedRules = version.rules
        arch = options.arch or _arch(gpu.gfx, rules)
        wave = 64 if arch == "cdna" else 32
        size = options.partition_tokens or rules.partition_keys
        longest = planned_length(self.name, batches, options.max_seq_len)
        gates = _gates(geo, kv, arch, options, rules, size, longest)
        custom = np.logical_and.reduce([np.broadcast_to(g.passed, longest.shape) for g in gates])
        if not rules.triton_fallback and not custom.all():
            raise GateError(
                f"rocm-paged {version.name}: the custom kernel does not take this step "
                f"({'; '.join(g.reason(0) for g in gates if not np.all(g.passed))}): see paged-attention-v1 and -v2",
                "paged_attention_fallback",
            )
        partitions = np.where(custom, cdiv(longest, size), 1)
        loops = np.where(custom, cdiv(partitions, wave), 0)
        is_split = custom & (rules.single_reduce | (partitions > 1))
        lens = batches.seq_lens
        split_keys = np.where(custom[:, None], size, np.maximum(lens, 1))
        live = cdiv(lens, split_keys)
        power_of_2 = kv.page_size & (kv.page_size - 1) == 0
        triton_tile = kv.page_size
        if not power_of_2 and rules.odd_tile:
            triton_tile = ODD_TRITON_TILE
        elif rules.capped_tile:
            triton_tile = min(kv.page_size, MAX_TRITON_TILE)
        rows = 4 if arch == "cdna" and geo.group <= MFMA4_GROUP else 16
        state_bytes = geo.v_dim * 2 + 8  # partial output in the query's type, sum and max as fp32
        live_blocks = geo.kv_heads * batches.total(live)
        queries = batches.total((lens > 0) * geo.q_heads)
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name=f"paged_attention_ll4mi_QKV_mfma{rows}_kernel",
                    role="stage1",
                    grid=(batches.batch, partitions, geo.kv_heads),
                    threads=rules.threads,
                    live_blocks=live_blocks,
                    tile_keys=size,
                    when=custom,
                ),
                KernelArray(
                    name="kernel_paged_attention_2d",
                    role="stage1",
                    grid=(batches.batch, geo.kv_heads),
                    threads=TRITON_WARPS * wave,
                    live_blocks=live_blocks,
                    tile_keys=triton_tile,
                    when=~custom,
                ),
                KernelArray(
                    name="paged_attention_ll4mi_reduce_kernel",
                    role="merge",
                    grid=(geo.q_heads, batches.batch),
                    threads=geo.head_dim,
                    live_blocks=queries,
                    when=is_split,
                ),
            ),
            requested=np.broadcast_to(partitions[:, None], lens.shape),
            launched=partitions,
            live=live,
            split_keys=split_keys,
            blocks_per_split=np.full_like(lens, geo.kv_heads),
            unsplit_blocks=geo.kv_heads * batches.total((lens > 0) * 1),
            tile_keys=np.where(custom, size, triton_tile),
            block_rows=np.where(custom, rows, max(next_power_of_2(geo.group), 16)),
            live_rows=geo.group,
            state_values=cdiv(state_bytes, 4),
            scratch_bytes=custom * batches.batch * geo.q_heads * partitions * state_bytes,
            determinism="fixed size" if custom.any() else "invariant",
            detail=RocmPagedDetail(
                np.where(custom, "custom", "triton_fallback"), custom, arch, size, partitions * custom, loops, rows,
                triton_tile,
            ),
            gates=gates,
        )  # fmt: skip


def _arch(gfx: str | None, rules: RocmPagedRules) -> str:
    name = gfx or ""
    if name.startswith(rules.cdna):
        return "cdna"
    return "gfx1x" if rules.rdna and name.startswith(("gfx11", "gfx12")) else "other"


def _gates(
    geo: Geometry, kv: KvCache, arch: str, options: RocmPagedOptions, rules: RocmPagedRules, size: int, longest: Any
) -> tuple[GateArray, ...]:
    """The conditions of the custom kernel, all of which must hold."""
    cdna = arch == "cdna"
    dims, blocks, least = ((64, 128), (16, 32), 1) if cdna else ((128,), (16,), 3)
    plain_cache = kv.dtype in ("bf16", "fp16", "fp32")
    group, page = geo.group, kv.page_size
    return (
        GateArray("arch", arch != "other", lambda n: f"{arch}: the custom kernel is for cdna and gfx11/gfx12"),
        GateArray("window", geo.window is None or rules.reads_window, lambda n: f"sliding window {geo.window}"),
        GateArray(
            "query_dtype", kv.query_dtype in ("bf16", "fp16"), lambda n: f"{kv.query_dtype} queries; bf16 or fp16"
        ),
        GateArray("head_dim", geo.head_dim in dims, lambda n: f"head dim {geo.head_dim}; {arch} has {dims}"),
        GateArray("block_size", page in blocks, lambda n: f"blocks of {page} keys; {arch} has {blocks}"),
        GateArray("group", least <= group <= 16, lambda n: f"{group} query heads per KV head; {least} to 16"),
        GateArray(
            "max_seq_len",
            longest <= rules.max_keys,
            lambda n: f"sized for {at(longest, n)} keys, limit {rules.max_keys}",
        ),
        GateArray("sinks", not geo.sinks, lambda n: "attention sinks" if geo.sinks else "no sinks"),
        GateArray("alibi", cdna or not options.alibi, lambda n: "ALiBi" if options.alibi else "no ALiBi"),
        GateArray("kv_dtype", cdna or plain_cache, lambda n: f"{kv.dtype} cache; gfx1x takes unquantised only"),
        GateArray("partition", size % page == 0, lambda n: f"partitions of {size} keys in blocks of {page}"),
    )


POLICY = RocmPaged()

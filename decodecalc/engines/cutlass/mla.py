"""cutlass-mla: the CUTLASS MLA decode kernel for SM100, as FlashInfer and vLLM ship it.

Two blocks form a cluster that computes all 128 query heads of a request (64 rows each; fewer heads are padded), in
tiles of 128 keys. The split count comes from the width of the page table, not from the requests' lengths, so short
requests in a wide table leave splits without keys. A reduction kernel follows whenever there is more than one split.

Sources: flashinfer-python 0.7.4, flashinfer/attention/blackwell/device/sm100_mla.hpp set_split_kv and cutlass_mla.cuh
args_from_options; vllm 0.33.0, csrc/attention/mla/cutlass_sm100_mla/device/sm100_mla.hpp set_split_kv,
kernel/sm100_mla_tile_scheduler.hpp, kernel/sm100_fmha_mla_reduction.hpp, csrc/attention/mla/sm100_cutlass_mla_kernel.cu
and vllm/v1/attention/backends/mla/cutlass_mla.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SAME, Numbers, Takes, only
from decodecalc.launch.traits import COUNT, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

HEADS = 128  # TileShapeH: heads of a call; callers pad to it
TILE_KEYS = 128  # TileShapeS
CLUSTER = 2  # blocks that share one tile of heads
LATENT, VALUE = 576, 512
THREADS = 256
REDUCTION_THREADS = 128
SMEM_BYTES = 217_088  # dynamic shared memory of the two-byte kernel
WORKSPACE_BYTES = 128 << 20  # what vLLM's backend starts with
MOST_SPLITS = 256  # kMaxSplits of the reduction kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """One line of vLLM's table: at most `splits` splits for such a step."""

    splits: int
    """The cap."""
    keys: int
    """The table holds at least this many keys."""
    most_requests: int | None = None
    """The batch has at most this many requests."""
    requests: int | None = None
    """The batch has exactly this many requests."""

    def holds(self, batch: IntArray, keys: IntArray) -> Any:
        """Where the line applies [N]."""
        fits = batch == self.requests if self.most_requests is None else batch <= self.most_requests
        return fits & (keys >= self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutlassMlaRules:
    """What differs between the copies."""

    server: str
    """Whose copy it is."""
    caps: tuple[Cap, ...] | None
    """vLLM's caps, of which the first that applies counts; None caps at the tiles of the table."""
    cluster_aware: bool
    """A split is counted as a cluster of two SMs, not as one SM."""
    forced: bool
    """The caller can fix the count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutlassMlaOptions(EngineOptions):
    """The page table, and the split argument."""

    page_table_width: int | None = option(
        None, "int?", "pages in a row of the page table; as many as the longest request needs by default", low=1
    )
    num_kv_splits_arg: int = option(
        -1, "int", "split count; below 1 the kernel decides (vLLM only)", flag="FORCE_NUM_KV_SPLITS (vLLM)", low=-1
    )


class CutlassMlaDetail(NamedTuple):
    """The kernel's own quantities."""

    max_seq_len: Any
    """Keys that the rule sees: page size times table width, in whole tiles [N]."""
    splits: Any
    """Splits of every request [N]."""
    cap: Any
    """Most splits that the rule allows before the SMs count [N]."""
    cluster: tuple[int, int, int]
    """Blocks of a cluster."""
    padded_heads: int
    """Query heads of the call."""
    persistent: bool
    """Whether a block takes one (request, split) after another; otherwise each pair has a block of its own."""
    smem_bytes: int | None
    """Dynamic shared memory of a block; None where it was not recorded."""
    workspace_bytes: Any
    """Bytes of workspace that the kernel's own function asks for [N]."""
    tiles_per_split: Any
    """Tiles of each request's first split [N, R]."""


_VLLM_CAPS = (
    Cap(splits=16, most_requests=4, keys=16_384),
    Cap(splits=8, most_requests=8, keys=4096),
    Cap(splits=4, most_requests=16, keys=8192),
    Cap(splits=4, requests=48, keys=32_768),
    Cap(splits=2, most_requests=32, keys=16_384),
    Cap(splits=2, requests=96, keys=16_384),
)


class CutlassMla(Policy):
    """The split count follows the page table's width, and each split has two blocks."""

    name = "cutlass-mla"
    title = "CUTLASS MLA decode (SM100)"
    word_for_split = "split (split_kv)"
    versions = (
        PolicyVersion(
            "vllm-0.33",
            "vLLM 0.33.0 csrc/attention/mla/cutlass_sm100_mla/device/sm100_mla.hpp set_split_kv",
            ("0.33", "0.33"),
            CutlassMlaRules(server="vLLM", caps=_VLLM_CAPS, cluster_aware=False, forced=True),
            "caps by batch and table width, tuned in vLLM #26846 (2025-10)",
        ),
        PolicyVersion(
            "flashinfer-0.7.4",
            "flashinfer-python 0.7.4 attention/blackwell/device/sm100_mla.hpp set_split_kv; the same text in "
            "0.6.18.post1 and 0.7.2.post1",
            ("0.6.18", "0.7.4"),
            CutlassMlaRules(server="FlashInfer", caps=None, cluster_aware=True, forced=False),
            "there are as many splits as tiles, if the clusters of one wave allow it",
        ),
        PolicyVersion(
            "vllm-0.11.0",
            "vLLM csrc/attention/mla/cutlass_sm100_mla/device/sm100_mla.hpp set_split_kv after #25509 (2025-09-23) and "
            "before #26846 (2025-10)",
            ("0.11.0", "0.11.0"),
            CutlassMlaRules(
                server="vLLM",
                caps=(Cap(splits=16, most_requests=1, keys=0),),
                cluster_aware=False,
                forced=True,
            ),
            "at most 16 splits for a single request, one split for any larger batch (the reduction could hang)",
        ),
    )
    options_type = CutlassMlaOptions
    split_flag = "FORCE_NUM_KV_SPLITS"
    rule = (
        "K = page size * table width. FlashInfer: m = ceil(K / 128), h = min(m, max(1, SMs // (2 * batch))). vLLM: m "
        "is 16, 8, 4, 2 or 1 by batch and K, h = min(m, max(1, SMs // batch)). splits = ceil(m / ceil(m / h)); a "
        "request of t tiles is cut in splits of ceil(t / splits) tiles"
    )
    traits = Traits(
        server_names=("CUTLASS_MLA", "cutlass_mla"),
        split_setting=SplitSetting("FORCE_NUM_KV_SPLITS={splits}", "num_kv_splits_arg", "vLLM"),
        by_hand_option="num_kv_splits_arg",
        frozen_option="page_table_width",
        longest_in_pages=True,
        partition=Partition(rule=COUNT),
        returns_lse=True,
    )

    def combinations(self, options: CutlassMlaOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        return (
            Takes(
                devices=("sm10x",),
                mla=True,
                windows=False,
                sinks=False,
                softcaps=False,
                cache_dtypes=("bf16", "fp16", "fp8"),
                query_dtypes=SAME,
                head_dims=only(LATENT),
                value_dims=only(VALUE),
                q_heads=Numbers(high=HEADS),
                kv_heads=only(1),
                page_sizes=Numbers(high=TILE_KEYS, powers_of_2=True),
            ),
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: CutlassMlaOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays.

        Raises GateError for anything but plain MLA of 576/512 with one query token per request on SM100.
        """
        rules: CutlassMlaRules = version.rules
        _check(geo, batches, kv, gpu, options, rules)
        keys = _table_keys(batches, kv, options)
        batch, lens = batches.batch, batches.seq_lens
        given = options.num_kv_splits_arg
        cap = _cap(batch, keys, rules)
        slots = gpu.sm_count // np.maximum(batch * (CLUSTER if rules.cluster_aware else 1), 1)
        wanted = np.minimum(cap, np.maximum(slots, 1))
        splits = np.full_like(batch, given) if given >= 1 else cdiv(cap, cdiv(cap, wanted))
        if (splits > MOST_SPLITS).any():
            raise GateError(
                f"cutlass-mla: the reduction kernel holds {MOST_SPLITS} splits, not {int(splits.max())}",
                "too_many_splits",
            )
        persistent = given <= 1
        is_split = splits > 1
        tiles = cdiv(lens, TILE_KEYS)
        per_split = np.maximum(cdiv(tiles, splits[:, None]), 1)
        live = cdiv(tiles, per_split)
        items = batches.total(live)
        one = np.ones_like(batch)
        grid = (
            (np.minimum(CLUSTER * batch * splits, gpu.sm_count), one, one)
            if persistent
            else (CLUSTER * one, batch, splits)
        )
        busy = np.minimum(CLUSTER * items, grid[0]) if persistent else CLUSTER * items
        workspace = (VALUE + 1) * 4 * HEADS * splits * batch
        columns = np.full_like(lens, CLUSTER)
        detail = CutlassMlaDetail(
            max_seq_len=keys,
            splits=splits,
            cap=cap,
            cluster=(CLUSTER, 1, 1),
            padded_heads=HEADS,
            persistent=persistent,
            smem_bytes=SMEM_BYTES if kv.dtype != "fp8" else None,
            workspace_bytes=workspace,
            tiles_per_split=np.minimum(per_split, tiles),
        )
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name="Sm100FmhaMlaKernelTmaWarpspecialized",
                    role="stage1",
                    grid=grid,
                    threads=THREADS,
                    live_blocks=busy,
                    tile_keys=TILE_KEYS,
                ),
                KernelArray(
                    name="Sm100FmhaMlaReductionKernel",
                    role="merge",
                    grid=(HEADS, 1, batch),
                    threads=REDUCTION_THREADS,
                    live_blocks=HEADS * batch,
                    when=is_split,
                ),
            ),
            requested=np.broadcast_to(splits[:, None], lens.shape),
            launched=splits,
            live=live,
            split_keys=per_split * TILE_KEYS,
            blocks_per_split=columns,
            unsplit_blocks=batches.total(columns * (lens > 0)),
            tile_keys=TILE_KEYS,
            block_rows=HEADS // CLUSTER,
            live_rows=min(geo.q_heads, HEADS // CLUSTER),
            state_values=VALUE + 1,
            scratch_bytes=workspace,
            determinism="invariant" if given == 1 else "fixed count" if given > 1 else "batch-dependent",
            detail=detail,
            gates=_gates(batches, gpu, rules, detail, given, wanted),
        )


def _check(
    geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: CutlassMlaOptions, rules: CutlassMlaRules
) -> None:
    if not geo.mla:
        raise GateError("cutlass-mla needs an MLA geometry (one latent per key that is both key and value)", "not_mla")
    if geo.head_dim != LATENT or geo.v_dim != VALUE or geo.kv_heads != 1:
        raise GateError(
            f"cutlass-mla takes one latent of 576 elements with values of 512, not {geo.kv_heads} of "
            f"{geo.head_dim}/{geo.v_dim}",
            "head_dim",
        )
    if geo.q_heads > HEADS:
        raise GateError(f"cutlass-mla takes at most {HEADS} query heads, not {geo.q_heads}", "heads")
    if geo.window is not None or geo.softcap or geo.sinks:
        raise GateError("cutlass-mla has no sliding window, no logit cap and no sinks", "window_softcap_or_sinks")
    if gpu.is_hip or not gpu.is_sm_family(100):
        raise GateError(
            f"cutlass-mla runs on compute capability 10.x only, which {gpu.label} does not have", "not_sm100"
        )
    if kv.dtype not in ("bf16", "fp16", "fp8") or kv.query_dtype != kv.dtype:
        raise GateError(
            f"cutlass-mla takes bf16, fp16 or fp8, the same for keys and queries, not {kv.dtype} keys and "
            f"{kv.query_dtype} queries",
            "dtype",
        )
    if TILE_KEYS % kv.page_size:
        raise GateError(
            f"cutlass-mla: the page size must divide {TILE_KEYS}, not {kv.page_size}; this is an error at start-up",
            "page_size",
        )
    if (batches.q_lens != 1).any():
        raise GateError("cutlass-mla takes one query token per request", "q_len")
    if options.num_kv_splits_arg >= 1 and not rules.forced:
        raise InputError(f"cutlass-mla: {rules.server} offers no split count (num_kv_splits_arg is vLLM's)")


def _table_keys(batches: Batches, kv: KvCache, options: CutlassMlaOptions) -> IntArray:
    """Keys that a row of the page table holds, in whole tiles [N]."""
    needed = cdiv(batches.max_seq_len, kv.page_size)
    width = np.maximum(needed, 1) if options.page_table_width is None else options.page_table_width
    if (needed > width).any():
        raise InputError(
            f"page_table_width ({options.page_table_width}) is too small: the longest request takes "
            f"{int(needed.max())} pages of {kv.page_size}"
        )
    return round_up(np.broadcast_to(width, needed.shape) * kv.page_size, TILE_KEYS)


def _cap(batch: IntArray, keys: IntArray, rules: CutlassMlaRules) -> IntArray:
    """Most splits that the rule allows [N]."""
    tiles = cdiv(keys, TILE_KEYS)
    if rules.caps is None:
        return tiles
    found = np.ones_like(batch)
    for cap in reversed(rules.caps):
        # The older rule bounds its cap by the tiles; the newer one names widths at which this cannot matter.
        found = np.where(cap.holds(batch, keys), np.minimum(cap.splits, tiles), found)
    return found


def _gates(
    batches: Batches, gpu: Gpu, rules: CutlassMlaRules, d: CutlassMlaDetail, given: int, wanted: IntArray
) -> tuple[GateArray, ...]:
    def why_split(n: int) -> str:
        if given >= 1:
            return f"num_kv_splits = {given} is taken as it is"
        return (
            f"a page table of {at(d.max_seq_len, n)} keys allows {at(d.cap, n)} splits, {gpu.sm_count} SMs for "
            f"{at(batches.batch, n)} requests allow {at(wanted, n)}, and the kernel takes {at(d.splits, n)}"
        )

    def why_fits(n: int) -> str:
        return (
            f"the kernel needs {at(d.workspace_bytes, n)} bytes of workspace, and {WORKSPACE_BYTES} are "
            f"allocated at start-up (the backend's later requests for memory follow the queries, not the keys)"
        )

    split = GateArray("split", d.splits > 1, why_split)
    persistent = GateArray(
        "persistent",
        d.persistent,
        lambda n: f"{at(d.splits, n) * at(batches.batch, n)} pieces of work are shared out to clusters of "
        f"{CLUSTER} blocks",
    )
    if rules.server != "vLLM":
        return split, persistent
    return split, persistent, GateArray("workspace_fits", d.workspace_bytes <= WORKSPACE_BYTES, why_fits)


POLICY = CutlassMla()

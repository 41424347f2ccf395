"""aiter-pa-decode: AMD's paged decode kernels in Gluon (`pa_decode_gluon`), for the CDNA3 and CDNA4 instruction sets.

The caller chooses how many context partitions there are. The persistent kernels (`ps`, the default) take a small count
that depends on the batch and the KV heads only (`get_recommended_splits`, at most 8) and cut every request into that
many slices; a slice walks whole partitions of 256 keys, so two neighbours both load the partition in which they meet.
The other kernels give every partition of the longest request a block. With one partition for the whole request the
block writes the output itself (`one_shot`) and nothing is reduced.

Read from ROCm/aiter: aiter/ops/triton/gluon/pa_decode_gluon.py (get_recommended_splits, pa_decode_gluon,
_paged_attention_decode_v2_with_dot_kernel_reshape_wrapper, _paged_attention_decode_v2_reduce_kernel_wrapper and the
kernels' own first lines) and op_tests/triton_tests/test_pa_decode_gluon.py (what a caller passes). The reduction is
the Triton kernel; the C++ and FlyDSL ones that replace it where they are installed may have another grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2, round_up
from decodecalc.kvcache import DTYPE_BYTES, KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import KeyRange
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import Numbers, Takes, only
from decodecalc.launch.traits import COUNT, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

PARTITION_KEYS = 256  # context_partition_size, the only value that all kernels are compiled for
OCCUPANCY = 2  # get_occupancy: blocks that are to run on a compute unit
MOST_RECOMMENDED = 8
MFMA_ROWS = 16  # rows of the matrix instruction
MAX_QUERY_LENGTH = 4
MAX_QUERY_ROWS = 64  # query_length * group
BLOCK_SIZES = (16, 64, 1024)
ARCHITECTURES = ("gfx942", "gfx950")
THREADS = 256  # Triton's default of four waves, because no launch sets another


@dataclass(frozen=True, slots=True, kw_only=True)
class AiterPaDecodeOptions(EngineOptions):
    """What the caller of `pa_decode_gluon` decides."""

    ps: bool = option(
        True, "bool", "take the persistent kernels, whose split count is small and does not follow the lengths", "ps"
    )
    """Whether the persistent kernels run; a launch of one partition takes them whatever is set."""
    max_context_partition_num: int | None = option(
        None, "int?", "context partitions of the launch; the default is the count that the library's own callers pass",
        "max_context_partition_num", low=1,
    )  # fmt: skip
    """The split count that the caller passes."""


class AiterPaDecodeDetail(NamedTuple):
    """The launch in aiter's words."""

    recommended_splits: Any
    """What get_recommended_splits returns for the step."""
    max_context_partition_num: Any
    """Context partitions of the launch: the third extent of the grid."""
    one_shot: Any
    """Whether one block serves a request and KV head and writes the output itself."""
    splits_with_partitions: Any
    """Splits of each request whose range of partitions is not empty. Those that would start past the request's last
    key are among them, although they return at once. None for the kernels that are not persistent, and in a sweep."""
    partition_ranges_longest: Any
    """Partitions of 256 keys [first, end) of each launched split of the longest request, empty ones included; None for
    the kernels that are not persistent, where split i is partition i, and in a sweep."""


class AiterPaDecode(Policy):
    """Slices of a request (persistent) or partitions of 256 keys, one block for each KV head."""

    name = "aiter-pa-decode"
    title = "aiter paged decode (Gluon, ROCm)"
    word_for_split = "context partition"
    options_type = AiterPaDecodeOptions
    versions = (
        PolicyVersion("0.1.20", "ROCm/aiter v0.1.20 (same at e404860)", ("0.1.14", "0.1.20.post1")),
    )  # fmt: skip
    rule = (
        "persistent: splits = min(k * ceil(2 * CUs / (B * kv_heads * k)), 8) with k = ceil(block / 256), whatever the "
        "length; else ceil(longest / 256), or ceil(window / 256) + 1 for a window in blocks of 1024. "
        "Grid (B, kv_heads, splits); with one KV head the second extent is the query tokens, several to "
        "a block of 16 rows"
    )
    split_flag = "max_context_partition_num"
    traits = Traits(
        split_setting=SplitSetting("max_context_partition_num={splits}", "max_context_partition_num"),
        by_hand_option="max_context_partition_num",
        partition=Partition(rule=COUNT, unit_keys=1),
    )

    def combinations(self, options: AiterPaDecodeOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        types = ("bf16", "fp16", "fp8")
        return (
            Takes(
                devices=ARCHITECTURES,
                mla=False,
                cache_dtypes=types,
                query_dtypes=types,
                value_dims=None,
                groups=Numbers(high=MAX_QUERY_ROWS),
                page_sizes=only(*BLOCK_SIZES),
            ),
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: AiterPaDecodeOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays.

        Raises GateError for devices other than CDNA3 and CDNA4, for MLA, for element types, blocks or query rows that
        the kernels do not take, and for requests that differ in query tokens.
        """
        _check(self.name, geo, batches, kv, gpu)
        queries, lens = batches.max_q_len, batches.seq_lens
        per_block = cdiv(kv.page_size, PARTITION_KEYS)
        recommended = recommended_splits(batches.batch, geo.kv_heads, per_block, gpu.sm_count)
        big_window = geo.window is not None and kv.page_size > PARTITION_KEYS
        splits = _callers_splits(geo, batches, options, recommended, big_window)
        one_shot = splits <= 1
        ps = one_shot | options.ps
        slices = ps & (not big_window)  # the persistent kernels do not serve a window in large blocks
        impossible = slices & (splits < per_block)

        first = _first_partition(lens, geo.window) * PARTITION_KEYS
        walks = _Walks(lens=lens, first=first, splits=splits[:, None], per_block=per_block, window=geo.window)
        live = np.where(slices[:, None], walks.live(), _live_partitions(lens, first, splits, geo, big_window))
        live = np.where(impossible[:, None], np.minimum(lens, 1), live)
        split_keys = np.where(slices[:, None], walks.keys(), PARTITION_KEYS)
        if geo.window is not None and not big_window:  # one block of the plain kernel serves the whole window
            split_keys = np.where(slices[:, None], split_keys, np.maximum(lens - first, 1))
        split_keys = np.where(impossible[:, None], np.maximum(lens, 1), split_keys)

        one_head = slices & (geo.kv_heads == 1)
        group_rows = next_power_of_2(geo.group)
        tokens_a_block = max(cdiv(MFMA_ROWS, group_rows), 1) if group_rows < MFMA_ROWS else 1
        columns = np.where(one_head, cdiv(queries, tokens_a_block), geo.kv_heads)
        live_blocks = columns * batches.total(live)
        state_bytes = int(geo.v_dim * DTYPE_BYTES[kv.query_dtype]) + 8  # output in Q's type, sum and max as fp32
        plain = "large_block_dot" if kv.page_size > PARTITION_KEYS else "dot"
        query_rows = queries * geo.group
        merges = batches.batch * geo.kv_heads
        walked = bool(batches.n == 1 and slices[0] and not impossible[0])
        return Launches(
            is_split=~one_shot,
            kernels=(
                KernelArray(
                    name="paged_attention_decode_sliding_window" + "_head_1" * (geo.kv_heads == 1),
                    role="stage1",
                    grid=(batches.batch, columns, splits),
                    threads=THREADS,
                    live_blocks=live_blocks,
                    tile_keys=PARTITION_KEYS,
                    when=slices,
                ),
                KernelArray(
                    name=f"paged_attention_decode_v2_gluon_{plain}_kernel",
                    role="stage1",
                    grid=(batches.batch, geo.kv_heads, splits),
                    threads=THREADS,
                    live_blocks=live_blocks,
                    tile_keys=PARTITION_KEYS,
                    when=~slices,
                ),
                KernelArray(
                    name="paged_attention_decode_ps_reduce_kernel",
                    role="merge",
                    grid=(batches.batch, geo.kv_heads, query_rows),
                    threads=THREADS,
                    live_blocks=merges * query_rows,
                    when=~one_shot & ps,
                ),
                KernelArray(
                    name="paged_attention_decode_v2_reduce_kernel",
                    role="merge",
                    grid=(batches.batch, geo.kv_heads, 1),
                    threads=THREADS,
                    live_blocks=merges,
                    when=~one_shot & ~ps,
                ),
            ),
            requested=np.broadcast_to(splits[:, None], lens.shape),
            launched=splits,
            live=live,
            split_keys=split_keys,
            first_key=first,
            keys_read=lens - first,
            blocks_per_split=np.broadcast_to(columns[:, None], lens.shape),
            unsplit_blocks=batches.total(columns[:, None] * (lens > 0)),
            tile_keys=PARTITION_KEYS,
            block_rows=np.maximum(next_power_of_2(queries) * group_rows, MFMA_ROWS),
            live_rows=np.where(one_head, np.minimum(query_rows, tokens_a_block * geo.group), query_rows),
            state_values=cdiv(state_bytes, 4),
            scratch_bytes=merges * splits * query_rows * state_bytes,
            determinism="batch-dependent" if options.ps else "fixed size",
            detail=AiterPaDecodeDetail(
                recommended_splits=recommended,
                max_context_partition_num=splits,
                one_shot=one_shot,
                splits_with_partitions=walks.with_partitions() if walked else None,
                partition_ranges_longest=walks.of_longest(0) if walked else None,
            ),
            gates=(
                GateArray(
                    name="persistent",
                    passed=slices,
                    reason=lambda n: (
                        f"ps is {'on' if options.ps else 'off'}; there are {at(splits, n)} partitions, and blocks have "
                        f"{kv.page_size} keys"
                    ),
                ),
                GateArray(
                    name="split",
                    passed=~one_shot,
                    reason=lambda n: (
                        f"{at(splits, n)} context partitions serve {at(batches.batch, n)} requests x {geo.kv_heads} KV "
                        f"heads on {gpu.sm_count} compute units ({at(recommended, n)} are recommended)"
                    ),
                ),
                GateArray(
                    name="whole_blocks",
                    passed=~impossible,
                    reason=lambda n: (
                        f"{at(splits, n)} partitions share blocks of {per_block} partitions each, and the kernel "
                        f"divides by {at(splits, n) // per_block} on the device"
                    ),
                ),
            ),
            key_ranges=lambda n: walks.key_ranges(batches, n) if slices[n] and not impossible[n]
            else _regular_ranges(batches, live, first, split_keys, n),
        )  # fmt: skip


def recommended_splits(batch: Any, kv_heads: int, per_block: int, compute_units: int) -> Any:
    """get_recommended_splits: the splits that fill the device twice, in whole cache blocks, at most 8."""
    wanted = cdiv(OCCUPANCY * compute_units, batch * kv_heads * per_block) * per_block
    return np.minimum(wanted, MOST_RECOMMENDED)


def _callers_splits(
    geo: Geometry, batches: Batches, options: AiterPaDecodeOptions, recommended: Any, big_window: bool
) -> IntArray:
    """max_context_partition_num as the library's own callers choose it [N]."""
    if options.max_context_partition_num is not None:
        return np.full(batches.n, options.max_context_partition_num, dtype=np.int64)
    if big_window and geo.window is not None:
        return np.full(batches.n, cdiv(geo.window, PARTITION_KEYS) + 1, dtype=np.int64)
    if options.ps:
        return np.asarray(recommended, dtype=np.int64)
    longest = batches.max_seq_len if geo.window is None else np.minimum(batches.max_seq_len, geo.window)
    return np.maximum(cdiv(longest, PARTITION_KEYS), 1)


def _first_partition(lens: IntArray, window: int | None) -> IntArray:
    """First partition that is read [N, R]. The kernels count the window from the last token, so that the first of
    several query tokens does not see its oldest keys."""
    if window is None:
        return np.zeros_like(lens)
    return np.maximum(lens - window, 0) // PARTITION_KEYS


def _live_partitions(lens: IntArray, first: IntArray, splits: IntArray, geo: Geometry, big_window: bool) -> IntArray:
    """Blocks with keys of the kernels that are not persistent [N, R]."""
    if geo.window is not None and not big_window:
        return np.minimum(lens, 1)
    return np.minimum(cdiv(lens - first, PARTITION_KEYS), splits[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walks:
    """What the splits of the persistent kernels walk.

    A cache block of several partitions (`per_block`) is shared by as many splits: split i is the (i % per_block)-th
    partition of every block of slice i // per_block.
    """

    lens: IntArray
    first: IntArray  # first key of the first partition that is read [N, R]
    splits: IntArray  # [N, 1]
    per_block: int
    window: int | None

    def keys(self) -> IntArray:
        """Keys of one slice [N, R]: whole partitions inside a window, any number of keys without one."""
        slices = np.maximum(self.splits // self.per_block, 1)
        if self.window is None:
            return np.maximum(cdiv(self.lens, slices), 1)
        return np.maximum(cdiv(cdiv(self.lens - self.first, PARTITION_KEYS), slices), 1) * PARTITION_KEYS

    def live(self) -> IntArray:
        """Splits that own keys [N, R]."""
        if self.per_block == 1:
            return self._splits_until(self.lens)
        return sum((self._shares(part) for part in range(self._slices)), start=np.zeros_like(self.lens))

    @property
    def _slices(self) -> int:
        return max(int(self.splits.max()) // self.per_block, 1)

    def _shares(self, part: int) -> IntArray:
        """Splits with keys of slice `part` [N, R]: a slice that ends inside a cache block leaves some of them none."""
        keys = self.keys()
        start = self.first + part * keys
        end = np.minimum(start + keys, self.lens)
        there = (start < self.lens) & (part < np.maximum(self.splits // self.per_block, 1))
        return np.where(there, np.minimum(self.per_block, cdiv(end, PARTITION_KEYS) - start // PARTITION_KEYS), 0)

    def with_partitions(self) -> IntArray:
        """Splits whose range of partitions is not empty [N, R]: a slice may start inside the last partition, yet past
        the last key."""
        return self._splits_until(round_up(self.lens, PARTITION_KEYS))

    def _splits_until(self, end: IntArray) -> IntArray:
        slices = np.minimum(np.maximum(self.splits // self.per_block, 1), cdiv(end - self.first, self.keys()))
        return slices * np.minimum(self.per_block, self.splits)

    def of_longest(self, n: int) -> tuple[tuple[int, int], ...]:
        """Partitions [first, end) of every launched split of the longest request of step n."""
        r = int(np.argmax(self.lens[n]))
        length, begin, size = int(self.lens[n, r]), int(self.first[n, r]), int(self.keys()[n, r])
        found = []
        for split in range(int(self.splits[n, 0])):
            part, inner = divmod(split, self.per_block)
            start = begin + part * size
            end = min(start + size, length)
            found.append((start // PARTITION_KEYS + inner, cdiv(end, PARTITION_KEYS) + inner))
        return tuple(found)

    def key_ranges(self, batches: Batches, n: int) -> list[list[KeyRange]]:
        """Keys of every request's live splits, equal requests one after another.

        Splits that share a slice's cache blocks take turns inside it; they are given equal shares of it in order.
        """
        found: list[list[KeyRange]] = []
        keys, shares = self.keys(), [self._shares(part)[n].tolist() for part in range(self._slices)]
        for r, count in enumerate(batches.counts[n].tolist()):
            length, begin, size = int(self.lens[n, r]), int(self.first[n, r]), int(keys[n, r])
            ranges: list[KeyRange] = []
            for part, of_part in enumerate(shares):
                start, end, share = begin + part * size, min(begin + (part + 1) * size, length), of_part[r]
                cuts = [start + (end - start) * i // share for i in range(share + 1)] if share else []
                ranges += pairwise(cuts)
            found += [ranges] * count
        return found


def _regular_ranges(
    batches: Batches, live: IntArray, first: IntArray, split_keys: IntArray, n: int
) -> Sequence[list[KeyRange]]:
    """Key ranges of a regular partition, equal requests one after another."""
    found: list[list[KeyRange]] = []
    for r, count in enumerate(batches.counts[n].tolist()):
        start, size, end = int(first[n, r]), int(split_keys[n, r]), int(batches.seq_lens[n, r])
        ranges = [(start + i * size, min(start + (i + 1) * size, end)) for i in range(int(live[n, r]))]
        found += [ranges] * count
    return found


def _check(name: str, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu) -> None:
    if not gpu.is_hip:
        raise GateError(f"{name} runs on AMD devices only, and {gpu.label} is not one", "not_amd")
    if gpu.gfx not in ARCHITECTURES:
        raise GateError(f"{name} runs on gfx942 (CDNA3) and gfx950 (CDNA4) only, not on {gpu.gfx or gpu.label}", "arch")
    if geo.mla:
        raise GateError(f"{name} does not serve MLA, which runs in other kernels of aiter", "mla")
    if geo.v_dim != geo.head_dim:
        raise GateError(
            f"{name} takes keys and values of the same width, not {geo.head_dim} and {geo.v_dim}", "head_dim"
        )
    for what, dtype in (("keys", kv.dtype), ("queries", kv.query_dtype)):
        if dtype not in ("bf16", "fp16", "fp8"):
            raise GateError(f"{name} takes bf16, fp16 or fp8 {what}, not {dtype}", "dtype")
    if kv.page_size not in BLOCK_SIZES:
        raise GateError(
            f"{name} takes blocks of 16, 64 or 1024 keys, not {kv.page_size}; this is an error at start-up", "page_size"
        )
    queries = int(batches.max_q_len.max())
    if queries > MAX_QUERY_LENGTH:
        raise GateError(f"{name} takes at most {MAX_QUERY_LENGTH} query tokens per request, not {queries}", "q_len")
    if queries * geo.group > MAX_QUERY_ROWS:
        raise GateError(
            f"{name} takes at most {MAX_QUERY_ROWS} query rows per KV head (query tokens x group), not "
            f"{queries * geo.group}",
            "group",
        )
    if not (batches.q_lens == batches.max_q_len[:, None]).all():
        raise GateError(f"{name}: every request needs the same number of query tokens", "ragged_q_len")


POLICY = AiterPaDecode()

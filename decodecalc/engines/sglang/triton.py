"""sglang-triton: SGLang's Triton decode attention, whose split counts are chosen on the device at every step.

Read from the sglang wheels 0.5.3.post3 to 0.5.23 on the package index:
`srt/layers/attention/triton_backend.py` (`TritonAttnBackend`, `TritonMultiStepDraftBackend`,
`update_sliding_window_buffer`), the split rule `get_num_kv_splits_triton` (same file; from 0.5.13
`layers/attention/triton_ops/metadata.py`, from 0.5.16 `kernels/ops/attention/metadata.py`) and the kernels of
`decode_attention.py` (`layers/attention/triton_ops/`, from 0.5.16 `kernels/ops/attention/`).

The grid never changes with the lengths: its z extent is the cap, and a one-block kernel writes how many of those splits
each row uses. What changed between releases is data: `SglangRules` in sglang_options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from decodecalc.engines.sglang import lean
from decodecalc.engines.sglang.gates import gates
from decodecalc.engines.sglang.options import (
    ASSUMED_CONTEXT,
    BLOCK_H,
    DEFAULT_CAP,
    DEFAULT_CAP_HIP,
    DETERMINISTIC_TILE,
    KV_SPLIT_WARPS,
    MIN_BLOCK_KV,
    MLA_BATCH_FREE_WARPS,
    MLA_BUCKETS,
    MLA_TUNED_TILE,
    VERSIONS,
    Counts,
    SglangDetail,
    SglangOptions,
    SglangRules,
)
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, KernelArray, Launches, at, row
from decodecalc.launch.plan import OWNER_BLOCK, KeyRange, KeyRanges
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.traits import COUNTS, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


def kv_head_of_blocks(geo: Geometry) -> tuple[list[int], list[tuple[int, int]]]:
    """KV head that each head block reads, and the query heads [start, end) it computes, as the kernels index them."""
    if geo.group == 1:
        return list(range(geo.q_heads)), [(h, h + 1) for h in range(geo.q_heads)]
    valid, per_kv_head = min(BLOCK_H, geo.group), cdiv(geo.group, BLOCK_H)
    blocks = range(cdiv(geo.q_heads, valid))
    return [b // per_kv_head for b in blocks], [(b * valid, min((b + 1) * valid, geo.q_heads)) for b in blocks]


def heads_with_wrong_kv_head(geo: Geometry) -> int:
    """Query heads whose block reads another head's keys: groups over 16 that 16 does not divide, several KV heads."""
    kv_heads, q_ranges = kv_head_of_blocks(geo)
    return sum(q // geo.group != kv for kv, (start, end) in zip(kv_heads, q_ranges) for q in range(start, end))


def _column(value: Any) -> Any:
    """[N] as [N, 1], so that it meets [N, R]; plain numbers unchanged."""
    return value[:, None] if isinstance(value, np.ndarray) and value.ndim == 1 else value


def _ext_device_core_count(sm_count: int, max_len: IntArray) -> IntArray:
    """int(SMs * max(log2(Lmax / 64), 1)) in float32, as the kernel has it.

    log2 is rounded to float32 once, from double: a GPU's approximation may differ in the last bit, which shows only
    where the product lies within that bit of a whole number.
    """
    ratio = max_len.astype(np.float32) / np.float32(64)
    log = np.log2(ratio.astype(np.float64)).astype(np.float32)
    cores: npt.NDArray[np.float32] = np.float32(sm_count) * np.maximum(log, np.float32(1))
    return cores.astype(np.int64)


class SglangTriton(Policy):
    """The policy; see the module's docstring."""

    name = "sglang-triton"
    title = "SGLang, Triton backend"
    word_for_split = "kv split"
    split_flag = "--triton-attention-num-kv-splits"
    traits = Traits(
        server_names=("triton",),
        split_setting=SplitSetting("--triton-attention-num-kv-splits {splits}", "max_kv_splits_arg"),
        invariant_option=("deterministic", True),
        longest_option="max_context_len",
        schedules_once_a_step=True,  # get_num_kv_splits runs in init_forward_metadata, before the first layer
        partition=Partition(rule=COUNTS, unit_keys=32),  # MIN_BLOCK_KV of decode_attention.py
    )
    options_type = SglangOptions
    rule = (
        "cap = 8 (16 on AMD; MLA: max(cap, min(np2(SMs), np2(ceil(context / 32)))); fixed tile: ceil(context / tile)). "
        "Static: n = cap. Deterministic: n = ceil(L / tile). Adaptive: Lmin = Lmax if 8 Lmax < 10 Lmin; "
        "c1 = ceil(Lmax / min(ceil(Lmax / Lmin), cap)); e = int(SMs * max(log2(Lmax / 64), 1)); "
        "G = rows * head blocks; c2 = ceil(Lmax / min(ceil(e / G), cap)); n = max(ceil(L / c1), ceil(L / c2)). "
        "Launched: cap. Split length: ceil(ceil(L / n) / 32) * 32."
    )
    versions = VERSIONS

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: SglangOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. Raises InputError for lengths and batches that no SGLang step has, GateError for launches
        that fail in this version."""
        rules: SglangRules = version.rules
        return SglangStep(geo, batches, gpu, options, rules, version.name).launches()


class SglangStep:
    """One array of steps under one version's rules: the quantities that several parts of the launch share."""

    def __init__(
        self, geo: Geometry, batches: Batches, gpu: Gpu, options: SglangOptions, rules: SglangRules, version: str
    ) -> None:
        self.geo, self.batches, self.gpu = geo, batches, gpu
        self.opt, self.rules, self.version = options, rules, version
        _check_batches(batches)
        self.hip = gpu.is_hip
        self.topk = options.draft_topk or 1
        draft = options.draft_topk is not None or options.draft_step is not None
        self.step = 0 if not draft else 1 if options.draft_step is None else options.draft_step
        self.window = None if geo.window is None else geo.window - 1  # what models hand to the backend
        _check_window(self.window, draft, rules, version)
        self.padded = self._padded_rows()
        self.slots = batches.batch + self.padded  # requests of the launch, padding included
        self.rows = self.slots * self.topk
        self.grouped = geo.group > 1
        self.head_blocks = cdiv(geo.q_heads, min(BLOCK_H, geo.group)) if self.grouped else geo.q_heads
        self.tile = self._tile()
        self.tile_size = (options.split_tile_size or DETERMINISTIC_TILE) if options.deterministic else (
            options.split_tile_size
        )  # fmt: skip
        self.mode = "deterministic" if options.deterministic else "static" if options.static_kv_splits else "adaptive"
        self.context = self._context()
        self.base_cap = options.max_kv_splits_arg or (DEFAULT_CAP_HIP if self.hip else DEFAULT_CAP)
        self.cap = self._cap()
        self.lean, self.lean_reason = self._lean()

    # -- the parts of the rule ------------------------------------------------------------------------------------

    def _padded_rows(self) -> Any:
        """Rows of length 1 that fill the CUDA graph's batch up."""
        if self.opt.padded_batch is None:
            return 0
        padded = self.opt.padded_batch - self.batches.batch
        if (padded < 0).any():
            raise InputError(
                f"padded_batch {self.opt.padded_batch} is smaller than the batch ({int(self.batches.batch.max())}): a "
                f"graph replays at least as many rows as there are requests"
            )
        return padded

    def _tile(self) -> int:
        """Keys of one loop iteration: decode_attention.py:_decode_att_m_fwd, _decode_grouped_att_m_fwd."""
        if not self.grouped:
            return 8 if self.hip else 64
        if self.tuned:
            return MLA_TUNED_TILE
        return 16 if self.hip and self.geo.head_dim >= 576 else 32

    @property
    def tuned(self) -> bool:
        """The gfx950 MLA geometry applies (decode_attention.py:_mla_tuning_applies)."""
        return (
            self.rules.mla_tune
            and self.opt.mla_decode_tune
            and self.gpu.gfx == "gfx950"
            and self.geo.mla
            and self.geo.head_dim == 576
        )

    def _context(self) -> Any:
        """The model's context length, or what stands in for it [N]."""
        longest = self.batches.max_seq_len
        if self.opt.max_context_len is None:
            return np.maximum(longest, ASSUMED_CONTEXT)
        if int(longest.max()) > self.opt.max_context_len:
            raise InputError(
                f"a request of {int(longest.max())} keys does not fit max_context_len {self.opt.max_context_len}: give "
                f"the model's context length"
            )
        return self.opt.max_context_len

    def _cap(self) -> Any:
        """max_kv_splits, the grid's z: TritonAttnBackend.__init__."""
        if self.tile_size is not None:
            return cdiv(self.context, self.tile_size)
        if not (self.rules.mla_cap and self.geo.mla):
            return self.base_cap
        by_context = next_power_of_2(np.asarray(cdiv(self.context, MIN_BLOCK_KV)))
        cap = np.maximum(self.base_cap, np.minimum(next_power_of_2(self.gpu.sm_count), by_context))
        if self.gpu.gfx == "gfx942" and self.rules.mla_cap_gfx942 is not None:
            cap = np.minimum(cap, self.rules.mla_cap_gfx942)
        return cap if cap.ndim else int(cap)

    def counts(self, lens: IntArray) -> Counts:
        """Splits asked for, from request lengths [N, R]: TritonAttnBackend.get_num_kv_splits."""
        if self.mode == "static":
            return Counts(_column(self.cap), self.cap)
        if self.mode == "deterministic":
            return Counts(cdiv(lens, self.tile_size), 1)
        return self._adaptive(lens)

    def _adaptive(self, lens: IntArray) -> Counts:
        """get_num_kv_splits_triton: one count from how unequal the rows are, one from how empty the GPU would be."""
        present = self.batches.counts > 0
        some_absent = not self.batches.is_single_class and not present.all()
        longest = self.batches.largest(np.where(present, lens, 0) if some_absent else lens)
        shortest = self.batches.smallest(np.where(present, lens, np.iinfo(np.int64).max) if some_absent else lens)
        if self.opt.padded_batch is not None:
            shortest = np.where(self.padded > 0, np.minimum(shortest, 1), shortest)
        near_equal = longest * 8 < shortest * 10
        shortest = np.where(near_equal, longest, shortest)
        max_1 = np.minimum(cdiv(longest, shortest), self.cap)
        chunk_1 = cdiv(longest, max_1)
        cores = _ext_device_core_count(self.gpu.sm_count, longest)
        token_grid = self.rows * self.head_blocks
        max_2 = np.minimum(cdiv(cores, token_grid), self.cap)
        chunk_2 = cdiv(longest, max_2)
        # max(ceil(L / c1), ceil(L / c2)) is ceil(L / min(c1, c2)): one division less, the same number.
        chunk = np.minimum(chunk_1, chunk_2)
        return Counts(
            cdiv(lens, _column(chunk)), 1, cores, token_grid, max_1, chunk_1, max_2, chunk_2, near_equal
        )  # fmt: skip

    def _tuned_counts(self, counts: Counts) -> Counts:
        """The batch-wide count that replaces the device's own on gfx950 MLA: decode_attention.py:_mla_kv_splits.

        It fills about one wave: 4 warps per compute unit, fewer warps per block at larger batches.
        """
        if not self.tuned or not self.batch_wide:
            return counts
        budget: Any = 0
        most: Any = 0
        for limit, warps, splits in reversed(MLA_BUCKETS):
            inside = True if limit is None else self.rows <= limit
            budget = np.where(inside, self.gpu.sm_count * 4 // warps, budget)
            most = np.where(inside, splits, most)
        fit = np.minimum(np.minimum(self.cap, most), budget // (self.rows * self.head_blocks))
        forced = np.maximum(fit, 1)
        return replace(counts, splits=forced[:, None], padded=forced)

    @property
    def batch_wide(self) -> bool:
        """The tuned geometry may set the count (_keep_scheduler_splits is false)."""
        return self.mode == "adaptive" and not self.opt.split_tile_size

    def _stage1(self, launched: Any, live_blocks: Any, warp_size: int) -> list[KernelArray]:
        """The kernel that reads keys; several with conditions where its warps depend on the batch."""
        name = "_fwd_grouped_kernel_stage1" if self.grouped else "_fwd_kernel_stage1"
        grid = (self.rows, self.head_blocks, launched)
        if not self.tuned or not self.batch_wide:
            warps = MLA_BATCH_FREE_WARPS if self.tuned else 4
            return [
                KernelArray(
                    name=name,
                    role="stage1",
                    grid=grid,
                    threads=warps * warp_size,
                    live_blocks=live_blocks,
                    tile_keys=self.tile,
                )
            ]
        kernels, low = [], 0
        for limit, warps, _ in MLA_BUCKETS:
            inside = (self.rows > low) & (True if limit is None else self.rows <= limit)
            kernels.append(
                KernelArray(
                    name=name,
                    role="stage1",
                    grid=grid,
                    threads=warps * warp_size,
                    live_blocks=live_blocks,
                    tile_keys=self.tile,
                    when=inside,
                )
            )
            low = limit or low
        return kernels

    def _lean(self) -> tuple[Any, Callable[[int], str]]:
        """Whether AMD's persistent kernel runs instead, per step, and why: TritonAttnBackend.forward_decode."""
        geo, batches = self.geo, self.batches
        if not lean.supported(geo):
            return False, lambda n: "the lean kernel has no sinks, no logit cap and no keys over 128 elements but MLA's"
        if self.opt.deterministic and not self.rules.lean_when_deterministic:
            return False, lambda n: "deterministic inference keeps the standard kernel"
        if self.opt.enable_lean_attention is not None:
            return self.opt.enable_lean_attention, lambda n: "--enable-lean-attention decides"
        if self.opt.padded_batch is not None:
            taken, least = lean.capture_gate(geo, self.slots)
            return (
                taken,
                lambda n: (
                    "captured graphs: never with fewer than 4 head blocks"
                    if least is None
                    else f"captured graphs: {at(self.slots, n)} requests, from {least} on"
                ),
            )
        if self.opt.draft_topk is not None or self.opt.draft_step is not None:
            return False, lambda n: "the draft runner does not know its lengths on the host"
        total = batches.total(batches.seq_lens)
        taken, least_keys = lean.eager_gate(geo, batches.batch, total)
        return (
            taken,
            lambda n: (
                f"{at(total, n) / at(batches.batch, n):.0f} keys a request on average, from {at(least_keys, n)} on"
                + (f" and {lean.MLA_BATCH} requests" if geo.head_dim != geo.v_dim else "")
            ),
        )

    def _with_lean(self, found: Launches, keys: IntArray, padding_keys: int) -> Launches:
        """The launch with the persistent kernel in the steps that take it."""
        on = self.lean_runs
        if not np.any(on):
            return found
        geo, column = self.geo, _column(on)
        tile = lean.tile_keys(geo)
        schedule = lean.lean_launch(
            geo, self.gpu, self.batches, keys, self.topk, self.padded * self.topk * cdiv(padding_keys, tile)
        )
        warp = self.gpu.warp_size or 64
        kernel = KernelArray(
            name="_lean_attention_decode_kernel",
            role="stage1",
            grid=(schedule.programs,),
            threads=4 * warp,
            live_blocks=schedule.live_programs,
            tile_keys=tile,
            when=on,
        )
        off = np.logical_not(on)
        standard = (k if k.role == "scheduler" else replace(k, when=np.logical_and(k.when, off)) for k in found.kernels)
        partial = schedule.programs * (lean.BLOCK_M * (geo.v_dim + 2) + 1) * 4
        first, regular = found.first_key, found.key_ranges

        def ranges(n: int) -> Sequence[list[KeyRange]]:
            if at(on, n):
                return schedule.ranges(n, first, keys, self.batches.counts, self.topk)
            r = keys.shape[1]
            ends = self.batches.seq_lens + self.step
            return regular(n) if regular else KeyRanges(
                row(first, n, r), row(found.split_keys, n, r), row(found.live, n, r), row(ends, n, r)
            )  # fmt: skip

        return replace(
            found,
            kernels=(*standard, kernel),
            requested=np.where(column, schedule.parts, found.requested),
            launched=np.where(on, schedule.most_parts, found.launched),
            live=np.where(column, schedule.parts, found.live),
            split_keys=np.where(column, schedule.run_tiles[:, None] * tile, found.split_keys),
            blocks_per_split=np.where(column, schedule.rows * self.topk, found.blocks_per_split),
            tile_keys=np.where(on, tile, found.tile_keys),
            block_rows=np.where(on, lean.BLOCK_M, found.block_rows),
            scratch_bytes=np.where(on, partial, found.scratch_bytes),
            determinism="batch-dependent",
            key_ranges=ranges,
            merge_in=np.where(on, OWNER_BLOCK, found.merge_in),
        )

    @property
    def lean_runs(self) -> Any:
        """The gate, where the kernel exists at all."""
        return self.lean if self.hip and self.rules.lean else False

    # -- the launch -----------------------------------------------------------------------------------------------

    def launches(self) -> Launches:
        """The launch of every step."""
        batches, geo = self.batches, self.geo
        counts = self._tuned_counts(self.counts(batches.seq_lens))
        launched = counts.splits[:, 0] if self.tuned and self.batch_wide else self.cap
        row_lens = batches.seq_lens + self.step
        keys = row_lens if self.window is None else np.minimum(row_lens, self.window)
        split_keys = round_up(cdiv(keys, counts.splits), MIN_BLOCK_KV)
        live = cdiv(keys, split_keys)
        windowed = None if self.window is None else self.counts(keys).splits
        columns = self.head_blocks * self.topk
        # Padding rows have one key (and a draft's own), and are planned and launched like any other row.
        pad_keys = 1 + self.step if self.window is None else min(1 + self.step, self.window)
        pad_size = round_up(cdiv(pad_keys, counts.padded), MIN_BLOCK_KV)
        pad_live = cdiv(pad_keys, pad_size)
        live_blocks = columns * (batches.total(live) + self.padded * pad_live)
        wrong = heads_with_wrong_kv_head(geo)
        state = geo.v_dim + 1
        scratch_rows = self.rows if self.opt.graph_max_tokens is None else self.opt.graph_max_tokens
        warp = self.gpu.warp_size or (64 if self.hip else 32)
        merge_blocks = self.rows * geo.q_heads
        found = Launches(
            is_split=True,
            kernels=(
                KernelArray(
                    name="get_num_kv_splits_triton",
                    role="scheduler",
                    grid=(1, 1, 1),
                    threads=KV_SPLIT_WARPS * warp,
                    live_blocks=1,
                    when=self.mode == "adaptive",
                ),
                *self._stage1(launched, live_blocks, warp),
                KernelArray(
                    name="_fwd_kernel_stage2",
                    role="merge",
                    grid=(self.rows, geo.q_heads),
                    threads=4 * warp,
                    live_blocks=merge_blocks,
                ),
            ),
            requested=counts.splits,
            launched=launched,
            live=live,
            split_keys=split_keys,
            first_key=row_lens - keys,
            keys_read=keys,
            key_ranges=self._key_ranges(keys, split_keys, live, row_lens) if self.step else None,
            blocks_per_split=columns,
            unsplit_blocks=self.rows * self.head_blocks,
            tile_keys=self.tile,
            block_rows=BLOCK_H if self.grouped else 1,
            live_rows=min(geo.group, BLOCK_H),
            state_values=state,
            scratch_bytes=scratch_rows * geo.q_heads * self.cap * state * 4,
            determinism={"static": "fixed count", "deterministic": "fixed size"}.get(self.mode, "batch-dependent"),
            gates=tuple(gates(self, counts, launched, windowed, keys, split_keys, live, wrong)),
            detail=SglangDetail(
                mode=self.mode,
                kernel="grouped" if self.grouped else "normal",
                rows=self.rows,
                head_blocks=self.head_blocks,
                max_kv_splits=self.cap,
                num_kv_splits=counts.splits,
                window_num_kv_splits=windowed,
                kv_len_per_row=keys,
                kv_len_per_split=split_keys,
                padded_requests=self.padded,
                padded_num_kv_splits=counts.padded,
                padded_kv_len=pad_keys,
                padded_kv_len_per_split=pad_size,
                padded_live_splits=pad_live,
                draft_topk=self.topk,
                ext_device_core_count=counts.ext_cores,
                token_grid=counts.token_grid,
                max_kv_splits_1=counts.max_1,
                kv_chunk_size_1=counts.chunk_1,
                max_kv_splits_2=counts.max_2,
                kv_chunk_size_2=counts.chunk_2,
                heads_with_wrong_kv_head=wrong,
                loads_latent_twice=geo.mla and not self.rules.value_is_view,
            ),
        )  # fmt: skip
        return self._with_lean(found, keys, pad_keys)

    def _key_ranges(self, keys: IntArray, size: IntArray, live: IntArray, end: IntArray) -> Any:
        """Key ranges of draft rows, which reach beyond the request's own keys."""

        def ranges(n: int) -> Sequence[list[KeyRange]]:
            r = end.shape[1]
            return KeyRanges(row(end - keys, n, r), row(size, n, r), row(live, n, r), row(end, n, r))

        return ranges


def _check_batches(batches: Batches) -> None:
    """Lengths that a decode step can have."""
    present = batches.seq_lens if batches.is_single_class else batches.seq_lens[batches.counts > 0]
    if present.size and int(present.min()) < 1:
        raise InputError("sglang-triton needs at least 1 key per request: a decode row counts its own new token")
    if int(batches.q_lens.max(initial=1)) > 1:
        raise GateError(
            "sglang-triton decodes one query token per row: several tokens of a request (target verify) go to the "
            "extend kernel; use draft_topk for the branches of a draft",
            code="multi_query",
        )


def _check_window(window: int | None, draft: bool, rules: SglangRules, version: str) -> None:
    """Windows whose launch fails."""
    if window is None:
        return
    if window < 1:
        raise GateError(
            "sglang-triton cannot run a window of 1 key: models hand their window minus 1 to SGLang, which builds no "
            "window indices for 0",
            code="empty_window",
        )
    if draft and not rules.draft_window:
        raise GateError(
            f"sglang-triton {version} builds no window indices for draft steps: the launch of a sliding-window layer "
            f"fails (0.5.23 has them)",
            code="draft_window",
        )


POLICY = SglangTriton()

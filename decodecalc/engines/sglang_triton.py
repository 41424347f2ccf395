"""sglang-triton: SGLang's Triton decode attention, whose split counts are chosen on the device at every step.

Read from the sglang wheels 0.5.3.post3 to 0.5.23 on the package index:
`srt/layers/attention/triton_backend.py` (`TritonAttnBackend`, `TritonMultiStepDraftBackend`,
`update_sliding_window_buffer`), the split rule `get_num_kv_splits_triton` (same file; from 0.5.13
`layers/attention/triton_ops/metadata.py`, from 0.5.16 `kernels/ops/attention/metadata.py`) and the kernels of
`decode_attention.py` (`layers/attention/triton_ops/`, from 0.5.16 `kernels/ops/attention/`).

The grid never changes with the lengths: its z extent is the cap, and a one-block kernel writes how many of those splits
each row uses. What changed between releases is data: `SglangRules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from decodecalc.engines import sglang_lean as lean
from decodecalc.engines.arrays import Batches, GateArray, KernelArray, Launches, at, row
from decodecalc.engines.base import Policy, PolicyVersion
from decodecalc.engines.options import EngineOptions, option
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch import KeyRange, KeyRanges

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MIN_BLOCK_KV = 32  # decode_attention.py:_MIN_BLOCK_KV, the keys every split length is rounded up to
BLOCK_H = 16  # query heads of a grouped tile
DEFAULT_CAP, DEFAULT_CAP_HIP = 8, 16  # server_args.py:triton_attention_num_kv_splits, _handle_amd_specifics
DETERMINISTIC_TILE = 256  # SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE
ASSUMED_CONTEXT = 131072  # stands in for the model's context length where the user gives none
KV_SPLIT_WARPS = 4  # Triton's default, which the scheduler kernel is launched with

# gfx950 stage-1 geometry (decode_attention.py:_MLA_BUCKETS): up to this many rows, warps, most splits.
MLA_BUCKETS: tuple[tuple[int | None, int, int], ...] = ((5, 4, 112), (24, 2, 256), (None, 1, 256))
MLA_BATCH_FREE_WARPS = 2  # _MLA_BUCKET_BATCH_FREE
MLA_TUNED_TILE = 32  # _MLA_BLOCK_N


@dataclass(frozen=True)
class SglangRules:
    """What differs between releases.

    mla_cap: MLA raises the cap so that one row can fill the GPU. mla_cap_gfx942: most splits it may reach on gfx942.
    value_is_view: MLA takes V from the K tile in registers instead of loading it again. page_aware: kernels split an
    index into page and offset when the page is larger than 1. mla_tune: the opt-in gfx950 geometry exists. lean: AMD
    GPUs may run the persistent "lean" kernel. draft_window: multi-step drafts of models with a window build window
    indices of their own (without them the launch fails). rotate: AMD blocks of uneven batches rotate.
    """

    mla_cap: bool = False
    mla_cap_gfx942: int | None = None
    value_is_view: bool = False
    page_aware: bool = False
    mla_tune: bool = False
    lean: bool = False
    draft_window: bool = False
    rotate: bool = False


@dataclass(frozen=True)
class SglangOptions(EngineOptions):
    """SGLang's server flags and environment variables that decide the launch, and the state of the step."""

    max_kv_splits_arg: int | None = option(
        None,
        "int?",
        "cap on the splits of a row; 8, or 16 on AMD, where SGLang overwrites the flag",
        flag="--triton-attention-num-kv-splits",
        low=1,
    )
    static_kv_splits: bool = option(
        False, "bool", "every row uses the cap", flag="SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS"
    )
    deterministic: bool = option(
        False,
        "bool",
        "split counts depend on the row's own length only",
        flag="--enable-deterministic-inference",
    )
    split_tile_size: int | None = option(
        None,
        "int?",
        "keys per split: 256 when deterministic, else off; when set, the cap is ceil(max_context_len / tile)",
        flag="--triton-attention-split-tile-size / SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE",
        low=1,
    )
    max_context_len: int | None = option(
        None,
        "int?",
        "the model's context length; 131072, or the longest request if that is more, when not given",
        flag="--context-length",
        low=1,
    )
    padded_batch: int | None = option(
        None, "int?", "CUDA-graph batch size that is replayed; the rows that fill it up have length 1", low=1
    )
    draft_topk: int | None = option(
        None,
        "int?",
        "multi-step draft decoding: query tokens (branches) of each request",
        flag="--speculative-eagle-topk",
        low=1,
    )
    draft_step: int | None = option(
        None,
        "int?",
        "draft step: a row has this many keys beyond the request's; 1 when only draft_topk is given",
        low=0,
    )
    graph_max_tokens: int | None = option(
        None, "int?", "rows that the CUDA-graph scratch buffers are allocated for", flag="--cuda-graph-max-bs", low=1
    )
    enable_lean_attention: bool | None = option(
        None,
        "bool?",
        "AMD: force the persistent lean kernel on or off; decided by batch and length when not given",
        flag="--enable-lean-attention",
    )
    mla_decode_tune: bool = option(
        False, "bool", "take the gfx950 geometry tuned for 576-wide MLA", flag="SGLANG_MLA_DECODE_TUNE"
    )


@dataclass(frozen=True)
class SglangDetail:
    """SGLang's own quantities, under its names where it has one.

    rows: rows of the launch, padding and draft branches included. head_blocks: grid y. num_kv_splits and kv_len_per_row
    are per request (each of its draft branches has the same). window_num_kv_splits: counts that SGLang computes from
    window lengths and does not use; None without a window. padded_*: what one padding row gets. max_kv_splits_1 and
    kv_chunk_size_1 come from the spread of the lengths, _2 from the grid and the SMs; 0 when the mode is not adaptive.
    """

    mode: str
    kernel: str
    rows: Any
    head_blocks: int
    max_kv_splits: Any
    num_kv_splits: Any
    window_num_kv_splits: Any
    kv_len_per_row: Any
    kv_len_per_split: Any
    padded_requests: Any
    padded_num_kv_splits: Any
    padded_kv_len: int
    padded_kv_len_per_split: Any
    padded_live_splits: Any
    draft_topk: int
    ext_device_core_count: Any
    token_grid: Any
    max_kv_splits_1: Any
    kv_chunk_size_1: Any
    max_kv_splits_2: Any
    kv_chunk_size_2: Any
    heads_with_wrong_kv_head: int
    loads_latent_twice: bool


@dataclass(frozen=True)
class _Counts:
    """Outcome of the split rule: counts [N, R], the padding row's count, and how they came about [N]."""

    splits: Any
    padded: Any
    ext_cores: Any = 0
    token_grid: Any = 0
    max_1: Any = 0
    chunk_1: Any = 0
    max_2: Any = 0
    chunk_2: Any = 0
    near_equal: Any = False


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
    options_type = SglangOptions
    rule = (
        "cap = 8 (16 on AMD; MLA: max(cap, min(np2(SMs), np2(ceil(context / 32)))); fixed tile: ceil(context / tile)). "
        "Static: n = cap. Deterministic: n = ceil(L / tile). Adaptive: Lmin = Lmax if 8 Lmax < 10 Lmin; "
        "c1 = ceil(Lmax / min(ceil(Lmax / Lmin), cap)); e = int(SMs * max(log2(Lmax / 64), 1)); "
        "G = rows * head blocks; c2 = ceil(Lmax / min(ceil(e / G), cap)); n = max(ceil(L / c1), ceil(L / c2)). "
        "Launched: cap. Split length: ceil(ceil(L / n) / 32) * 32."
    )
    versions = (
        PolicyVersion(
            "0.5.23",
            "sglang 0.5.23: triton_backend.py, kernels/ops/attention/{metadata,decode_attention}.py",
            ("0.5.23", "0.5.23"),
            SglangRules(
                mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True, mla_tune=True, lean=True,
                draft_window=True, rotate=True,
            ),
            "drafts of models with a window get window indices; AMD rotates the blocks of uneven batches",
        ),
        PolicyVersion(
            "0.5.22",
            "sglang 0.5.19 to 0.5.22: triton_backend.py, kernels/ops/attention/{metadata,decode_attention}.py",
            ("0.5.19", "0.5.22"),
            SglangRules(
                mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True, mla_tune=True, lean=True
            ),
            "AMD: persistent lean kernel for long contexts and large graph batches",
        ),
        PolicyVersion(
            "0.5.18",
            "sglang 0.5.18: triton_backend.py, kernels/ops/attention/{metadata,decode_attention}.py",
            ("0.5.18", "0.5.18"),
            SglangRules(mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True, mla_tune=True),
            "gfx950: opt-in MLA geometry with a batch-wide split count",
        ),
        PolicyVersion(
            "0.5.17",
            "sglang 0.5.15 to 0.5.17: triton_backend.py, triton_ops/ (0.5.16: kernels/ops/attention/)",
            ("0.5.15", "0.5.17"),
            SglangRules(mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True),
            "page-aware key addresses",
        ),
        PolicyVersion(
            "0.5.14",
            "sglang 0.5.13 to 0.5.14: triton_backend.py, triton_ops/{metadata,decode_attention}.py",
            ("0.5.13", "0.5.14"),
            SglangRules(mla_cap=True, mla_cap_gfx942=256, value_is_view=True),
            "gfx942: MLA cap at most 256",
        ),
        PolicyVersion(
            "0.5.12",
            "sglang 0.5.12 to 0.5.12.post1: triton_backend.py, triton_ops/decode_attention.py",
            ("0.5.12", "0.5.12.post1"),
            SglangRules(mla_cap=True, value_is_view=True),
            "MLA: cap follows SMs and context; V is a view of the K tile",
        ),
        PolicyVersion(
            "0.5.10",
            "sglang 0.5.3.post3 to 0.5.11 (mainly 0.5.10.post1): triton_backend.py, triton_ops/decode_attention.py",
            ("0.5.3", "0.5.11"),
            SglangRules(),
            "page size 1 in the kernels; one cap for all models",
        ),
    )  # fmt: skip

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
        return _Step(geo, batches, gpu, options, rules, version.name).launches()


class _Step:
    """One array of steps under one version's rules: the quantities that several parts of the launch share."""

    def __init__(
        self, geo: Geometry, batches: Batches, gpu: Gpu, options: SglangOptions, rules: SglangRules, version: str
    ) -> None:
        self.geo, self.batches, self.gpu, self.opt, self.rules, self.version = (
            geo,
            batches,
            gpu,
            options,
            rules,
            version,
        )
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
        if self._tuned:
            return MLA_TUNED_TILE
        return 16 if self.hip and self.geo.head_dim >= 576 else 32

    @property
    def _tuned(self) -> bool:
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

    def counts(self, lens: IntArray) -> _Counts:
        """Splits asked for, from request lengths [N, R]: TritonAttnBackend.get_num_kv_splits."""
        if self.mode == "static":
            return _Counts(_column(self.cap), self.cap)
        if self.mode == "deterministic":
            return _Counts(cdiv(lens, self.tile_size), 1)
        return self._adaptive(lens)

    def _adaptive(self, lens: IntArray) -> _Counts:
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
        return _Counts(
            cdiv(lens, _column(chunk)), 1, cores, token_grid, max_1, chunk_1, max_2, chunk_2, near_equal
        )  # fmt: skip

    def _tuned_counts(self, counts: _Counts) -> _Counts:
        """The batch-wide count that replaces the device's own on gfx950 MLA: decode_attention.py:_mla_kv_splits.

        It fills about one wave: 4 warps per compute unit, fewer warps per block at larger batches.
        """
        if not self._tuned or not self._batch_wide:
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
    def _batch_wide(self) -> bool:
        """The tuned geometry may set the count (_keep_scheduler_splits is false)."""
        return self.mode == "adaptive" and not self.opt.split_tile_size

    def _stage1(self, launched: Any, live_blocks: Any, warp_size: int) -> list[KernelArray]:
        """The kernel that reads keys; several with conditions where its warps depend on the batch."""
        name = "_fwd_grouped_kernel_stage1" if self.grouped else "_fwd_kernel_stage1"
        grid = (self.rows, self.head_blocks, launched)
        if not self._tuned or not self._batch_wide:
            warps = MLA_BATCH_FREE_WARPS if self._tuned else 4
            return [KernelArray(name, "stage1", grid, warps * warp_size, live_blocks, self.tile)]
        kernels, low = [], 0
        for limit, warps, _ in MLA_BUCKETS:
            inside = (self.rows > low) & (True if limit is None else self.rows <= limit)
            kernels.append(KernelArray(name, "stage1", grid, warps * warp_size, live_blocks, self.tile, inside))
            low = limit or low
        return kernels

    def _lean(self) -> tuple[Any, Callable[[int], str]]:
        """Whether AMD's persistent kernel runs instead, per step, and why: TritonAttnBackend.forward_decode."""
        geo, batches = self.geo, self.batches
        if not lean.supported(geo):
            return False, lambda n: "the lean kernel has no sinks, no logit cap and no keys over 128 elements but MLA's"
        if self.opt.deterministic:
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
        on = self._lean_runs
        if not np.any(on):
            return found
        geo, column = self.geo, _column(on)
        tile = lean.tile_keys(geo)
        schedule = lean.lean_launch(
            geo, self.gpu, self.batches, keys, self.topk, self.padded * self.topk * cdiv(padding_keys, tile)
        )
        warp = self.gpu.warp_size or 64
        kernel = KernelArray(
            "_lean_attention_decode_kernel", "stage1", (schedule.programs,), 4 * warp, schedule.live_programs, tile, on
        )
        off = np.logical_not(on)
        standard = (k if k.role == "scheduler" else replace(k, when=np.logical_and(k.when, off)) for k in found.kernels)
        partial = schedule.programs * (lean.BLOCK_M * (geo.v_dim + 2) + 1) * 4
        first, regular = found.first_key, found.key_ranges

        def ranges(n: int) -> Sequence[list[KeyRange]]:
            if at(on, n):
                return schedule.ranges(n, first, keys)
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
            key_ranges=ranges,
        )

    @property
    def _lean_runs(self) -> Any:
        """The gate, where the kernel exists at all."""
        return self.lean if self.hip and self.rules.lean else False

    # -- the launch -----------------------------------------------------------------------------------------------

    def launches(self) -> Launches:
        """The launch of every step."""
        batches, geo = self.batches, self.geo
        counts = self._tuned_counts(self.counts(batches.seq_lens))
        launched = counts.splits[:, 0] if self._tuned and self._batch_wide else self.cap
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
                    "get_num_kv_splits_triton", "scheduler", (1, 1, 1), KV_SPLIT_WARPS * warp, 1,
                    when=self.mode == "adaptive",
                ),
                *self._stage1(launched, live_blocks, warp),
                KernelArray("_fwd_kernel_stage2", "merge", (self.rows, geo.q_heads), 4 * warp, merge_blocks),
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
            gates=tuple(self._gates(counts, launched, windowed, keys, split_keys, live, wrong)),
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

    def _gates(
        self,
        counts: _Counts,
        launched: Any,
        windowed: Any,
        keys: IntArray,
        split_keys: IntArray,
        live: IntArray,
        wrong: int,
    ) -> Iterator[GateArray]:
        """Conditions in the order the engine meets them, worded on demand."""
        opt, geo, gpu = self.opt, self.geo, self.gpu
        longest = self.batches.max_seq_len
        if geo.mla:
            yield GateArray("mla_cap", self.rules.mla_cap and self.tile_size is None, self._say_mla_cap)
        if self.hip and self.rules.lean:
            yield GateArray(
                "lean_kernel",
                self.lean,
                lambda n: (
                    self.lean_reason(n)
                    + (
                        ": a persistent grid; ranges are those of the first KV head, others are cut elsewhere"
                        if at(self.lean, n)
                        else ": the standard kernel runs"
                    )
                ),
            )
        yield GateArray("deterministic", opt.deterministic, self._say_deterministic)
        if opt.static_kv_splits:
            yield GateArray(
                "static_kv_splits",
                self.mode == "static",
                lambda n: (
                    f"every row uses the cap, {at(self.cap, n)}"
                    if self.mode == "static"
                    else "ignored: deterministic mode has its own counts"
                ),
            )
        if self.mode == "adaptive":
            near = counts.near_equal
            yield GateArray(
                "near_equal_lengths",
                near,
                lambda n: (
                    f"8 * longest {at(longest, n)} {'<' if at(near, n) else '>='} 10 * shortest "
                    f"{at(self._shortest, n)}: "
                    + ("all rows count as equally long" if at(near, n) else "splits even the lengths out")
                    + f", ceil({at(longest, n)} / {at(counts.max_1, n)}) = {at(counts.chunk_1, n)} keys a split at most"
                ),
            )
            wanted = cdiv(counts.ext_cores, counts.token_grid)
            yield GateArray(
                "cap_not_binding",
                wanted <= self.cap,
                lambda n: (
                    f"min(ceil({at(counts.ext_cores, n)} / {at(counts.token_grid, n)} blocks) = {at(wanted, n)}, cap "
                    f"{at(self.cap, n)}) = {at(counts.max_2, n)} splits for the longest row; "
                    f"{at(counts.ext_cores, n)} = int({gpu.sm_count} SMs * max(log2({at(longest, n)} / 64), 1))"
                ),
            )
        if opt.padded_batch is not None:
            yield GateArray(
                "no_padding_rows",
                np.asarray(self.padded == 0),
                lambda n: (
                    f"the graph of {opt.padded_batch} rows runs {at(self.padded, n)} rows of length 1 beside "
                    f"{at(self.batches.batch, n)} requests"
                    + ("; they set the shortest length to 1" if self.mode == "adaptive" and at(self.padded, n) else "")
                ),
            )
        if self._tuned:
            yield GateArray(
                "mla_decode_tune",
                self._batch_wide,
                lambda n: (
                    f"gfx950: one count for the batch, {at(launched, n)}, replaces the device's and shrinks the grid"
                    if self._batch_wide
                    else "gfx950: tuned tile and warps; deterministic, fixed-tile and static counts stay"
                ),
            )
        elif opt.mla_decode_tune:
            yield GateArray("mla_decode_tune", False, lambda n: self._say_untuned())
        yield GateArray(
            "every_split_live",
            (live == counts.splits).all(axis=1),
            lambda n: self._say_rounding(n, counts, keys, split_keys, live),
        )
        if windowed is not None:
            same = (windowed == counts.splits).all(axis=1) if isinstance(windowed, np.ndarray) else True
            yield GateArray(
                "window_counts",
                same,
                lambda n: (
                    f"rows read their last {self.window} keys (models hand over their window, {geo.window}, minus 1) "
                    f"with counts made for full lengths"
                    + ("" if at(same, n) else "; SGLang computes counts for window lengths too but does not use them")
                ),
            )
        if geo.group > BLOCK_H:
            yield GateArray(
                "kv_head_mapping",
                np.logical_or(wrong == 0, self._lean_runs),
                lambda n: (
                    "the lean kernel maps every block to its KV head"
                    if at(self._lean_runs, n)
                    else f"block b of {self.head_blocks} reads KV head b // {cdiv(geo.group, BLOCK_H)}: "
                    + (
                        f"WRONG for {wrong} of {geo.q_heads} query heads (group {geo.group} is over {BLOCK_H}, not a "
                        f"multiple of it, and there are {geo.kv_heads} KV heads)"
                        if wrong
                        else "right for every query head"
                    )
                ),
            )

    @property
    def _shortest(self) -> Any:
        """Length of the shortest row that the scheduler sees."""
        shortest = self.batches.min_seq_len
        return np.where(self.padded > 0, 1, shortest)

    def _say_mla_cap(self, n: int) -> str:
        if self.tile_size is not None:
            return f"a fixed tile sets the cap: ceil({at(self.context, n)} / {self.tile_size}) = {at(self.cap, n)}"
        if not self.rules.mla_cap:
            return f"{self.version} has one cap for all models, {self.base_cap}; MLA has its own from 0.5.12 on"
        limit = ", at most 256 on gfx942" if self.gpu.gfx == "gfx942" and self.rules.mla_cap_gfx942 else ""
        return (
            f"MLA: cap max({self.base_cap}, min(np2({self.gpu.sm_count} SMs), np2(ceil({at(self.context, n)} / 32))))"
            f"{limit} = {at(self.cap, n)}"
        )

    def _say_deterministic(self, n: int) -> str:
        if not self.opt.deterministic:
            return "off: a row's splits depend on the rest of its batch"
        return (
            f"n = ceil(L / {self.tile_size}), cap ceil({at(self.context, n)} / {self.tile_size}) = {at(self.cap, n)}; "
            f"the kernel then evens the n splits out, so boundaries move as a request grows, never with its batch"
        )

    def _say_untuned(self) -> str:
        if not self.rules.mla_tune:
            return f"{self.version} has no tuned geometry (0.5.18 on)"
        return "applies to MLA of head_dim 576 on gfx950 only"

    def _say_rounding(self, n: int, counts: _Counts, keys: IntArray, split_keys: IntArray, live: IntArray) -> str:
        """The row that loses most splits to the rounding, in numbers."""
        asked = np.broadcast_to(counts.splits, live.shape)[n]
        worst = int(np.argmax(asked - live[n]))
        return (
            f"ceil(ceil({keys[n, worst]} / {asked[worst]}) / 32) * 32 = {split_keys[n, worst]} keys a split: "
            f"{live[n, worst]} of {asked[worst]} requested splits have keys"
        )


def _check_batches(batches: Batches) -> None:
    """Lengths that a decode step can have."""
    present = batches.seq_lens if batches.is_single_class else batches.seq_lens[batches.counts > 0]
    if present.size and int(present.min()) < 1:
        raise InputError("sglang-triton needs at least 1 key per request: a decode row counts its own new token")
    if int(batches.q_lens.max(initial=1)) > 1:
        raise GateError(
            "sglang-triton decodes one query token per row: several tokens of a request (target verify) go to the "
            "extend kernel; use draft_topk for the branches of a draft",
            code="multi-query",
        )


def _check_window(window: int | None, draft: bool, rules: SglangRules, version: str) -> None:
    """Windows whose launch fails."""
    if window is None:
        return
    if window < 1:
        raise GateError(
            "sglang-triton cannot run a window of 1 key: models hand their window minus 1 to SGLang, which builds no "
            "window indices for 0",
            code="empty-window",
        )
    if draft and not rules.draft_window:
        raise GateError(
            f"sglang-triton {version} builds no window indices for draft steps: the launch of a sliding-window layer "
            f"fails (0.5.23 has them)",
            code="draft-window",
        )


POLICY = SglangTriton()

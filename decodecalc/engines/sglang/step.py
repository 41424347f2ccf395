"""What several parts of an SGLang Triton launch share: rows, caps and split counts of an array of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from decodecalc.engines.sglang import lean
from decodecalc.engines.sglang.options import (
    ASSUMED_CONTEXT,
    BLOCK_H,
    DEFAULT_CAP,
    DEFAULT_CAP_HIP,
    DETERMINISTIC_TILE,
    MIN_BLOCK_KV,
    MLA_BUCKETS,
    MLA_TUNED_TILE,
    Counts,
    SglangOptions,
    SglangRules,
)
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, next_power_of_2
from decodecalc.launch.arrays import Batches, at

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


def column(value: Any) -> Any:
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


class SglangStep:
    """One array of steps under one version's rules."""

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
            return Counts(column(self.cap), self.cap)
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
            cdiv(lens, column(chunk)), 1, cores, token_grid, max_1, chunk_1, max_2, chunk_2, near_equal
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
        return counts._replace(splits=forced[:, None], padded=forced)

    @property
    def batch_wide(self) -> bool:
        """The tuned geometry may set the count (_keep_scheduler_splits is false)."""
        return self.mode == "adaptive" and not self.opt.split_tile_size

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

    @property
    def lean_runs(self) -> Any:
        """The gate, where the kernel exists at all."""
        return self.lean if self.hip and self.rules.lean else False


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

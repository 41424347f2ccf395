"""sglang-triton: SGLang's Triton decode attention, whose split counts are chosen on the device at every step.

Read from the sglang wheels 0.5.3.post3 to 0.5.23 on the package index:
`srt/layers/attention/triton_backend.py` (`TritonAttnBackend`, `TritonMultiStepDraftBackend`,
`update_sliding_window_buffer`), the split rule `get_num_kv_splits_triton` (same file; from 0.5.13
`layers/attention/triton_ops/metadata.py`, from 0.5.16 `kernels/ops/attention/metadata.py`) and the kernels of
`decode_attention.py` (`layers/attention/triton_ops/`, from 0.5.16 `kernels/ops/attention/`).

The grid never changes with the lengths: its z extent is the cap, and a one-block kernel writes how many of those splits
each row uses. What changed between releases is data: `SglangRules` in options.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.sglang import lean
from decodecalc.engines.sglang.gates import gates
from decodecalc.engines.sglang.latent import view_fits
from decodecalc.engines.sglang.options import (
    BLOCK_H,
    KV_SPLIT_WARPS,
    MIN_BLOCK_KV,
    MLA_BATCH_FREE_WARPS,
    MLA_BUCKETS,
    VERSIONS,
    SglangDetail,
    SglangOptions,
    SglangRules,
)
from decodecalc.engines.sglang.releases import RELEASES
from decodecalc.engines.sglang.step import SglangStep, column
from decodecalc.engines.sglang.triton_registers import resident_blocks
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray, cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, KernelArray, Launches, at, row
from decodecalc.launch.plan import OWNER_BLOCK, KeyRange, KeyRanges
from decodecalc.launch.policy import Policy, PolicyVersion, version_key
from decodecalc.launch.takes import FLOATS, Takes
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


class SglangTriton(Policy):
    """The policy; see the module's docstring."""

    name = "sglang-triton"
    title = "SGLang, Triton backend"
    releases = RELEASES
    word_for_split = "kv split"
    split_flag = "--triton-attention-num-kv-splits"
    traits = Traits(
        server_names=("triton",),
        split_setting=SplitSetting(
            text="--triton-attention-num-kv-splits {splits}",
            option="max_kv_splits_arg",
            server="SGLang",
            checked=(8, 16, 32, 64, 128),
        ),
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

    def returns_lse(self, version: PolicyVersion) -> bool:
        """From 0.5.15 on, whose server has `--dcp-size` (triton_backend.py, forward_decode)."""
        return version.covers is not None and version_key(version.covers[0]) >= (0, 5, 15)

    def combinations(self, options: SglangOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        return (Takes(cache_dtypes=FLOATS),)

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: SglangOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays. Raises InputError for lengths and batches that no SGLang step has, and GateError for
        launches that fail in this version."""
        rules: SglangRules = version.rules
        if geo.mla and rules.value_is_view and geo.group > 1 and not view_fits(geo):
            raise GateError(
                f"sglang-triton {version.name} takes V from the K tile, and a latent of {geo.head_dim}/{geo.v_dim} "
                "needs tiles of two widths, which does not compile",
                "head_dim",
            )
        launch = _Launch(geo, batches, gpu, options, rules, version.name)
        return replace(launch.launches(), resident_blocks=np.where(launch.lean_runs, 0, resident_blocks(geo, kv, gpu)))


class _Launch(SglangStep):
    """The launch that the quantities of the steps make."""

    @property
    def loads_latent_twice(self) -> bool:
        """Whether an MLA layer's V is loaded apart from K: before 0.5.12, and where one query head has the latent."""
        return self.geo.mla and not (self.rules.value_is_view and self.geo.group > 1)

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

    def _with_lean(self, found: Launches, keys: IntArray, padding_keys: int) -> Launches:
        """The launch with the persistent kernel in the steps that take it."""
        on = self.lean_runs
        if not np.any(on):
            return found
        geo, wide = self.geo, column(on)
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
        standard = (k if k.role == "scheduler" else k._replace(when=np.logical_and(k.when, off)) for k in found.kernels)
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
            requested=np.where(wide, schedule.parts, found.requested),
            launched=np.where(on, schedule.most_parts, found.launched),
            live=np.where(wide, schedule.parts, found.live),
            split_keys=np.where(wide, schedule.run_tiles[:, None] * tile, found.split_keys),
            blocks_per_split=np.where(wide, schedule.rows * self.topk, found.blocks_per_split),
            tile_keys=np.where(on, tile, found.tile_keys),
            block_rows=np.where(on, lean.BLOCK_M, found.block_rows),
            scratch_bytes=np.where(on, partial, found.scratch_bytes),
            determinism="batch-dependent",
            key_ranges=ranges,
            merge_in=np.where(on, OWNER_BLOCK, found.merge_in),
        )

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
            merge_walks=launched,  # _fwd_kernel_stage2 loops over MAX_KV_SPLITS
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
                loads_latent_twice=self.loads_latent_twice,
            ),
            loads_value_apart=self.loads_latent_twice,
        )  # fmt: skip
        return self._with_lean(found, keys, pad_keys)

    def _key_ranges(self, keys: IntArray, size: IntArray, live: IntArray, end: IntArray) -> Any:
        """Key ranges of draft rows, which reach beyond the request's own keys."""

        def ranges(n: int) -> Sequence[list[KeyRange]]:
            r = end.shape[1]
            return KeyRanges(row(end - keys, n, r), row(size, n, r), row(live, n, r), row(end, n, r))

        return ranges


POLICY = SglangTriton()

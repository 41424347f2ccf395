"""Puts the conditions of a sglang-triton step into words, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.sglang.options import BLOCK_H, Counts
from decodecalc.intmath import IntArray, cdiv
from decodecalc.launch.arrays import GateArray, at

if TYPE_CHECKING:
    from decodecalc.engines.sglang.step import SglangStep


def gates(
    step: SglangStep,
    counts: Counts,
    launched: Any,
    windowed: Any,
    keys: IntArray,
    split_keys: IntArray,
    live: IntArray,
    wrong: int,
) -> Iterator[GateArray]:
    """The conditions in the order in which the engine meets them; their words are made when somebody reads them."""
    opt, geo, gpu = step.opt, step.geo, step.gpu
    longest = step.batches.max_seq_len
    if geo.mla:
        yield GateArray("mla_cap", step.rules.mla_cap and step.tile_size is None, lambda n: _say_mla_cap(step, n))
    if step.hip and step.rules.lean:
        yield GateArray(
            "lean_kernel",
            step.lean,
            lambda n: (
                step.lean_reason(n)
                + (
                    ": the grid is persistent; key ranges are those of the first KV head, others are cut elsewhere"
                    if at(step.lean, n)
                    else ": the standard kernel runs"
                )
            ),
        )
    yield GateArray("deterministic", opt.deterministic, lambda n: _say_deterministic(step, n))
    if opt.static_kv_splits:
        yield GateArray(
            "static_kv_splits",
            step.mode == "static",
            lambda n: (
                f"every row uses the cap, {at(step.cap, n)}"
                if step.mode == "static"
                else "the setting is ignored, because deterministic mode has its own counts"
            ),
        )
    if step.mode == "adaptive":
        near = counts.near_equal
        yield GateArray(
            "near_equal_lengths",
            near,
            lambda n: (
                f"8 * longest {at(longest, n)} {'<' if at(near, n) else '>='} 10 * shortest "
                f"{at(_shortest(step), n)}: "
                + ("all rows count as equally long" if at(near, n) else "splits even the lengths out")
                + f", ceil({at(longest, n)} / {at(counts.max_1, n)}) = {at(counts.chunk_1, n)} keys a split at most"
            ),
        )
        wanted = cdiv(counts.ext_cores, counts.token_grid)
        yield GateArray(
            "cap_not_binding",
            wanted <= step.cap,
            lambda n: (
                f"min(ceil({at(counts.ext_cores, n)} / {at(counts.token_grid, n)} blocks) = {at(wanted, n)}, cap "
                f"{at(step.cap, n)}) = {at(counts.max_2, n)} splits for the longest row; "
                f"{at(counts.ext_cores, n)} = int({gpu.sm_count} SMs * max(log2({at(longest, n)} / 64), 1))"
            ),
        )
    if opt.padded_batch is not None:
        yield GateArray(
            "no_padding_rows",
            np.asarray(step.padded == 0),
            lambda n: (
                f"the graph of {opt.padded_batch} rows runs {at(step.padded, n)} rows of length 1 besides "
                f"{at(step.batches.batch, n)} requests"
                + ("; they set the shortest length to 1" if step.mode == "adaptive" and at(step.padded, n) else "")
            ),
        )
    if step.tuned:
        yield GateArray(
            "mla_decode_tune",
            step.batch_wide,
            lambda n: (
                f"gfx950: one count for the batch, {at(launched, n)}, replaces the device's and shrinks the grid"
                if step.batch_wide
                else "gfx950: tuned tile and warps; deterministic, fixed-tile and static counts stay"
            ),
        )
    elif opt.mla_decode_tune:
        yield GateArray("mla_decode_tune", False, lambda n: _say_untuned(step))
    yield GateArray(
        "every_split_live",
        np.logical_or((live == counts.splits).all(axis=1), step.lean_runs),
        lambda n: (
            "the lean kernel cuts keys in its own way"
            if at(step.lean_runs, n)
            else _say_rounding(n, counts, keys, split_keys, live)
        ),
    )
    if windowed is not None:
        same = (windowed == counts.splits).all(axis=1) if isinstance(windowed, np.ndarray) else True
        yield GateArray(
            "window_counts",
            same,
            lambda n: (
                f"rows read their last {step.window} keys (models hand over their window, {geo.window}, minus 1) "
                f"with counts made for full lengths"
                + ("" if at(same, n) else "; SGLang also computes counts for window lengths, but does not use them")
            ),
        )
    if geo.group > BLOCK_H:
        yield GateArray(
            "kv_head_mapping",
            np.logical_or(wrong == 0, step.lean_runs),
            lambda n: (
                "the lean kernel maps every block to its KV head"
                if at(step.lean_runs, n)
                else f"block b of {step.head_blocks} reads KV head b // {cdiv(geo.group, BLOCK_H)}: "
                + (
                    f"WRONG for {wrong} of {geo.q_heads} query heads (group {geo.group} is over {BLOCK_H}, not a "
                    f"multiple of it, and there are {geo.kv_heads} KV heads)"
                    if wrong
                    else "right for every query head"
                )
            ),
        )


def _shortest(step: SglangStep) -> Any:
    """Length of the shortest row that the scheduler sees."""
    return np.where(step.padded > 0, 1, step.batches.min_seq_len)


def _say_mla_cap(step: SglangStep, n: int) -> str:
    if step.tile_size is not None:
        return f"a fixed tile sets the cap: ceil({at(step.context, n)} / {step.tile_size}) = {at(step.cap, n)}"
    if not step.rules.mla_cap:
        return f"{step.version} has one cap for all models, {step.base_cap}; MLA has its own from 0.5.12 on"
    limit = ", at most 256 on gfx942" if step.gpu.gfx == "gfx942" and step.rules.mla_cap_gfx942 else ""
    return (
        f"MLA: cap max({step.base_cap}, min(np2({step.gpu.sm_count} SMs), np2(ceil({at(step.context, n)} / 32))))"
        f"{limit} = {at(step.cap, n)}"
    )


def _say_deterministic(step: SglangStep, n: int) -> str:
    if not step.opt.deterministic:
        return "the mode is off, so the splits of a row depend on the rest of its batch"
    if at(step.lean_runs, n):
        return f"the mode is on, but {step.version} still runs the lean kernel, which cuts by the whole batch"
    return (
        f"n = ceil(L / {step.tile_size}), cap ceil({at(step.context, n)} / {step.tile_size}) = {at(step.cap, n)}; "
        f"the kernel then makes the n splits equal, so boundaries move as a request grows and never with its batch"
    )


def _say_untuned(step: SglangStep) -> str:
    if not step.rules.mla_tune:
        return f"{step.version} has no tuned geometry (it exists from 0.5.18 on)"
    return "the tuned geometry applies to MLA of head_dim 576 on gfx950 only"


def _say_rounding(n: int, counts: Counts, keys: IntArray, split_keys: IntArray, live: IntArray) -> str:
    """The row that loses the most splits to the rounding, in numbers."""
    asked = np.broadcast_to(counts.splits, live.shape)[n]
    worst = int(np.argmax(asked - live[n]))
    return (
        f"ceil(ceil({keys[n, worst]} / {asked[worst]}) / 32) * 32 = {split_keys[n, worst]} keys a split: "
        f"{live[n, worst]} of {asked[worst]} requested splits have keys"
    )

"""Stage 1 of latent attention (576 / 512 elements, 16 bits or FP8) with many query heads, for Hopper's warp groups.

Grid (row blocks, requests, splits), as `stage1.py` has it, and the same partial states, so that the same merge serves.
A block takes 64 query rows and walks its keys in tiles of 64. It has 12 warps and an SM for itself, since its queries
(72 KB) and two tiles of the latent (144 KB) fill the shared memory:

* Four warps load. Tile t goes to buffer t % 2, as a left and a right half of 256 elements with a barrier each: by TMA
  where tiles lie in one page and pages follow each other, row by row by cp.async where keys may lie anywhere (small
  pages, lists of slots), and through registers where FP8 keys become fp16.
* Two warp groups compute. Group 0 owns the even tiles and the left half of the output, group 1 the odd tiles and the
  right half: neither half of the 64 x 512 sums fits the registers of one group with the other. The owner of a tile
  computes its scores and weights, adds their product with its own half of the values, and leaves the weights and the
  maximum in shared memory, from where the other group adds its half.

While one group is at its softmax, the other is at its products: this is what the alternation is for. Within a group
the order is: scores of the tile's first half, the other group's last weights times values, scores of the second half.
The product in between gives back half a buffer of the tile before as early as possible and needs nothing that is still
on its way.

It is written in Gluon, Triton's lower dialect, because Triton itself gives a block one kind of warps. It runs neither
in the interpreter nor on other GPUs, where `stage1.py` serves; `launch.py` says what it takes, and NOTES.md what was
tried and measured.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from decodecalc_kernels import live, stage1
from decodecalc_kernels.blocks import MLA_HOPPER
from decodecalc_kernels.merge import BY_COUNT, BY_COUNTS, BY_SIZES, LN2, gdc_launch_dependents, gdc_wait

split_keys_of = gluon.jit(live.split_keys_of)
is_live = gluon.jit(live.is_live)
split_end = gluon.jit(live.split_end)
record_block = gluon.jit(stage1.record_block.fn)
globaltimer = stage1.globaltimer

ROWS = gl.constexpr(MLA_HOPPER["rows"])
TILE = gl.constexpr(MLA_HOPPER["tile_keys"])
HALF = gl.constexpr(256)  # elements of a half of the value
ROPE = gl.constexpr(64)  # elements of a key beyond the value
# How keys come (LOAD): boxes of TMA where tiles lie in one page; rows by cp.async, each from anywhere; rows of FP8,
# which pass through the loading warps' registers to become fp16.
BOXES, ROWS_16, ROWS_FP8 = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
# Of a thread of the computing groups, by LOAD. The loading warps keep what is left of 504: 40, 56 or 104.
COMPUTE_REGISTERS = gl.constexpr((232, 224, 200))
PART = gl.constexpr(64)  # elements of a row that are copied at a time: a panel of the shared layout
LANES_16 = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))  # 16 bytes a lane, 128 bytes of a row
LANES_FP8 = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))  # the same of 4-byte integers
FP16_MAX = gl.constexpr(65504.0)


@gluon.jit
def write_empty(
    out_ptr, lse_ptr, row0, token0, rows, rows_used, q_heads, stride_token, stride_head,
    Q_LEN: gl.constexpr, HAS_LSE: gl.constexpr,
):  # fmt: skip
    """The output of rows without keys: 0, log-sum-exp -inf."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    i = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    row = row0 + i
    valid = (i < rows_used) & (row < rows)
    if Q_LEN == 1:
        head = row
        token = (token0 + row * 0).to(gl.int64)
    else:
        head = row % q_heads
        token = (token0 + row // q_heads).to(gl.int64)
    d = gl.arange(0, 2 * HALF, layout=gl.SliceLayout(0, LAYOUT))
    at = token * stride_token + head * stride_head
    zeros = gl.zeros([ROWS, 2 * HALF], out_ptr.dtype.element_ty, layout=LAYOUT)
    gl.store(out_ptr + at[:, None] + d[None, :], zeros, mask=valid[:, None])
    if HAS_LSE:
        nothing = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, LAYOUT))
        gl.store(lse_ptr + token * q_heads + head, nothing, mask=valid)


@gluon.jit
def reference_of(m, UNEVEN: gl.constexpr):
    """The maximum that exponents are taken against: 0 where a row has seen no key."""
    if UNEVEN:
        return gl.where(m == float("-inf"), 0.0, m)
    else:
        return m


@gluon.jit
def load_tile(
    wide, rope, slot, d_first, d_second, BUFFER: gl.constexpr, phase, k_first, k_second, k_rope, full, empty
):  # fmt: skip
    """Load a tile's halves as soon as the buffer's are free. Barriers 2b and 2b + 1 belong to buffer b: to the half
    that is loaded first (with the rope part) and to the other."""
    mbarrier.wait(empty.index(2 * BUFFER), phase)
    first = full.index(2 * BUFFER)
    mbarrier.expect(first, TILE * (HALF + ROPE) * 2)
    tma.async_copy_global_to_shared(wide, [slot, d_first], first, k_first.index(BUFFER))
    tma.async_copy_global_to_shared(rope, [slot, 2 * HALF], first, k_rope.index(BUFFER))
    mbarrier.wait(empty.index(2 * BUFFER + 1), phase)
    second = full.index(2 * BUFFER + 1)
    mbarrier.expect(second, TILE * HALF * 2)
    tma.async_copy_global_to_shared(wide, [slot, d_second], second, k_second.index(BUFFER))


@gluon.jit
def load_latent(
    wide, rope, table_row, page, start, end, k_left, k_right, k_rope, full, empty, PAGE: gl.constexpr
):  # fmt: skip
    """The loading warps. The half that is loaded first is the one that the tile's owner frees: left for even tiles,
    right for odd ones."""
    tiles = gl.cdiv(end - start, TILE)
    for t in range(tiles):
        key = start + t * TILE
        slot = page * PAGE + key % PAGE
        # The next tile's page comes while this one's place is waited for.
        page = gl.load(table_row + gl.minimum(key + TILE, end - 1) // PAGE)
        phase = ((t >> 1) & 1) ^ 1
        if t % 2 == 0:
            load_tile(wide, rope, slot, 0, HALF, 0, phase, k_left, k_right, k_rope, full, empty)
        else:
            load_tile(wide, rope, slot, HALF, 0, 1, phase, k_right, k_left, k_rope, full, empty)


@gluon.jit
def copy_rows(k, rows, there, first, buffer: gl.constexpr, PARTS: gl.constexpr):
    """Start copies of elements [first, first + 64 PARTS) of a tile's rows. What is not `there` becomes zeros."""
    d = gl.arange(0, PART, layout=gl.SliceLayout(0, LANES_16))
    for c in gl.static_range(PARTS):
        at = rows[:, None] + (first + c * PART + d)[None, :]
        async_copy.async_copy_global_to_shared(k.index(buffer).slice(c * PART, PART, dim=1), at, mask=there[:, None])


@gluon.jit
def copy_tile(
    rows, there, d_first, d_second, BUFFER: gl.constexpr, phase, k_first, k_second, k_rope, bias, full, empty,
    HOLES: gl.constexpr,
):  # fmt: skip
    """`load_tile` by cp.async: every thread arrives when its copies have."""
    mbarrier.wait(empty.index(2 * BUFFER), phase)
    first = full.index(2 * BUFFER)
    copy_rows(k_first, rows, there, d_first, BUFFER, HALF // PART)
    copy_rows(k_rope, rows, there, 2 * HALF, BUFFER, ROPE // PART)
    if HOLES:
        bias.index(BUFFER).store(gl.where(there, 0.0, float("-inf")))
        mbarrier.arrive(first)
    async_copy.mbarrier_arrive(first, increment_count=False)
    mbarrier.wait(empty.index(2 * BUFFER + 1), phase)
    copy_rows(k_second, rows, there, d_second, BUFFER, HALF // PART)
    async_copy.mbarrier_arrive(full.index(2 * BUFFER + 1), increment_count=False)


@gluon.jit
def read_part(rows, there, first: gl.constexpr):
    """64 elements of a tile's FP8 rows, in registers as integers of four each: as bytes, each would take a register."""
    d = first // 4 + gl.arange(0, PART // 4, layout=gl.SliceLayout(0, LANES_FP8))
    return gl.load(rows[:, None] + d[None, :], mask=there[:, None], other=0)


@gluon.jit
def write_part(k, part, buffer: gl.constexpr, c: gl.constexpr):
    """Part c of a tile's half, as fp16."""
    low, high = gl.inline_asm_elementwise(
        """{ .reg .b16 low, high;
        mov.b32 {low, high}, $2;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high; }""",
        "=r,=r,r", [part], dtype=(gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    pairs = gl.reshape(gl.join(low, high), [TILE, PART // 2])
    k.index(buffer).slice(c * PART // 2, PART // 2, dim=1).store(pairs)


@gluon.jit
def convert_tile(
    rows, there, next_rows, next_there, a, b, c, d, d_second: gl.constexpr, d_next: gl.constexpr,
    BUFFER: gl.constexpr, phase,
    k_first, k_second, k_rope, bias, full, empty, HOLES: gl.constexpr,
):  # fmt: skip
    """`load_tile` of FP8 rows, whose first four parts (a to d) are in registers already. Returns those of the next
    tile, which are asked for as registers become free."""
    mbarrier.wait(empty.index(2 * BUFFER), phase)
    first = full.index(2 * BUFFER)
    write_part(k_first, a, BUFFER, 0)
    a = read_part(rows, there, 2 * HALF)
    write_part(k_first, b, BUFFER, 1)
    b = read_part(rows, there, d_second)
    write_part(k_first, c, BUFFER, 2)
    c = read_part(rows, there, d_second + PART)
    write_part(k_first, d, BUFFER, 3)
    d = read_part(rows, there, d_second + 2 * PART)
    write_part(k_rope, a, BUFFER, 0)
    a = read_part(rows, there, d_second + 3 * PART)
    if HOLES:
        bias.index(BUFFER).store(gl.where(there, 0.0, float("-inf")))
    fence_async_shared()
    mbarrier.arrive(first)
    mbarrier.wait(empty.index(2 * BUFFER + 1), phase)
    write_part(k_second, b, BUFFER, 0)
    b = read_part(next_rows, next_there, d_next + PART)
    write_part(k_second, c, BUFFER, 1)
    c = read_part(next_rows, next_there, d_next + 2 * PART)
    write_part(k_second, d, BUFFER, 2)
    d = read_part(next_rows, next_there, d_next + 3 * PART)
    write_part(k_second, a, BUFFER, 3)
    a = read_part(next_rows, next_there, d_next)
    fence_async_shared()
    mbarrier.arrive(full.index(2 * BUFFER + 1))
    return a, b, c, d


@gluon.jit
def rows_of(k_ptr, stride_page, stride_slot, pages, keys, end, PAGE: gl.constexpr, HOLES: gl.constexpr):
    """Where a tile's rows begin, and which of them there are."""
    there = keys < end
    if HOLES:
        there = there & (pages >= 0)
    offset = pages.to(gl.int64) * stride_page
    if PAGE > 1:
        offset += (keys % PAGE).to(gl.int64) * stride_slot
    return k_ptr + offset, there


@gluon.jit
def load_rows(
    k_ptr, stride_page, stride_slot, table_row, pages, start, end, k_left, k_right, k_rope, bias, full, empty,
    LOAD: gl.constexpr, PAGE: gl.constexpr, HOLES: gl.constexpr,
):  # fmt: skip
    """The loading warps where a tile's rows may lie anywhere. pages: of the first tile."""
    tiles = gl.cdiv(end - start, TILE)
    if LOAD == ROWS_FP8:  # the same memory in pairs of fp16
        PAIRS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
        k_left = k_left._reinterpret(gl.int32, [2, TILE, HALF // 2], PAIRS)
        k_right = k_right._reinterpret(gl.int32, [2, TILE, HALF // 2], PAIRS)
        k_rope = k_rope._reinterpret(gl.int32, [2, TILE, ROPE // 2], PAIRS)
    keys = start + gl.arange(0, TILE, layout=pages.type.layout)
    rows, there = rows_of(k_ptr, stride_page, stride_slot, pages, keys, end, PAGE, HOLES)
    if LOAD == ROWS_FP8:
        a = read_part(rows, there, 0)
        b = read_part(rows, there, PART)
        c = read_part(rows, there, 2 * PART)
        d = read_part(rows, there, 3 * PART)
    for t in range(tiles):
        keys += TILE
        phase = ((t >> 1) & 1) ^ 1
        pages = gl.load(table_row + gl.minimum(keys, end - 1) // PAGE)
        if LOAD == ROWS_FP8:
            next_rows, next_there = rows_of(k_ptr, stride_page, stride_slot, pages, keys, end, PAGE, HOLES)
            if t % 2 == 0:
                a, b, c, d = convert_tile(
                    rows, there, next_rows, next_there, a, b, c, d, HALF, HALF, 0, phase,
                    k_left, k_right, k_rope, bias, full, empty, HOLES,
                )  # fmt: skip
            else:
                a, b, c, d = convert_tile(
                    rows, there, next_rows, next_there, a, b, c, d, 0, 0, 1, phase,
                    k_right, k_left, k_rope, bias, full, empty, HOLES,
                )  # fmt: skip
            rows = next_rows
            there = next_there
        else:
            if t % 2 == 0:
                copy_tile(rows, there, 0, HALF, 0, phase, k_left, k_right, k_rope, bias, full, empty, HOLES)
            else:
                copy_tile(rows, there, HALF, 0, 1, phase, k_right, k_left, k_rope, bias, full, empty, HOLES)
            rows, there = rows_of(k_ptr, stride_page, stride_slot, pages, keys, end, PAGE, HOLES)


@gluon.jit
def load(
    wide, narrow, k_ptr, stride_page, stride_slot, table_row, page, start, end, k_left, k_right, k_rope, bias, full,
    empty, LOAD: gl.constexpr, PAGE: gl.constexpr, HOLES: gl.constexpr,
):  # fmt: skip
    """The loading warps, whatever the way."""
    if LOAD == BOXES:
        load_latent(wide, narrow, table_row, page, start, end, k_left, k_right, k_rope, full, empty, PAGE)
    else:
        load_rows(
            k_ptr, stride_page, stride_slot, table_row, page, start, end, k_left, k_right, k_rope, bias, full, empty,
            LOAD, PAGE, HOLES,
        )  # fmt: skip


@gluon.jit
def in_loop():
    """0, as a value that the compiler cannot move out of a loop: what depends on it is computed anew in every turn,
    where it would otherwise be kept in registers through the loop, and spilled."""
    return gl.inline_asm_elementwise("mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def clear_past(k, key, end):
    """Zeros in a tile's rows past the end: what a page holds there may be no numbers, and 0 times NaN is NaN."""
    keys = key + gl.arange(0, TILE, layout=gl.SliceLayout(1, LANES_16))
    for c in gl.static_range(k.shape[1] // 64):
        part = k.slice(c * 64, 64, dim=1)
        rows = part.load(LANES_16)
        part.store(gl.where((keys < end)[:, None], rows, 0.0).to(k.dtype))


@gluon.jit
def first_scores(
    zero, SIDE: gl.constexpr, q_left, q_right, q_rope, k_left, k_right, k_rope, full, phase, key, end,
    SCORES: gl.constexpr, LOAD: gl.constexpr,
):  # fmt: skip
    """Start the score product of group SIDE's next tile with the half that comes first, and with the rope part."""
    nothing = gl.zeros([ROWS, TILE], gl.float32, layout=SCORES)
    mbarrier.wait(full.index(2 * SIDE), phase)
    if LOAD == ROWS_16:
        fence_async_shared()
    if LOAD == BOXES:  # noqa: SIM102 (known at compile time)
        if key + TILE > end:
            if SIDE == 0:
                clear_past(k_left.index(0), key, end)
            else:
                clear_past(k_right.index(1), key, end)
            clear_past(k_rope.index(SIDE), key, end)
            fence_async_shared()
    if SIDE == 0:
        s = warpgroup_mma(q_left.index(zero), k_left.index(zero).permute((1, 0)), nothing, use_acc=False, is_async=True)
    else:
        s = warpgroup_mma(
            q_right.index(zero), k_right.index(zero + 1).permute((1, 0)), nothing, use_acc=False, is_async=True
        )
    return warpgroup_mma(q_rope, k_rope.index(zero + SIDE).permute((1, 0)), s, is_async=True)


@gluon.jit
def second_scores(
    zero, SIDE: gl.constexpr, q_left, q_right, k_left, k_right, full, phase, key, end, s, LOAD: gl.constexpr
):  # fmt: skip
    """Go on with the half that comes second."""
    if SIDE == 0:
        q = q_right.index(zero)
        k = k_right.index(zero)
    else:
        q = q_left.index(zero)
        k = k_left.index(zero + 1)
    mbarrier.wait(full.index(2 * SIDE + 1), phase)
    if LOAD == ROWS_16:
        fence_async_shared()
    if LOAD == BOXES:  # noqa: SIM102 (known at compile time)
        if key + TILE > end:
            clear_past(k, key, end)
            fence_async_shared()
    return warpgroup_mma(q, k.permute((1, 0)), s, is_async=True)


@gluon.jit
def other_tile(
    acc, m, total, p_shared, m_shared, v, p_ready, phase, ROW: gl.constexpr, ACC: gl.constexpr, UNEVEN: gl.constexpr
):  # fmt: skip
    """Rescale to the maximum that came with the other group's weights, and start their product with my half of V."""
    mbarrier.wait(p_ready, phase)
    m_new = m_shared.load(ROW)
    alpha = gl.exp2(m - reference_of(m_new, UNEVEN))
    acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, ACC))[:, None]
    acc = warpgroup_mma(p_shared, v, acc, is_async=True)
    return acc, m_new, total * alpha


@gluon.jit
def weights_of(
    s, m, total, key, end, limit, bias, scale_log2, SCORES: gl.constexpr, UNEVEN: gl.constexpr, HOLES: gl.constexpr
):  # fmt: skip
    """Softmax weights of a tile whose scores are there: they, the factor of what was summed before, the maximum that
    they are relative to, and the sum."""
    keys = key + gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORES))
    # Scaled and masked in one: an infinity to add for keys past the end.
    if HOLES:
        s = s * scale_log2 + bias.load(gl.SliceLayout(0, SCORES))[None, :]
    else:
        s = s * scale_log2 + gl.where(keys < end, 0.0, float("-inf"))[None, :]
    if UNEVEN and not HOLES:  # lists with holes are those of one query token
        s = gl.where(keys[None, :] < limit[:, None], s, float("-inf"))
    m_new = gl.maximum(m, gl.max(s, 1))
    m_ref = reference_of(m_new, UNEVEN)
    p = gl.exp2(s - m_ref[:, None])
    alpha = gl.exp2(m - m_ref)
    return p, alpha, m_new, total * alpha + gl.sum(p, 1)


@gluon.jit
def as_fp16(q):
    """Queries in shared memory as fp16, in place. Those beyond its range are clamped."""
    if q.dtype == gl.float16:
        return q
    made = q._reinterpret(gl.float16, q.shape, q.layout)
    for c in gl.static_range(q.shape[2] // PART):
        part = q.index(0).slice(c * PART, PART, dim=1).load(LANES_16).to(gl.float32)
        part = gl.minimum(gl.maximum(part, -FP16_MAX), FP16_MAX)
        made.index(0).slice(c * PART, PART, dim=1).store(part.to(gl.float16))
    return made


@gluon.jit
def queries_as_fp16(q_left, q_right, q_rope, ready, SIDE: gl.constexpr):
    """All queries as fp16, which FP8 keys are multiplied in. Each group converts half of them."""
    if SIDE == 0:
        left = as_fp16(q_left)
        rope = as_fp16(q_rope)
        right = q_right._reinterpret(gl.float16, q_right.shape, q_right.layout)
    else:
        right = as_fp16(q_right)
        left = q_left._reinterpret(gl.float16, q_left.shape, q_left.layout)
        rope = q_rope._reinterpret(gl.float16, q_rope.shape, q_rope.layout)
    fence_async_shared()
    mbarrier.arrive(ready)
    mbarrier.wait(ready, 0)
    return left, right, rope


@gluon.jit
def publish(weights, m, p_shared, m_shared, p_ready):
    """Leave weights and maximum for the other group. There is one buffer for weights: whoever writes it has just read
    what the other group had left there."""
    p_shared.store(weights)
    m_shared.store(m)
    fence_async_shared()
    mbarrier.arrive(p_ready)


@gluon.jit
def consume(
    q_left, q_right, q_rope, q_ready,
    k_left, k_right, k_rope, bias, full, empty,
    p_shared, m_shared, sum_shared, p_ready, sum_ready, q_fp16,
    start, end, scale_log2, v_scale,
    out_ptr, lse_ptr, part_out_ptr, part_max_ptr, part_sum_ptr,
    token0, row0, rows, rows_used, q_heads, seq_len, q_len, split, num_splits, out_stride_token, out_stride_head,
    Q_LEN: gl.constexpr, DIRECT: gl.constexpr, HAS_LSE: gl.constexpr, LOAD: gl.constexpr, HOLES: gl.constexpr,
    SIDE: gl.constexpr,
):  # fmt: skip
    """Warp group SIDE: scores and weights of the tiles t with t % 2 == SIDE, its half of the output for all tiles."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HALF, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    UNEVEN: gl.constexpr = (Q_LEN > 1) or HOLES
    if SIDE == 0:
        v_own = k_left.index(0)
        v_other = k_left.index(1)
    else:
        v_own = k_right.index(1)
        v_other = k_right.index(0)
    empty_own = empty.index(2 * SIDE)
    empty_other = empty.index(3 - 2 * SIDE)
    p_ready_own = p_ready.index(SIDE)
    p_ready_other = p_ready.index(1 - SIDE)
    m_own = m_shared.index(SIDE)
    m_other = m_shared.index(1 - SIDE)

    i = gl.arange(0, ROWS, layout=ROW)
    if UNEVEN:
        limit = seq_len - q_len + 1 + gl.minimum(row0 + i, rows - 1) // q_heads
    else:
        limit = i
    m = gl.full([ROWS], float("-inf"), gl.float32, layout=ROW)
    total = gl.zeros([ROWS], gl.float32, layout=ROW)
    acc = gl.zeros([ROWS, HALF], gl.float32, layout=ACC)
    tiles = gl.cdiv(end - start, TILE)
    mbarrier.wait(q_ready, 0)
    if LOAD == ROWS_FP8:
        q_left, q_right, q_rope = queries_as_fp16(q_left, q_right, q_rope, q_fp16, SIDE)
        q_end = q_rope.index(0)
    else:
        # 64 elements of the queries stay in registers: the scores are limited by what they read of shared memory.
        q_end = q_rope.index(0).load(gl.DotOperandLayout(0, SCORES, 2))

    if SIDE == 0:  # tile 0 has none before it
        s = first_scores(0, SIDE, q_left, q_right, q_end, k_left, k_right, k_rope, full, 0, start, end, SCORES, LOAD)
        s = second_scores(0, SIDE, q_left, q_right, k_left, k_right, full, 0, start, end, s, LOAD)
        s = warpgroup_mma_wait(0, deps=[s])
        p, alpha, m, total = weights_of(
            s, m, total, start, end, limit, bias.index(SIDE), scale_log2, SCORES, UNEVEN, HOLES
        )
        weights = p.to(p_shared.dtype)
        publish(weights, m, p_shared, m_own, p_ready_own)
        acc = warpgroup_mma(gl.convert_layout(weights, WEIGHTS), v_own, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty_own)

    for t in range(2 - SIDE, tiles, 2):
        phase = (t >> 1) & 1
        key = start + t * TILE
        zero = in_loop()
        s = first_scores(
            zero, SIDE, q_left, q_right, q_end, k_left, k_right, k_rope, full, phase, key, end, SCORES, LOAD
        )
        acc_next, m, total = other_tile(
            acc, m, total, p_shared, m_other, v_other, p_ready_other, ((t - 1) >> 1) & 1, ROW, ACC, UNEVEN
        )
        s = second_scores(zero, SIDE, q_left, q_right, k_left, k_right, full, phase, key, end, s, LOAD)
        acc = warpgroup_mma_wait(1, deps=[acc_next])
        mbarrier.arrive(empty_other)
        s = warpgroup_mma_wait(0, deps=[s])
        p, alpha, m, total = weights_of(
            s, m, total, key, end, limit, bias.index(SIDE), scale_log2, SCORES, UNEVEN, HOLES
        )
        weights = p.to(p_shared.dtype)
        publish(weights, m, p_shared, m_own, p_ready_own)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, ACC))[:, None]
        acc = warpgroup_mma(gl.convert_layout(weights, WEIGHTS), v_own, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty_own)

    if (tiles - 1) % 2 != SIDE:  # the last tile was the other group's
        acc_last, m, total = other_tile(
            acc, m, total, p_shared, m_other, v_other, p_ready_other, ((tiles - 1) >> 1) & 1, ROW, ACC, UNEVEN
        )
        acc = warpgroup_mma_wait(0, deps=[acc_last])

    sum_shared.index(SIDE).store(total)
    mbarrier.arrive(sum_ready.index(SIDE))
    mbarrier.wait(sum_ready.index(1 - SIDE), 0)
    total = total + sum_shared.index(1 - SIDE).load(ROW)

    row = gl.minimum(row0 + i, rows - 1)
    valid = (i < rows_used) & (row0 + i < rows)
    if Q_LEN == 1:
        head = row
        token = token0 + row * 0
    else:
        head = row % q_heads
        token = token0 + row // q_heads
    token = token.to(gl.int64)
    OUT_ROW: gl.constexpr = gl.SliceLayout(1, ACC)
    d = SIDE * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(0, ACC))
    valid_out = gl.convert_layout(valid, OUT_ROW)[:, None]
    if DIRECT:
        at = gl.convert_layout(token * out_stride_token + head * out_stride_head, OUT_ROW)
        factor = gl.where(total > 0, v_scale / total, 0.0)
        out = acc * gl.convert_layout(factor, OUT_ROW)[:, None]
        gl.store(out_ptr + at[:, None] + d[None, :], out.to(out_ptr.dtype.element_ty), mask=valid_out)
        if SIDE == 0 and HAS_LSE:
            lse = gl.where(total > 0, (m + gl.log2(total)) * LN2, float("-inf"))
            gl.store(lse_ptr + token * q_heads + head, lse, mask=valid)
    else:
        state = (token * q_heads + head) * num_splits + split
        at = gl.convert_layout(state * (2 * HALF), OUT_ROW)
        gl.store(part_out_ptr + at[:, None] + d[None, :], acc, mask=valid_out)
        if SIDE == 0:
            gl.store(part_max_ptr + state, m, mask=valid)
            gl.store(part_sum_ptr + state, total, mask=valid)


@gluon.jit(
    do_not_specialize=[
        "rule", "num_splits", "split_value", "split_unit", "requests", "rows_used", "q_heads", "table_columns",
    ]
)  # fmt: skip
def mla_stage1_kernel(
    q_wide,  # descriptors of [tokens · q_heads, 576], boxes [64, 256] and [64, 64]
    q_narrow,
    k_wide,  # descriptors of the cache as [slots, 576], the same boxes; LOAD BOXES only
    k_narrow,
    k_ptr,  # the cache; the other ways to load only
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_max_ptr,
    part_sum_ptr,
    seq_lens_ptr,
    table_ptr,
    indptr_ptr,
    query_start_ptr,
    split_values_ptr,
    record_ptr,
    scale_log2,
    v_scale,
    rule,
    split_value,
    split_unit,
    num_splits,
    requests,
    rows_used,
    q_heads,
    out_stride_token,
    out_stride_head,
    k_stride_page,
    k_stride_slot,
    table_stride,
    table_columns,
    Q_LEN: gl.constexpr,
    LOAD: gl.constexpr,
    PAGE: gl.constexpr,
    FLAT: gl.constexpr,
    HOLES: gl.constexpr,
    DIRECT: gl.constexpr,
    HAS_LSE: gl.constexpr,
    RECORD: gl.constexpr,
    PDL: gl.constexpr,
    LATE: gl.constexpr,
):
    """Grid (row blocks, requests, splits); extra values of axis 1 exit at once. See the module; arguments of the same
    name are those of `stage1_kernel`."""
    row_block = gl.program_id(0)
    request = gl.program_id(1)
    split = gl.program_id(2)
    t0 = 0
    if RECORD:
        t0 = globaltimer()
    if PDL:
        gdc_wait()
        if not LATE:
            gdc_launch_dependents()
    if request >= requests:
        if RECORD:
            record_block(record_ptr, 0, 0, 1, t0, True)
        return
    seq_len = gl.load(seq_lens_ptr + request)
    if query_start_ptr is not None:
        token0 = gl.load(query_start_ptr + request)
        q_len = gl.load(query_start_ptr + request + 1) - token0
    else:
        token0 = request * Q_LEN
        q_len = Q_LEN
    size = split_value
    if (rule == BY_COUNTS) | (rule == BY_SIZES):
        size = gl.load(split_values_ptr + request)
    if (rule == BY_COUNT) | (rule == BY_COUNTS):
        size = split_keys_of(seq_len, gl.maximum(size, 1), split_unit)
    if FLAT:
        first = gl.load(indptr_ptr + request)
        table_row = table_ptr + first
        table_columns = gl.load(indptr_ptr + request + 1) - first
    else:
        table_row = table_ptr + request.to(gl.int64) * table_stride
    if DIRECT:
        start = 0
    else:
        start = split * size
    # The first page's number comes with the length. A split without keys may read one that is none.
    if LOAD == BOXES:
        first_keys = start
    else:
        LANES: gl.constexpr = LANES_16 if LOAD == ROWS_16 else LANES_FP8
        first_keys = start + gl.arange(0, TILE, layout=gl.SliceLayout(1, LANES))
    page = gl.load(table_row + gl.minimum(first_keys // PAGE, table_columns - 1), mask=table_columns > 0, other=0)
    rows = q_len * q_heads
    row0 = row_block * rows_used
    if DIRECT:
        alive = (row0 < rows) & (seq_len > 0)
        end = seq_len
    else:
        alive = (row0 < rows) & is_live(split, size, seq_len)
        end = split_end(start, size, seq_len)
    if DIRECT:  # noqa: SIM102 (known at compile time)
        if (row0 < rows) & (seq_len <= 0):
            write_empty(
                out_ptr, lse_ptr, row0, token0, rows, rows_used, q_heads, out_stride_token, out_stride_head,
                Q_LEN, HAS_LSE,
            )  # fmt: skip
    if not alive:
        if RECORD:
            record_block(record_ptr, 0, 0, 1, t0, True)
        return

    TYPE: gl.constexpr = q_wide.dtype
    WIDE: gl.constexpr = q_wide.layout
    NARROW: gl.constexpr = q_narrow.layout
    q_left = gl.allocate_shared_memory(TYPE, [1, ROWS, HALF], WIDE)
    q_right = gl.allocate_shared_memory(TYPE, [1, ROWS, HALF], WIDE)
    q_rope = gl.allocate_shared_memory(TYPE, [1, ROWS, ROPE], NARROW)
    COMPUTE: gl.constexpr = gl.float16 if LOAD == ROWS_FP8 else TYPE
    k_left = gl.allocate_shared_memory(COMPUTE, [2, TILE, HALF], WIDE)
    k_right = gl.allocate_shared_memory(COMPUTE, [2, TILE, HALF], WIDE)
    k_rope = gl.allocate_shared_memory(COMPUTE, [2, TILE, ROPE], NARROW)
    p_shared = gl.allocate_shared_memory(COMPUTE, [ROWS, TILE], NARROW)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    m_shared = gl.allocate_shared_memory(gl.float32, [2, ROWS], PLAIN)
    sum_shared = gl.allocate_shared_memory(gl.float32, [2, ROWS], PLAIN)
    bias = gl.allocate_shared_memory(gl.float32, [2, TILE if HOLES else 1], PLAIN)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    p_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    sum_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_fp16 = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    # With cp.async each of the 128 loading threads arrives, and one for all that wrote which keys there are.
    SECOND: gl.constexpr = 128 if LOAD == ROWS_16 else 1
    FIRST: gl.constexpr = SECOND + 1 if LOAD == ROWS_16 and HOLES else SECOND
    for b in gl.static_range(2):
        mbarrier.init(full.index(2 * b), count=FIRST)
        mbarrier.init(full.index(2 * b + 1), count=SECOND)
        mbarrier.init(empty.index(2 * b), count=1)
        mbarrier.init(empty.index(2 * b + 1), count=1)
    for b in gl.static_range(2):
        mbarrier.init(p_ready.index(b), count=1)
        mbarrier.init(sum_ready.index(b), count=1)
    mbarrier.init(q_ready, count=1)
    mbarrier.init(q_fp16, count=2)
    fence_async_shared()

    mbarrier.expect(q_ready, ROWS * (2 * HALF + ROPE) * 2)
    q_row = token0 * q_heads + row0
    tma.async_copy_global_to_shared(q_wide, [q_row, 0], q_ready, q_left.index(0))
    tma.async_copy_global_to_shared(q_wide, [q_row, HALF], q_ready, q_right.index(0))
    tma.async_copy_global_to_shared(q_narrow, [q_row, 2 * HALF], q_ready, q_rope.index(0))

    REGISTERS: gl.constexpr = COMPUTE_REGISTERS[LOAD]
    # Compile-time constants survive in tuples only where these are written in the call.
    gl.warp_specialize(
        [
            (
                load,
                (
                    k_wide, k_narrow, k_ptr, k_stride_page, k_stride_slot, table_row, page, start, end,
                    k_left, k_right, k_rope, bias, full, empty, LOAD, PAGE, HOLES,
                ),
            ),
            (
                consume,
                (
                    q_left, q_right, q_rope, q_ready,
                    k_left, k_right, k_rope, bias, full, empty,
                    p_shared, m_shared, sum_shared, p_ready, sum_ready, q_fp16,
                    start, end, scale_log2, v_scale,
                    out_ptr, lse_ptr, part_out_ptr, part_max_ptr, part_sum_ptr,
                    token0, row0, rows, rows_used, q_heads, seq_len, q_len, split, num_splits,
                    out_stride_token, out_stride_head, Q_LEN, DIRECT, HAS_LSE, LOAD, HOLES, 0,
                ),
            ),
            (
                consume,
                (
                    q_left, q_right, q_rope, q_ready,
                    k_left, k_right, k_rope, bias, full, empty,
                    p_shared, m_shared, sum_shared, p_ready, sum_ready, q_fp16,
                    start, end, scale_log2, v_scale,
                    out_ptr, lse_ptr, part_out_ptr, part_max_ptr, part_sum_ptr,
                    token0, row0, rows, rows_used, q_heads, seq_len, q_len, split, num_splits,
                    out_stride_token, out_stride_head, Q_LEN, DIRECT, HAS_LSE, LOAD, HOLES, 1,
                ),
            ),
        ],
        [4, 4],
        [REGISTERS, REGISTERS],
    )  # fmt: skip
    if PDL and LATE:
        gdc_launch_dependents()
    if RECORD:
        record_block(record_ptr, start, end, 0, t0, True)


def shared_layout() -> gl.NVMMASharedLayout:
    """The layout of every operand in shared memory: what TMA writes and warp-group MMA reads without bank conflicts."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


def way_to_load(k_cache: torch.Tensor, flat: bool, holes: bool) -> int:
    """How the kernel loads keys of this cache: BOXES where every tile lies in one page and pages follow each other."""
    if k_cache.element_size() == 1:
        return int(ROWS_FP8.value)
    page = k_cache.shape[1]
    in_one = not flat and not holes and page % TILE.value == 0 and k_cache.stride(0) == page * k_cache.stride(1)
    return int((BOXES if in_one else ROWS_16).value)


def launch_mla(
    grid: tuple[int, int, int],
    q: torch.Tensor,
    k_cache: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    states: tuple[torch.Tensor | None, ...],
    seq_lens: torch.Tensor,
    table: torch.Tensor,
    indptr: torch.Tensor | None,
    query_start: torch.Tensor | None,
    splits: tuple[torch.Tensor, int, int, int],
    record: torch.Tensor | None,
    scales: tuple[float, float],
    num_splits: int,
    requests: int,
    *,
    q_len: int,
    holes: bool,
    rows_used: int,
    direct: bool,
    pdl: bool,
    late: bool,
    **options: Any,
) -> None:
    """Launch `mla_stage1_kernel` for a call that `launch.no_warp_groups` has nothing against.

    states: partial outputs, maxima and sums of split launches. table: the page table, or with `indptr` the flat list of
    slots. splits: values of requests, rule, value and unit.
    scales: of the scores (in base-2 units) and of the values.
    """
    tokens, q_heads, d = q.shape
    pages, page = k_cache.shape[:2]
    flat, load = indptr is not None, way_to_load(k_cache, indptr is not None, holes)
    layout = shared_layout()

    def maps(tensor: torch.Tensor, rows: int, stride: int) -> list[TensorDescriptor]:
        return [
            TensorDescriptor(tensor, [rows, d], [stride, 1], [64, width], layout) for width in (HALF.value, ROPE.value)
        ]

    queries = maps(q, tokens * q_heads, q.stride(1))
    keys = maps(k_cache, pages * page, k_cache.stride(1)) if load == BOXES.value else queries  # of no use there
    if load == ROWS_FP8.value:
        k_cache = k_cache.view(torch.int32)
    mla_stage1_kernel[grid](
        *queries, *keys, k_cache, out, out if lse is None else lse, *((out, out, out) if direct else states),
        seq_lens, table, indptr, query_start, splits[0], record, *scales, *splits[1:], num_splits, requests, rows_used,
        q_heads, out.stride(0), out.stride(1), k_cache.stride(1 if flat else 0), k_cache.stride(1),
        0 if flat else table.stride(0), 0 if flat else table.shape[1],
        Q_LEN=q_len, LOAD=load, PAGE=1 if flat else page, FLAT=flat, HOLES=holes, DIRECT=direct,
        HAS_LSE=direct and lse is not None, RECORD=record is not None, PDL=pdl, LATE=late, num_warps=4, **options,
    )  # fmt: skip

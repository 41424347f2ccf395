"""Stage 1 of split-K decode attention: each block walks one split's keys and leaves a partial softmax state.

One block = one (KV head, block of query rows, request, split); which request and split, its place in the grid says, or
with LISTED its place in the list of live splits (split_list.py). Query rows are (token, head of the group) pairs packed
token-major: row r is token r // group, head r % group, so one pass over the keys serves a whole group and all query
tokens. The loop is the online softmax in base 2: scores times log2 e, 2^x instead of e^x.

What happens at the end of a block:
* DIRECT: the split is the whole request; the block normalises and writes the output itself (no merge).
* otherwise: it writes an fp32 state (see merge.py); `merge_kernel` combines the states, or with FUSED the last block
  of a (request, KV head, row block) to arrive does, counted by an atomic.

What makes it fast (each measured: NOTES.md): the page numbers of the next tile are loaded while the current one is
worked on, and their cache lines asked for before the loop, so a K/V address never waits for a page-table read; the
address arithmetic is a few instructions per key (one 32-bit offset for K and V, no per-load predicates: a key past the
end is loaded from a place that is data and masked afterwards).
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodecalc_kernels import live
from decodecalc_kernels.merge import (
    LN2,
    first_key,
    gdc_launch_dependents,
    gdc_wait,
    is_live,
    live_splits,
    load_sink,
    merge_rows,
    on_device,
    split_keys_for,
)
from decodecalc_kernels.split_list import ENTRY_FIELDS

try:
    from triton.language.extra.cuda import globaltimer, smid
except ImportError:  # no NVIDIA backend: the recorder leaves these fields -1 (see instrument.py)

    @triton.jit
    def smid():
        return -1

    @triton.jit
    def globaltimer():
        return -1


split_end = on_device(live.split_end)
walk_start = on_device(live.walk_start)

# Fields that a recording block writes (instrument.BlockRecord).
RECORD_FIELDS = tl.constexpr(6)


@triton.jit
def record_block(record_ptr, start, end, exited, t0, ON_CUDA: tl.constexpr, place=None):
    """Write this block's record. `place` is its (split, request), request fastest; None: its place in the grid."""
    if place is None:
        row = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    else:
        row = place
    block = row * tl.num_programs(0) + tl.program_id(0)
    at = record_ptr + block.to(tl.int64) * RECORD_FIELDS
    tl.store(at, start)
    tl.store(at + 1, end)
    tl.store(at + 2, exited)
    if ON_CUDA:
        tl.store(at + 3, smid())
        tl.store(at + 4, t0)
        tl.store(at + 5, globaltimer())


@triton.jit
def page_index(keys, PAGE: tl.constexpr, PAGE_SHIFT: tl.constexpr, FLAT: tl.constexpr):
    """Where in a request's table row the pages of `keys` (never negative) are named; a flat list names each key."""
    if FLAT:
        return keys
    elif PAGE_SHIFT >= 0:
        return keys >> PAGE_SHIFT
    else:
        return keys // PAGE


@triton.jit
def slot_offset(keys, stride_slot, PAGE: tl.constexpr, PAGE_SHIFT: tl.constexpr, FLAT: tl.constexpr):
    """Elements from the start of a page to each key's row."""
    if FLAT:
        return keys * 0
    elif PAGE_SHIFT >= 0:
        return (keys & (PAGE - 1)) * stride_slot
    else:
        return (keys % PAGE) * stride_slot


@triton.jit
def page_offset(pages, stride_page, stride_slot, FLAT: tl.constexpr, WIDE: tl.constexpr):
    """Elements from the start of the cache to each page; in 64 bits only for caches that need it."""
    if WIDE:
        pages = pages.to(tl.int64)
    if FLAT:
        return pages * stride_slot
    else:
        return pages * stride_page


@triton.jit
def load_rows(rows, d, there, WIDTH: tl.constexpr, BLOCK: tl.constexpr, HOLES: tl.constexpr):
    """[TILE, BLOCK] elements of cache rows; zeros past WIDTH and, with HOLES, in rows that are not `there`."""
    if HOLES:
        return tl.load(rows[:, None] + d[None, :], mask=there[:, None] & (d < WIDTH)[None, :], other=0.0)
    elif BLOCK == WIDTH:
        return tl.load(rows[:, None] + d[None, :])
    else:
        return tl.load(rows[:, None] + d[None, :], mask=(d < WIDTH)[None, :], other=0.0)


@triton.jit
def unpack_pairs(pairs, TYPE: tl.constexpr):
    """int16 pairs of one-byte elements of a cache of TYPE -> (low bytes, high bytes), each fp16, without loss.

    Two neighbours along d travel as one 16-bit element, because the tensor cores' transposing loads of V move 16-bit
    elements: single bytes would be loaded one at a time.

    E4M3 takes NVIDIA's conversion instruction. E5M2 is the upper half of an fp16. An int8 with its sign bit flipped is
    the mantissa of 1024 + (x + 128) in fp16, of which 1152 is subtracted (integers have no conversion of full speed).
    """
    if tl.float8e5 == TYPE:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, 0, 0x2404; prmt.b32 $1, $2, 0, 0x3414;",
            "=&r,=&r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    elif tl.int8 == TYPE:
        return tl.inline_asm_elementwise(
            """{
                .reg .b32 flipped, low, high, base;
                mov.b32 base, 0x64806480;
                xor.b32 flipped, $2, 0x80808080;
                prmt.b32 low, flipped, 0x64646464, 0x4240;
                prmt.b32 high, flipped, 0x64646464, 0x4341;
                sub.f16x2 $0, low, base;
                sub.f16x2 $1, high, base;
            }""",
            "=&r,=&r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            """{
                .reg .b32 bytes;
                .reg .b16 low, high;
                prmt.b32 bytes, $2, 0, 0x3120;
                mov.b32 {low, high}, bytes;
                cvt.rn.f16x2.e4m3x2 $0, low;
                cvt.rn.f16x2.e4m3x2 $1, high;
            }""",
            "=&r,=&r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip


@triton.jit
def widen(x, COMPUTE: tl.constexpr, ON_CUDA: tl.constexpr):
    """Elements of the cache in the matrix products' type, without loss."""
    if ON_CUDA and x.dtype == tl.int8 and tl.float16 == COMPUTE:
        return tl.inline_asm_elementwise(
            """{
                .reg .b32 flipped, low, high, base;
                mov.b32 base, 0x64806480;
                xor.b32 flipped, $2, 0x80808080;
                prmt.b32 low, flipped, 0x64646464, 0x4140;
                prmt.b32 high, flipped, 0x64646464, 0x4342;
                sub.f16x2 $0, low, base;
                sub.f16x2 $1, high, base;
            }""",
            "=&r,=&r,r", [x], dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        return x.to(COMPUTE)


@triton.jit
def prefetch_l2(pointers):
    """Ask for cache lines without waiting for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def in_register(x, ON_CUDA: tl.constexpr):
    """x itself, in a register of each thread. A loop bound that the compiler knows to be the same in all threads is
    compared once for the warp, and the result then moved to a predicate again for every load of a tile."""
    if ON_CUDA:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1)
    else:
        return x


@triton.jit
def differing(x, ON_CUDA: tl.constexpr):
    """x itself, where the compiler cannot see that it is the same in all threads: what is loaded from one place is, and
    a copy does not always hide it. No lane has the highest bit in the mask of the lanes below it."""
    if ON_CUDA:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 none; mov.u32 none, %lanemask_lt; shr.u32 none, none, 31; add.s32 $0, $1, none; }",
            "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        return x


@triton.jit
def same_in_warp(x, ON_CUDA: tl.constexpr):
    """x itself, which is the same in all threads, where the compiler sees that it is (the result of a reduction over
    the warp): addresses that follow from it are then computed once for the warp, as those from the block's place."""
    if ON_CUDA:
        return tl.inline_asm_elementwise(
            "redux.sync.max.s32 $0, $1, 0xffffffff;", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        return x


@triton.jit
def to_compute(q, COMPUTE: tl.constexpr):
    """Queries in the matrix products' type; into fp16 with its range enforced rather than infinities."""
    if tl.float16 == COMPUTE and q.dtype != tl.float16:
        q = tl.minimum(tl.maximum(q.to(tl.float32), -65504.0), 65504.0)
    return q.to(COMPUTE)


@triton.jit
def product(a, b, acc, OPERAND: tl.constexpr):
    """acc + a · b, accumulated in fp32."""
    return tl.dot(a.to(OPERAND), b.to(OPERAND), acc, input_precision="ieee")


@triton.jit
def token_of(row, group, Q_LEN: tl.constexpr):
    """Which of its request's tokens a row is. `group`, the query heads of a KV head, is no compile-time constant: one
    kernel, with one speed, serves all."""
    if Q_LEN == 1:
        return row * 0
    else:
        return row // group


@triton.jit
def head_of(row, group, Q_LEN: tl.constexpr):
    """Which of its KV head's query heads a valid row is."""
    if Q_LEN == 1:
        return row
    else:
        return row % group


@triton.jit
def write_empty(
    out_ptr, lse_ptr, row0, token0, q_len, kv_head, group, q_heads, stride_token, stride_head,
    Q_LEN: tl.constexpr, ROWS: tl.constexpr, ROWS_USED: tl.constexpr, D_V: tl.constexpr, DV_BLOCK: tl.constexpr,
):  # fmt: skip
    """The output of rows without keys: 0, log-sum-exp -inf."""
    i = tl.arange(0, ROWS)
    row = row0 + i
    valid = (i < ROWS_USED) & (row < q_len * group)
    head = kv_head * group + head_of(row, group, Q_LEN)
    token = (token0 + token_of(row, group, Q_LEN)).to(tl.int64)
    d = tl.arange(0, DV_BLOCK)
    at = token[:, None] * stride_token + head[:, None] * stride_head + d[None, :]
    zeros = tl.zeros([ROWS, DV_BLOCK], out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, zeros, mask=valid[:, None] & (d < D_V)[None, :])
    if lse_ptr is not None:
        tl.store(lse_ptr + token * q_heads + head, tl.full([ROWS], float("-inf"), tl.float32), mask=valid)


@triton.jit(
    do_not_specialize=["rule", "num_splits", "split_value", "split_unit", "requests", "group", "q_heads", "scale_group"]
)
def stage1_kernel(
    q_ptr,  # [tokens, q_heads, D]
    k_ptr,  # [pages, page, kv_heads, D]
    v_ptr,  # [pages, page, kv_heads, D_V]; not read when SHARED_KV
    out_ptr,  # [tokens, q_heads, D_V]
    lse_ptr,  # [tokens, q_heads] or None
    part_out_ptr,  # [tokens, q_heads, num_splits, D_V] fp32
    part_max_ptr,  # [tokens, q_heads, num_splits] fp32, base-2 units
    part_sum_ptr,  # [tokens, q_heads, num_splits] fp32
    arrived_ptr,  # [requests · kv_heads · row blocks] int32, zero between launches; FUSED only
    seq_lens_ptr,  # [requests]
    table_ptr,  # [requests, pages per request], or the flat index list
    indptr_ptr,  # [requests + 1]; FLAT only
    query_start_ptr,  # [requests + 1] or None: q_len is Q_LEN everywhere
    split_values_ptr,  # [requests] counts or sizes; read under rules BY_COUNTS, BY_SIZES
    sinks_ptr,  # [q_heads] or None
    k_scale_ptr,
    v_scale_ptr,  # one element for all, or one for each KV head; or None
    record_ptr,
    scale_log2,  # softmax scale · log2 e (with SOFTCAP: the softmax scale / cap)
    softcap_log2,  # cap · log2 e
    v_scale,
    rule,
    split_value,
    split_unit,
    num_splits,
    requests,
    group,  # query heads of a KV head
    q_heads,
    q_stride_token,
    q_stride_head,
    k_stride_page,
    k_stride_slot,
    k_stride_head,
    v_stride_page,
    v_stride_slot,
    v_stride_head,
    out_stride_token,
    out_stride_head,
    table_stride,
    list_ptr,  # [1 + entries, ENTRY_FIELDS] int32; LISTED only
    scale_group,  # query heads that share an element of the scales
    ROW_BLOCKS: tl.constexpr,  # of a KV head
    Q_LEN: tl.constexpr,  # the longest
    D: tl.constexpr,
    D1: tl.constexpr,  # K is read as two blocks, elements [0, D1) and [D1, D1 + D2): 96 = 64 + 32 without padding
    D2: tl.constexpr,
    D_V: tl.constexpr,
    DV_BLOCK: tl.constexpr,
    SHARED_KV: tl.constexpr,  # the value is the key's first D1 elements (MLA): read once
    SAME_LAYOUT: tl.constexpr,  # K and V have the same strides: one offset serves both
    WIDE: tl.constexpr,  # offsets into the cache need 64 bits
    V_PAIRS: tl.constexpr,  # values of one byte travel in pairs (unpack_pairs)
    PAGE: tl.constexpr,
    PAGE_SHIFT: tl.constexpr,  # log2 of PAGE, -1 when it is no power of two
    FLAT: tl.constexpr,
    HOLES: tl.constexpr,  # table entries below 0 name no page: what they stand for is left out
    WINDOW: tl.constexpr,  # keys a token sees, itself included; 0 is all
    CLAMP: tl.constexpr,  # the partition starts at the window, not at key 0
    SOFTCAP: tl.constexpr,
    TILE: tl.constexpr,  # keys per loop iteration
    ROWS: tl.constexpr,  # query rows per block, padded (the tensor cores take at least 16)
    ROWS_USED: tl.constexpr,  # of which used
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,  # element type that operands of the matrix products are rounded to
    OPERAND: tl.constexpr,  # and are multiplied in: the same, but fp32 in the interpreter, which has no bf16 product
    P_PARTS: tl.constexpr,  # 2: weights as high + low parts, 1: rounded to COMPUTE
    DIRECT: tl.constexpr,
    FUSED: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    MERGE_SPLITS: tl.constexpr,
    RECORD: tl.constexpr,
    ON_CUDA: tl.constexpr,
    PDL: tl.constexpr,
    LATE: tl.constexpr,  # let the next launch's blocks come when this one's loops end, not when they begin
    LISTED: tl.constexpr,
):
    """Grid (KV heads · row blocks, requests, splits); extra values of axis 1 exit at once. LISTED: axes 1 and 2 (1
    fastest) count the list of live splits, and blocks past its end exit at once."""
    kv_head = tl.program_id(0) // ROW_BLOCKS
    row_block = tl.program_id(0) % ROW_BLOCKS
    t0 = 0
    if RECORD and ON_CUDA:
        t0 = globaltimer()
    if PDL:
        gdc_wait()  # whatever ran before may have written anything we read
        if not LATE:
            gdc_launch_dependents()
    if LISTED:
        item = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        entry = list_ptr + (item + 1) * ENTRY_FIELDS
        entries = tl.load(list_ptr)
        request = tl.load(entry)
        split = tl.load(entry + 1)
        start = tl.load(entry + 2)
        end = tl.load(entry + 3)
        if item >= entries:
            if RECORD:  # behind the places of all splits
                record_block(record_ptr, 0, 0, 1, t0, ON_CUDA, num_splits * requests + item - entries)
            return
        request = same_in_warp(request, ON_CUDA)
        split = same_in_warp(split, ON_CUDA)
    else:
        request = tl.program_id(1)
        split = tl.program_id(2)
        if request >= requests:
            if RECORD:
                record_block(record_ptr, 0, 0, 1, t0, ON_CUDA)
            return

    # ---- what this block walks
    seq_len = tl.load(seq_lens_ptr + request)
    if query_start_ptr is not None:
        token0 = tl.load(query_start_ptr + request)
        q_len = tl.load(query_start_ptr + request + 1) - token0
    else:
        token0 = request * Q_LEN
        q_len = Q_LEN
    begin = first_key(seq_len, q_len, WINDOW, CLAMP)
    keys_total = seq_len - begin
    split_keys = split_keys_for(request, keys_total, split_values_ptr, rule, split_value, split_unit)
    row0 = row_block * ROWS_USED
    has_rows = row0 < q_len * group
    if DIRECT:
        # The only split of an empty request must still write its zeros.
        alive = has_rows
    elif LISTED:
        alive = has_rows & (start < end)
    else:
        alive = has_rows & is_live(split, split_keys, keys_total)
    if not alive:
        if FUSED:  # noqa: SIM102 (known at compile time)
            if has_rows & (split == 0):  # an empty request: nobody will merge it, so its zeros are written here
                write_empty(
                    out_ptr, lse_ptr, row0, token0, q_len, kv_head, group, q_heads, out_stride_token,
                    out_stride_head, Q_LEN, ROWS, ROWS_USED, D_V, DV_BLOCK,
                )  # fmt: skip
        if RECORD:
            if LISTED:
                record_block(record_ptr, 0, 0, 1, t0, ON_CUDA, split * requests + request)
            else:
                record_block(record_ptr, 0, 0, 1, t0, ON_CUDA)
        return
    if DIRECT:
        start = begin
        end = seq_len
    elif not LISTED:
        start = begin + split * split_keys
        end = split_end(start, split_keys, seq_len)
    start = walk_start(start, seq_len, q_len, WINDOW, TILE)
    if LISTED and (V_PAIRS or TILE < 64):  # elsewhere a copy suffices, and the loop is a little shorter
        end = differing(end, ON_CUDA)
    else:
        end = in_register(end, ON_CUDA)

    # ---- first page numbers and the queries
    if FLAT:
        table_row = table_ptr + tl.load(indptr_ptr + request)
    else:
        table_row = table_ptr + request.to(tl.int64) * table_stride
    n = tl.arange(0, TILE)
    first_pages = page_index(start, PAGE, PAGE_SHIFT, FLAT)
    pages = tl.load(table_row + page_index(start + n, PAGE, PAGE_SHIFT, FLAT), mask=start + n < end, other=0)  # [TILE]
    first_page = tl.load(table_row + first_pages, mask=start < end, other=0)
    if ON_CUDA:
        # The split's later table entries, a cache line of 32 each, come while the first keys do.
        line = first_pages + 32 * (1 + tl.arange(0, 32))
        prefetch_l2(table_row + tl.minimum(line, tl.maximum(page_index(end - 1, PAGE, PAGE_SHIFT, FLAT), 0)))

    i = tl.arange(0, ROWS)
    # Rows past the last repeat it and are not stored: a mask would cost a predicate throughout the loop.
    row = tl.minimum(row0 + i, q_len * group - 1)
    head = kv_head * group + head_of(row, group, Q_LEN)
    token = token0 + token_of(row, group, Q_LEN)
    # Row r sees keys up to its own token's place.
    limit = seq_len - q_len + 1 + token_of(row, group, Q_LEN)  # [ROWS] end of visible keys
    d1 = tl.arange(0, D1)
    q_rows = q_ptr + token.to(tl.int64) * q_stride_token + head * q_stride_head
    used = (i < ROWS_USED)[:, None]
    q1 = to_compute(tl.load(q_rows[:, None] + d1[None, :], mask=used, other=0.0), COMPUTE)  # [ROWS, D1]
    if D2 > 0:
        d2 = D1 + tl.arange(0, D2)
        used2 = used & (d2 < D)[None, :]
        q2 = to_compute(tl.load(q_rows[:, None] + d2[None, :], mask=used2, other=0.0), COMPUTE)  # [ROWS, D2]
    d_v = tl.arange(0, DV_BLOCK)
    k_base = k_ptr + kv_head.to(tl.int64) * k_stride_head
    v_base = v_ptr + kv_head.to(tl.int64) * v_stride_head
    if k_scale_ptr is not None:
        scale_log2 *= tl.load(k_scale_ptr + kv_head * group // scale_group)

    m = tl.full([ROWS], float("-inf"), tl.float32)
    # Sums are kept per column of the tile and reduced after the loop: one cross-warp reduction less per tile.
    sums = tl.zeros([ROWS, TILE], tl.float32)
    if V_PAIRS:
        acc = tl.zeros([ROWS, DV_BLOCK // 2], tl.float32)  # elements 0, 2, 4 …
        acc_odd = tl.zeros([ROWS, DV_BLOCK // 2], tl.float32)
        v_pairs = v_base.to(tl.pointer_type(tl.int16))
    else:
        acc = tl.zeros([ROWS, DV_BLOCK], tl.float32)
    # A row can be without visible keys in a tile only when rows see different keys, or a list has holes.
    UNEVEN: tl.constexpr = (Q_LEN > 1) or (WINDOW > 0) or HOLES

    # Keys past the end are computed and then masked; they are loaded from the split's first key, which is data.
    TILE_OF_PAGES: tl.constexpr = FLAT or TILE % PAGE == 0
    slots = slot_offset(start + n, k_stride_slot, PAGE, PAGE_SHIFT, FLAT)  # the same in every tile if TILE_OF_PAGES
    first = page_offset(first_page, k_stride_page, k_stride_slot, FLAT, WIDE)
    first += slot_offset(start, k_stride_slot, PAGE, PAGE_SHIFT, FLAT)
    if not SAME_LAYOUT:
        v_slots = slot_offset(start + n, v_stride_slot, PAGE, PAGE_SHIFT, FLAT)
        v_first = page_offset(first_page, v_stride_page, v_stride_slot, FLAT, WIDE)
        v_first += slot_offset(start, v_stride_slot, PAGE, PAGE_SHIFT, FLAT)

    for tile in tl.range(start, end, TILE, num_stages=STAGES):
        keys = tile + n
        valid = keys < end
        if HOLES:
            valid = valid & (pages >= 0)
        if not TILE_OF_PAGES:
            slots = slot_offset(keys, k_stride_slot, PAGE, PAGE_SHIFT, FLAT)
        offset = tl.where(valid, page_offset(pages, k_stride_page, k_stride_slot, FLAT, WIDE) + slots, first)  # [TILE]
        k_rows = k_base + offset
        k1 = load_rows(k_rows, d1, valid, D1, D1, HOLES)  # [TILE, D1]
        if D2 > 0:
            k2 = load_rows(k_rows, d2, valid, D, D2, HOLES)  # [TILE, D2]
        if not SHARED_KV:
            if not SAME_LAYOUT:
                if not TILE_OF_PAGES:
                    v_slots = slot_offset(keys, v_stride_slot, PAGE, PAGE_SHIFT, FLAT)
                offset = page_offset(pages, v_stride_page, v_stride_slot, FLAT, WIDE) + v_slots
                offset = tl.where(valid, offset, v_first)
            if V_PAIRS:
                pair = tl.arange(0, DV_BLOCK // 2)
                v = load_rows(v_pairs + (offset >> 1), pair, valid, D_V // 2, DV_BLOCK // 2, HOLES)
            else:
                v = load_rows(v_base + offset, d_v, valid, D_V, DV_BLOCK, HOLES)  # [TILE, DV_BLOCK]
        pages = tl.load(table_row + page_index(tl.minimum(keys + TILE, end - 1), PAGE, PAGE_SHIFT, FLAT))

        s = product(
            q1, tl.trans(widen(k1, COMPUTE, ON_CUDA)), tl.zeros([ROWS, TILE], tl.float32), OPERAND
        )  # [ROWS, TILE]
        if D2 > 0:
            s = product(q2, tl.trans(widen(k2, COMPUTE, ON_CUDA)), s, OPERAND)
        if SOFTCAP:
            # cap · tanh(score / cap), with tanh(x) = 1 - 2 / (1 + e^2x) of x = score / cap
            s = softcap_log2 * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * (s * scale_log2))))
        elif UNEVEN:
            s *= scale_log2
        else:
            # Scaled and masked in one: an infinity to add for keys past the end.
            s = s * scale_log2 + tl.where(valid, 0.0, float("-inf"))[None, :]
        if UNEVEN:
            see = valid[None, :] & (keys[None, :] < limit[:, None])
            if WINDOW > 0:
                see = see & (keys[None, :] >= limit[:, None] - WINDOW)
            s = tl.where(see, s, float("-inf"))
        elif SOFTCAP:
            s = tl.where(valid[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        if UNEVEN:
            m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing seen yet: keep 2^(-inf - x) = 0
        else:
            m_ref = m_new
        p = tl.exp2(s - m_ref[:, None])
        alpha = tl.exp2(m - m_ref)
        m = m_new
        sums = sums * alpha[:, None] + p
        acc = acc * alpha[:, None]
        p_high = p.to(COMPUTE)
        if V_PAIRS:
            v_even, v_odd = unpack_pairs(v, v_ptr.dtype.element_ty)
            acc = product(p_high, v_even, acc, OPERAND)
            acc_odd = product(p_high, v_odd, acc_odd * alpha[:, None], OPERAND)
        else:
            if SHARED_KV:
                v_c = widen(k1, COMPUTE, ON_CUDA)
            else:
                v_c = widen(v, COMPUTE, ON_CUDA)
            acc = product(p_high, v_c, acc, OPERAND)
        if P_PARTS == 2:
            p_low = (p - p_high.to(tl.float32)).to(COMPUTE)
            if V_PAIRS:
                acc = product(p_low, v_even, acc, OPERAND)
                acc_odd = product(p_low, v_odd, acc_odd, OPERAND)
            else:
                acc = product(p_low, v_c, acc, OPERAND)

    if PDL and LATE:
        gdc_launch_dependents()
    sums = tl.sum(sums, 1)  # [ROWS]
    if V_PAIRS:
        acc = tl.reshape(tl.join(acc, acc_odd), [ROWS, DV_BLOCK])
    row_valid = (i < ROWS_USED) & (row0 + i < q_len * group)
    if ROWS > 64:  # rows anew rather than kept through the loop, where they would be spilled
        row = row0 + i
        head = kv_head * group + head_of(row, group, Q_LEN)
        token = token0 + token_of(row, group, Q_LEN)
    token_row = token.to(tl.int64)
    v_mask = row_valid[:, None] & (d_v < D_V)[None, :]
    out_at = out_ptr + token_row[:, None] * out_stride_token + head[:, None] * out_stride_head + d_v[None, :]
    if DIRECT:
        if v_scale_ptr is not None:
            v_scale *= tl.load(v_scale_ptr + kv_head * group // scale_group)
        sink = load_sink(sinks_ptr, head, row_valid, sinks_ptr is not None)
        m_all = tl.maximum(m, sink)
        m_ref = tl.where(m_all == float("-inf"), 0.0, m_all)
        alpha = tl.exp2(m - m_ref)
        total = sums * alpha + tl.exp2(sink - m_ref)
        out = tl.where((sums > 0)[:, None], acc * (alpha / total)[:, None], 0.0) * v_scale
        tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=v_mask)
        if lse_ptr is not None:
            lse = tl.where(seq_len > 0, (m_ref + tl.log2(total)) * LN2, float("-inf"))
            tl.store(lse_ptr + token_row * q_heads + head, lse, mask=row_valid)
    else:
        state = (token_row * q_heads + head) * num_splits + split  # [ROWS]
        tl.store(part_max_ptr + state, m, mask=row_valid)
        tl.store(part_sum_ptr + state, sums, mask=row_valid)
        tl.store(part_out_ptr + state[:, None] * D_V + d_v[None, :], acc, mask=v_mask)
        if FUSED:
            expected = live_splits(keys_total, split_keys)
            counter = arrived_ptr + request * tl.num_programs(0) + tl.program_id(0)
            tl.debug_barrier()  # every thread's stores come before the one thread's release
            arrived = tl.atomic_add(counter, 1, sem="acq_rel")
            if arrived == expected - 1:
                tl.store(counter, 0)  # ready for the next launch (or graph replay)
                j = tl.arange(0, MERGE_ROWS)
                mrow = row0 + j
                mvalid = (j < ROWS_USED) & (mrow < q_len * group)
                mhead = kv_head * group + head_of(mrow, group, Q_LEN)
                mtoken = (token0 + token_of(mrow, group, Q_LEN)).to(tl.int64)
                msink = load_sink(sinks_ptr, mhead, mvalid, sinks_ptr is not None)
                merged, lse = merge_rows(
                    (mtoken * q_heads + mhead) * num_splits, mvalid, msink,
                    part_out_ptr, part_max_ptr, part_sum_ptr,
                    tl.minimum(expected, num_splits), d_v, D_V, MERGE_ROWS, MERGE_SPLITS, DV_BLOCK,
                )  # fmt: skip
                if v_scale_ptr is not None:
                    v_scale *= tl.load(v_scale_ptr + kv_head * group // scale_group)
                merged *= v_scale
                at = mtoken[:, None] * out_stride_token + mhead[:, None] * out_stride_head + d_v[None, :]
                tl.store(
                    out_ptr + at,
                    merged.to(out_ptr.dtype.element_ty),
                    mask=mvalid[:, None] & (d_v < D_V)[None, :],
                )
                if lse_ptr is not None:
                    tl.store(lse_ptr + mtoken * q_heads + mhead, lse * LN2, mask=mvalid)
    if RECORD:
        # A live split whose keys all lie before the window walked nothing.
        if LISTED:
            record_block(record_ptr, tl.minimum(start, end), end, 0, t0, ON_CUDA, split * requests + request)
        else:
            record_block(record_ptr, tl.minimum(start, end), end, 0, t0, ON_CUDA)

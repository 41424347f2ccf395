"""flashmla: DeepSeek's dense MLA decode for Hopper, which deals blocks of 64 keys to SM parts one after another.

A one-block kernel walks the requests in order and fills each SM part up to a payload of blocks, every request counting
5 blocks more than it has. A request can be cut over several parts and one part can serve several requests, so the
split counts of equal requests differ and `num_splits` is a cumulative array of B + 1 entries. The result depends on
every length of the batch: it is computed once per step and serves all layers of that step, and no other step.

Read from deepseek-ai/FlashMLA: csrc/smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu (the walk),
csrc/api/dense_decode.h (SM parts, checks, buffers), csrc/sm90/decode/dense/splitkv_mla.cuh and
csrc/smxx/decode/combine/combine.cu (grids).

In a sweep, where one class stands for many equal requests, `requested` and `live` are the most that any of them gets;
a single plan has every request's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.flashmla.walk import BLOCK_KEYS, OVERHEAD_BLOCKS, Pieces, SmPart, deal, deal_one
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.plan import KeyRange
from decodecalc.launch.policy import Policy, PolicyVersion

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

BLOCK_ROWS = 64  # query rows of a block: BLOCK_SIZE_M
V_DIM = 512
COMBINE_HEADS = 8  # heads of a combine block: BLOCK_SIZE_M there
MAX_COMBINE_PARTS = 160  # MLA_NUM_SPLITS_SWITCH in combine.cu aborts above it


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs between versions.

    least_payload: lower bound of an SM part's payload. empty_blocks: blocks that a request without keys counts for.
    combine_axes: the combine grid as rows (batch x query tokens), tokens (batch, query tokens) or packed (batch, rows).
    words_per_request: ints that the metadata kernel keeps in shared memory for each request.
    """

    least_payload: int = 0
    empty_blocks: int = 1
    combine_axes: str = "rows"
    words_per_request: int = 5


@dataclass(frozen=True, slots=True)
class FlashMlaDetail:
    """The schedule in FlashMLA's words.

    sm_parts: what each part that has work serves (a single plan only). splits_per_request: partial results of each
    request, at least 1. total_blocks_with_overhead: blocks of 64 keys plus 5 for each request.
    """

    num_sm_parts: Any
    payload_blocks: Any
    total_blocks_with_overhead: Any
    used_parts: Any
    splits_per_request: Any
    sm_parts: tuple[SmPart, ...] | None

    @property
    def num_splits(self) -> tuple[int, ...]:
        """The engine's `num_splits`: cumulative, B + 1 entries. Not a count per request."""
        return (0, *accumulate(self.splits_per_request))


class FlashMla(Policy):
    """Blocks of keys dealt to SM parts. `launched` is the number of parts, which all requests share."""

    name = "flashmla"
    title = "FlashMLA dense decode (SM90)"
    word_for_split = "SM part"
    versions = (
        PolicyVersion("2026-04-29", "deepseek-ai/FlashMLA@9241ae3", ("2026-04-29", "2026-04-29"), Rules()),
        PolicyVersion(
            "2026-01-16",
            "deepseek-ai/FlashMLA@082094b",
            ("2026-01-16", "2026-04-28"),
            Rules(combine_axes="tokens"),
            "the combine grid keeps batch and query tokens apart",
        ),
        PolicyVersion(
            "2025-09-24",
            "deepseek-ai/FlashMLA@c28eca9: csrc/smxx/get_mla_metadata.cu, mla_combine.cu, csrc/pybind.cpp",
            ("2025-09-24", "2026-01-15"),
            Rules(combine_axes="packed"),
            "the combine grid packs heads and query tokens",
        ),
        PolicyVersion(
            "2025-04-22",
            "deepseek-ai/FlashMLA@c2067be: csrc/kernels/get_mla_metadata.cu, mla_combine.cu",
            ("2025-04-22", "2025-09-23"),
            Rules(2 * OVERHEAD_BLOCKS, empty_blocks=0, combine_axes="packed", words_per_request=2),
            "an SM part's payload is at least 10 blocks",
        ),
    )
    rule = (
        "parts = max(SMs // kv_heads // ceil(q * group / 64), 1); payload = ceil(sum(ceil(L / 64) + 5) / parts) + 5 "
        "blocks; requests are dealt to the parts in order, a request costs its remaining blocks + 5"
    )

    def launches(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion
    ) -> Launches:
        """The walk on arrays. GateError: anything but dense MLA of 576/512 in pages of 64 on SM90."""
        _check(geo, batches, kv, gpu)
        rules: Rules = version.rules
        rows = batches.max_q_len * geo.group
        m_blocks = cdiv(rows, BLOCK_ROWS)
        parts = np.maximum(gpu.sm_count // geo.kv_heads // m_blocks, 1)
        has_keys = batches.seq_lens > 0
        blocks = np.where(has_keys, cdiv(batches.seq_lens, BLOCK_KEYS), rules.empty_blocks)
        total = batches.total(blocks + OVERHEAD_BLOCKS)
        payload = np.maximum(cdiv(total, parts) + OVERHEAD_BLOCKS, rules.least_payload)
        sm_parts = None
        if batches.n == 1:
            sm_parts = deal_one(blocks[0], batches.counts[0], batches.seq_lens[0], payload.item(), parts.item())
            pieces = _pieces_of(sm_parts, batches.counts)
        else:
            pieces = _deal_unique(blocks, batches.counts, payload, parts)
        is_split = pieces.most.max(axis=1) > 1
        columns = (m_blocks * geo.kv_heads)[:, None]
        smem = 4 * (rules.words_per_request * batches.batch + 1)
        state_rows = (batches.batch + parts) * geo.q_heads * batches.max_q_len
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray("get_mla_metadata_kernel", "scheduler", (1, 1, 1), 32, 1),
                KernelArray(
                    "flash_fwd_splitkv_mla_kernel",
                    "stage1",
                    (m_blocks, geo.kv_heads, parts),
                    256,
                    m_blocks * geo.kv_heads * pieces.used_parts,
                    BLOCK_KEYS,
                ),
                KernelArray(
                    "flash_fwd_mla_combine_kernel",
                    "merge",
                    _combine_grid(rules.combine_axes, geo, batches),
                    COMBINE_HEADS * 32,
                    pieces.split_requests * batches.max_q_len * cdiv(geo.q_heads, COMBINE_HEADS),
                ),
            ),
            requested=pieces.most,
            launched=parts,
            live=np.where(has_keys, pieces.most, 0),
            split_keys=np.minimum(np.maximum(blocks, 1), np.maximum(payload - OVERHEAD_BLOCKS, 1)[:, None])
            * BLOCK_KEYS,
            blocks_per_split=np.broadcast_to(columns, blocks.shape),
            unsplit_blocks=batches.total(columns * has_keys),
            tile_keys=BLOCK_KEYS,
            block_rows=BLOCK_ROWS,
            live_rows=np.minimum(rows, BLOCK_ROWS),
            state_values=V_DIM + 1,
            partial_splits=np.where(has_keys & (pieces.most > 1), pieces.most, 0),
            shared_slots=True,
            scratch_bytes=state_rows * (V_DIM + 1) * 4,
            determinism="batch-dependent",
            detail=FlashMlaDetail(parts, payload, total, pieces.used_parts, pieces.most, sm_parts),
            gates=(
                GateArray(
                    "split",
                    is_split,
                    lambda n: (
                        f"{at(total, n)} blocks, {OVERHEAD_BLOCKS} of each request included, over {at(parts, n)} SM "
                        f"parts: a payload of {at(payload, n)} fills {at(pieces.used_parts, n)} parts"
                    ),
                ),
                GateArray(
                    "combine_supported",
                    parts <= MAX_COMBINE_PARTS,
                    lambda n: f"{at(parts, n)} SM parts; the combine kernel aborts above {MAX_COMBINE_PARTS}",
                ),
                GateArray(
                    "metadata_fits",
                    True if gpu.max_smem_bytes_per_block is None else smem <= gpu.max_smem_bytes_per_block,
                    lambda n: (
                        f"{at(smem, n)} bytes of shared memory for {at(batches.batch, n)} requests, "
                        f"{gpu.max_smem_bytes_per_block or 'an unknown number'} fit"
                    ),
                ),
                GateArray(
                    "scheduler_metadata",
                    True,
                    lambda n: "valid for these lengths only: a step with others needs its own (vLLM #21691, #36611)",
                ),
            ),
            key_ranges=lambda n: _key_ranges(
                batches,
                sm_parts or deal_one(blocks[n], batches.counts[n], batches.seq_lens[n], at(payload, n), at(parts, n)),
                n,
            ),
        )


def _check(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu) -> None:
    if not geo.mla:
        raise GateError("flashmla: needs an MLA geometry (one latent per key that is both key and value)", "not_mla")
    if geo.head_dim not in (576, 512) or geo.v_dim != V_DIM:
        raise GateError(
            f"flashmla: latents of 576 or 512 with values of 512, not {geo.head_dim}/{geo.v_dim}", "head_dim"
        )
    if geo.window is not None:
        raise GateError("flashmla: dense decode has no sliding window", "window")
    if kv.page_size != BLOCK_KEYS:
        raise GateError(f"flashmla: pages must hold {BLOCK_KEYS} keys, not {kv.page_size}: start-up error", "page_size")
    if kv.dtype not in ("bf16", "fp16") or kv.query_dtype != kv.dtype:
        raise GateError(
            f"flashmla: bf16 or fp16 with keys and queries alike, not {kv.dtype} keys and {kv.query_dtype} queries",
            "dtype",
        )
    if gpu.is_hip or not gpu.is_sm(90):
        raise GateError(f"flashmla: dense decode runs on SM90 (Hopper) only, not {gpu.label}", "not_sm90")
    if not (batches.q_lens == batches.max_q_len[:, None]).all():
        raise GateError("flashmla: every request needs the same number of query tokens", "ragged_q_len")


def _combine_grid(axes: str, geo: Geometry, batches: Batches) -> tuple[Any, Any, Any]:
    heads = cdiv(geo.q_heads, COMBINE_HEADS)
    if axes == "rows":
        return batches.batch * batches.max_q_len, 1, heads
    if axes == "tokens":
        return batches.batch, batches.max_q_len, heads
    return batches.batch, cdiv(geo.q_heads * batches.max_q_len, COMBINE_HEADS), 1


def _deal_unique(blocks: Any, counts: Any, payload: Any, parts: Any) -> Pieces:
    """`deal` on the distinct steps of a sweep: contexts of the same number of blocks are one."""
    if len(blocks) == 1 or blocks.shape[1] > 1:
        return deal(blocks, counts, payload, parts)
    keys = (blocks[:, 0] * (counts.max() + 1) + counts[:, 0]) * (parts.max() + 1) + parts
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    found, back = deal(blocks[first], counts[first], payload[first], parts[first]), back.reshape(-1)
    return Pieces(found.most[back], found.used_parts[back], found.split_requests[back])


def _pieces_of(sm_parts: tuple[SmPart, ...], counts: Any) -> Pieces:
    """The same counts from the parts of a single step, where requests of a class are told apart."""
    splits = np.zeros(counts.sum(), dtype=np.int64)
    for part in sm_parts:
        splits[part.begin_req_idx : part.end_req_idx + 1] += 1
    ends = np.cumsum(counts[0])
    most = [splits[end - n : end].max(initial=0) for end, n in zip(ends, counts[0])]
    return Pieces(np.array([most]), np.array([len(sm_parts)]), np.array([(splits > 1).sum()]))


def _key_ranges(batches: Batches, sm_parts: tuple[SmPart, ...], n: int) -> list[list[KeyRange]]:
    """Key ranges of every request of step n, equal requests one after another."""
    lens = np.repeat(batches.seq_lens[n], batches.counts[n]).tolist()
    ranges: list[list[KeyRange]] = [[] for _ in lens]
    for part in sm_parts:
        for r in range(part.begin_req_idx, part.end_req_idx + 1):
            start = part.begin_block_idx * BLOCK_KEYS if r == part.begin_req_idx else 0
            end = min(part.end_block_idx * BLOCK_KEYS, lens[r]) if r == part.end_req_idx else lens[r]
            if start < end:
                ranges[r].append((start, end))
    return ranges


POLICY = FlashMla()

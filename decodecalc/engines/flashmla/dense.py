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
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flashmla.schedule import schedule
from decodecalc.engines.flashmla.walk import BLOCK_KEYS, OVERHEAD_BLOCKS, SmPart
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SAME, SIXTEEN_BITS, Takes, only
from decodecalc.launch.traits import IRREGULAR, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

BLOCK_ROWS = 64  # query rows of a block: BLOCK_SIZE_M
V_DIM = 512
COMBINE_HEADS = 8  # heads of a combine block: BLOCK_SIZE_M there
MAX_COMBINE_PARTS = 160  # MLA_NUM_SPLITS_SWITCH in combine.cu aborts above it


@dataclass(frozen=True, slots=True)
class FlashMlaRules:
    """The differences between versions."""

    least_payload: int = 0
    """Lower bound of an SM part's payload."""
    empty_blocks: int = 1
    """Blocks that a request without keys counts for."""
    combine_axes: str = "rows"
    """The combine grid: `rows` (batch x query tokens), `tokens` (batch, query tokens) or `packed` (batch, rows)."""
    words_per_request: int = 5
    """Integers that the metadata kernel keeps in shared memory for each request."""


class FlashMlaDetail(NamedTuple):
    """The schedule under FlashMLA's own names."""

    num_sm_parts: Any
    """SM parts of the launch [N]."""
    payload_blocks: Any
    """Blocks that an SM part takes at most [N]."""
    total_blocks_with_overhead: Any
    """Blocks of 64 keys of all requests, plus 5 for each request [N]."""
    used_parts: Any
    """SM parts with work [N]."""
    splits_per_request: Any
    """Partial results of each request, at least 1 [N, R]."""
    sm_parts: tuple[SmPart, ...] | None
    """The requests and blocks that each part with work serves, of a single plan only."""

    @property
    def num_splits(self) -> tuple[int, ...]:
        """The engine's `num_splits`, which is cumulative with B + 1 entries and not a count per request."""
        return (0, *accumulate(self.splits_per_request))


class FlashMla(Policy):
    """Blocks of keys dealt to SM parts. `launched` is the number of parts, which all requests share."""

    name = "flashmla"
    title = "FlashMLA dense decode (SM90)"
    word_for_split = "SM part"
    versions = (
        PolicyVersion("2026-04-29", "deepseek-ai/FlashMLA@9241ae3", ("2026-04-29", "2026-04-29"), FlashMlaRules()),
        PolicyVersion(
            "2026-01-16",
            "deepseek-ai/FlashMLA@082094b",
            ("2026-01-16", "2026-04-28"),
            FlashMlaRules(combine_axes="tokens"),
            "the combine grid keeps batch and query tokens apart",
        ),
        PolicyVersion(
            "2025-09-24",
            "deepseek-ai/FlashMLA@c28eca9: csrc/smxx/get_mla_metadata.cu, mla_combine.cu, csrc/pybind.cpp",
            ("2025-09-24", "2026-01-15"),
            FlashMlaRules(combine_axes="packed"),
            "the combine grid packs heads and query tokens",
        ),
        PolicyVersion(
            "2025-04-22",
            "deepseek-ai/FlashMLA@c2067be: csrc/kernels/get_mla_metadata.cu, mla_combine.cu",
            ("2025-04-22", "2025-09-23"),
            FlashMlaRules(2 * OVERHEAD_BLOCKS, empty_blocks=0, combine_axes="packed", words_per_request=2),
            "an SM part's payload is at least 10 blocks",
        ),
    )
    rule = (
        "parts = max(SMs // kv_heads // ceil(q * group / 64), 1); payload = ceil(sum(ceil(L / 64) + 5) / parts) + 5 "
        "blocks; requests are dealt to the parts in order, a request costs its remaining blocks + 5"
    )
    traits = Traits(server_names=("FLASHMLA", "flashmla"), partition=Partition(rule=IRREGULAR), returns_lse=True)

    def combinations(self, options: Any, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        return (
            Takes(
                devices=("sm90",),
                mla=True,
                windows=False,
                cache_dtypes=SIXTEEN_BITS,
                query_dtypes=SAME,
                head_dims=only(576, 512),
                value_dims=only(V_DIM),
                page_sizes=only(BLOCK_KEYS),
            ),
        )

    def launches(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion
    ) -> Launches:
        """Apply the walk to arrays. Raises GateError for anything but dense MLA of 576/512 in pages of 64 on SM90."""
        _check(geo, batches, kv, gpu)
        rules: FlashMlaRules = version.rules
        rows = batches.max_q_len * geo.group
        m_blocks = cdiv(rows, BLOCK_ROWS)
        parts = np.maximum(gpu.sm_count // geo.kv_heads // m_blocks, 1)
        has_keys = batches.seq_lens > 0
        found = schedule(
            keys=batches.seq_lens,
            counts=batches.counts,
            parts=parts,
            least_payload=rules.least_payload,
            empty_blocks=rules.empty_blocks,
        )
        payload, total, pieces, is_split = found.payload, found.total, found.pieces, found.is_split
        columns = (m_blocks * geo.kv_heads)[:, None]
        smem = 4 * (rules.words_per_request * batches.batch + 1)
        state_rows = (batches.batch + parts) * geo.q_heads * batches.max_q_len
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name="get_mla_metadata_kernel", role="scheduler", grid=(1, 1, 1), threads=32, live_blocks=1
                ),
                KernelArray(
                    name="flash_fwd_splitkv_mla_kernel",
                    role="stage1",
                    grid=(m_blocks, geo.kv_heads, parts),
                    threads=256,
                    live_blocks=m_blocks * geo.kv_heads * pieces.used_parts,
                    tile_keys=BLOCK_KEYS,
                ),
                KernelArray(
                    name="flash_fwd_mla_combine_kernel",
                    role="merge",
                    grid=_combine_grid(rules.combine_axes, geo, batches, batches.batch),
                    threads=COMBINE_HEADS * 32,
                    live_blocks=prod(_combine_grid(rules.combine_axes, geo, batches, pieces.split_requests)),
                ),
            ),
            requested=found.requested,
            launched=parts,
            live=found.live,
            split_keys=found.split_keys,
            blocks_per_split=np.broadcast_to(columns, found.blocks.shape),
            unsplit_blocks=batches.total(columns * has_keys),
            tile_keys=BLOCK_KEYS,
            block_rows=BLOCK_ROWS,
            live_rows=np.minimum(rows, BLOCK_ROWS),
            state_values=V_DIM + 1,
            partial_splits=found.partial_splits,
            shared_slots=True,
            scratch_bytes=state_rows * (V_DIM + 1) * 4,
            determinism="batch-dependent",
            detail=FlashMlaDetail(parts, payload, total, pieces.used_parts, pieces.most, found.sm_parts),
            gates=(
                GateArray(
                    "split",
                    is_split,
                    lambda n: (
                        f"{at(total, n)} blocks ({OVERHEAD_BLOCKS} of them added for each request) go to "
                        f"{at(parts, n)} SM "
                        f"parts; a payload of {at(payload, n)} blocks fills {at(pieces.used_parts, n)} of them"
                    ),
                ),
                GateArray(
                    "combine_supported",
                    parts <= MAX_COMBINE_PARTS,
                    lambda n: f"there are {at(parts, n)} SM parts, and the combine kernel aborts above "
                    f"{MAX_COMBINE_PARTS}",
                ),
                GateArray(
                    "metadata_fits",
                    True if gpu.max_smem_bytes_per_block is None else smem <= gpu.max_smem_bytes_per_block,
                    lambda n: (
                        f"{at(batches.batch, n)} requests need {at(smem, n)} bytes of shared memory, and "
                        f"{gpu.max_smem_bytes_per_block or 'an unknown number'} fit"
                    ),
                ),
                GateArray(
                    "scheduler_metadata",
                    True,
                    lambda n: "the schedule is valid for these lengths only, and a step with others needs its "
                    "own (vLLM #21691, #36611)",
                ),
            ),
            key_ranges=found.key_ranges,
            pieces_in_turn=found.pieces_in_turn,
        )


def _check(geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu) -> None:
    if not geo.mla:
        raise GateError("flashmla needs an MLA geometry (one latent per key that is both key and value)", "not_mla")
    if geo.head_dim not in (576, 512) or geo.v_dim != V_DIM:
        raise GateError(
            f"flashmla takes latents of 576 or 512 elements with values of 512, not {geo.head_dim}/{geo.v_dim}",
            "head_dim",
        )
    if geo.window is not None:
        raise GateError("flashmla: dense decode has no sliding window", "window")
    if kv.page_size != BLOCK_KEYS:
        raise GateError(
            f"flashmla: pages must hold {BLOCK_KEYS} keys, not {kv.page_size}; this is an error at start-up",
            "page_size",
        )
    if kv.dtype not in ("bf16", "fp16") or kv.query_dtype != kv.dtype:
        raise GateError(
            f"flashmla takes bf16 or fp16, the same for keys and queries, not {kv.dtype} keys and "
            f"{kv.query_dtype} queries",
            "dtype",
        )
    if gpu.is_hip or not gpu.is_sm(90):
        raise GateError(f"flashmla: dense decode runs on SM90 (Hopper) only, not on {gpu.label}", "not_sm90")
    if not (batches.q_lens == batches.max_q_len[:, None]).all():
        raise GateError("flashmla: every request needs the same number of query tokens", "ragged_q_len")


def _combine_grid(axes: str, geo: Geometry, batches: Batches, requests: Any) -> tuple[Any, Any, Any]:
    """The combine grid of that many requests: of all it is launched, and those that were split have work in it."""
    heads = cdiv(geo.q_heads, COMBINE_HEADS)
    if axes == "rows":
        return requests * batches.max_q_len, 1, heads
    if axes == "tokens":
        return requests, batches.max_q_len, heads
    return requests, cdiv(geo.q_heads * batches.max_q_len, COMBINE_HEADS), 1


POLICY = FlashMla()

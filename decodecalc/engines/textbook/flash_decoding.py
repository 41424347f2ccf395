"""flash-decoding: the rule of 2023 as a reference, as a textbook would state it.

Keys are cut into S equal slices of whole tiles, S being the smallest count whose first wave covers the SMs (S*), capped
so that a slice is at least one tile. Source of the idea: T. Dao, D. Haziza, F. Massa, G. Sizov, "Flash-Decoding for
long-context inference", 2023; no engine ships exactly this rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, next_power_of_2
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, visible_start
from decodecalc.launch.coverage import s_star
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.traits import COUNT, Partition, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

MIN_ROWS, MAX_ROWS = 16, 64  # query rows of a tensor-core tile: the smallest MMA, and one warpgroup


@dataclass(frozen=True, slots=True)
class FlashDecodingOptions(EngineOptions):
    """The tile, and a split count that replaces S*."""

    tile_keys: int = option(64, "int", "keys that one loop iteration loads", low=1)
    num_splits: int | None = option(
        None, "int?", "split count to use instead of S*, the least count that covers the SMs", low=1
    )


class FlashDecoding(Policy):
    """Cuts keys into S* equal slices."""

    name = "flash-decoding"
    title = "FlashDecoding, as the textbook has it"
    versions = (PolicyVersion("2023", "Flash-Decoding for long-context inference (2023): the rule in words"),)
    options_type = FlashDecodingOptions
    traits = Traits(
        by_hand_option="num_splits",
        partition=Partition(rule=COUNT),
        sparse=True,
        vendors=("NVIDIA", "AMD", "Intel"),  # arithmetic that any device could follow
        returns_lse=True,
        folds_queries=True,
    )
    rule = "S = min(ceil(SMs / unsplit blocks), ceil(longest / tile)); every slice ceil(ceil(L / tile) / S) tiles"

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashDecodingOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays."""
        tile = options.tile_keys
        rows = batches.q_lens * geo.group
        block_rows = np.clip(next_power_of_2(batches.max_q_len * geo.group), MIN_ROWS, MAX_ROWS)
        columns = geo.kv_heads * cdiv(rows, block_rows[:, None])
        has_keys = batches.seq_lens > 0
        unsplit = batches.total(columns * has_keys)
        first = visible_start(batches, geo.window) // tile * tile
        keys = batches.seq_lens - first
        covering = s_star(gpu.sm_count, unsplit)
        wanted = covering if options.num_splits is None else np.full_like(covering, options.num_splits)
        count = np.maximum(np.minimum(wanted, cdiv(batches.largest(keys), tile)), 1)
        split_keys = np.maximum(cdiv(cdiv(keys, tile), count[:, None]), 1) * tile
        live = cdiv(keys, split_keys)
        is_split = count > 1
        grid = (batches.batch, batches.largest(columns), count)
        tokens_by_heads = (batches.query_tokens, geo.q_heads)
        state = geo.v_dim + 2
        return Launches(
            is_split=is_split,
            kernels=(
                KernelArray(
                    name="split_kv",
                    role="stage1",
                    grid=grid,
                    threads=128,
                    live_blocks=batches.total(columns * live),
                    tile_keys=tile,
                ),
                KernelArray(
                    name="combine",
                    role="merge",
                    grid=tokens_by_heads,
                    threads=128,
                    live_blocks=batches.query_tokens * geo.q_heads,
                    when=is_split,
                ),
            ),
            requested=count[:, None],
            launched=count,
            live=live,
            split_keys=split_keys,
            first_key=first,
            keys_read=keys,
            blocks_per_split=columns,
            unsplit_blocks=unsplit,
            tile_keys=tile,
            block_rows=block_rows,
            live_rows=np.minimum(batches.max_q_len * geo.group, block_rows),
            state_values=state,
            scratch_bytes=is_split * batches.query_tokens * geo.q_heads * count * state * 4,
            determinism="batch-dependent" if options.num_splits is None else "fixed count",
            gates=(
                GateArray(
                    "split",
                    is_split,
                    lambda n: (
                        f"S* = ceil({gpu.sm_count} SMs / {at(unsplit, n)} blocks) = {at(covering, n)} is capped at "
                        f"{at(cdiv(batches.largest(keys), tile), n)} tiles, so S = {at(count, n)}"
                    ),
                ),
            ),
        )


POLICY = FlashDecoding()

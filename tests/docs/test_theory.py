"""The theory chapter's sentences say what the tool computes."""

from __future__ import annotations

import re
from math import log2
from pathlib import Path

import pytest

import decodecalc as dc
from decodecalc.analysis.paging import expand_page_ids

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "splits.md"
GPU = dc.load_gpu("h100-sxm")
LAYER = dc.load_model("llama3-8b").shard(tp=1).layer_groups[0]
SHARE = dc.load_model("llama3-70b").shard(tp=8).layer_groups[0].geometry


def plan(
    engine: str = "vllm-triton", geo: dc.Geometry = LAYER.geometry, context: int = 2560, **options: object
) -> object:
    """One request of the chapter's scenario."""
    return dc.plan(engine, geo, dc.Batch.uniform(1, context), gpu=GPU, **options)


def sentences() -> list[str]:
    """Every number of the prose, computed; each is a fragment that the page has to contain."""
    geo, layers = LAYER.geometry, LAYER.layers
    split, whole, lone = plan(), plan(batch_invariant=True), plan(geo=SHARE, batch_invariant=True)
    o, lone_o = dc.occupancy(whole), dc.occupancy(lone)
    t, r, p = dc.traffic(split), dc.roofline(split), dc.paging(split)
    keys = split.splits.keys[0]
    first, last, count = keys[0], keys[-1], len(keys) - 1
    per_head = t.partial_state_bytes * split.splits.live[0]
    odd = plan(context=257).splits
    flat = dc.paging(plan("sglang-triton"), dc.KvCache(page_size=1))
    extended = int(132 * log2(2560 / 64))
    wanted, granted = -(-extended // 8), plan("sglang-triton").splits.requested[0]
    batches = (dc.plan("vllm-triton", geo, dc.Batch.uniform(b, 2560), gpu=GPU) for b in range(1, 64))
    flip = next(step.batch.size for step in batches if not step.is_split)
    peak, rate = r.peak_flop_per_s / 1e12, r.hbm_bytes_per_s / 1e12
    return [
        f"({geo.q_heads} query heads, {geo.kv_heads} KV heads, width {geo.head_dim}, {layers} layers)",
        rf"$1 \times 8 = {o.live_blocks}$ blocks: {100 * o.sm_coverage:.2g} % of the SMs",
        f"{SHARE.q_heads} query heads and {SHARE.kv_heads} KV head: one block, {100 * lone_o.sm_coverage:.2g} %",
        rf"$\lceil 132 / 8 \rceil = {o.s_star}$ for the 8B model",
        rf"$\lceil 132 / 1 \rceil = {lone_o.s_star}$ for the 70B rank",
        f"vLLM launches {split.splits.launched} whatever the GPU",
        f"every split has {(first[1] - first[0]) // split.tile_keys} tiles: split 0 walks keys 0 to {first[1] - 1}",
        f"split {count} keys {last[0]} to {last[1] - 1}",
        f"257 keys make {odd.live[0]} live splits of {odd.keys[0][0][1]}",
        f"{per_head} B per (token, head) and {t.partial_written_bytes} B written and as many read",
        f"against {t.kv_read_bytes} B of KV: {100 * t.partial_share:.0f} %",
        f"The merge's {split.merge.launched_blocks} blocks",
        f"{r.intensity_flop_per_byte:g} FLOP per byte for a group of {geo.group} in bf16",
        f"a ridge of {r.ridge_flop_per_byte:.0f} ({peak:.0f} TFLOP/s over {rate:.3g} TB/s)",
        f"{r.memory_bound_factor:.0f} times memory-bound",
        f"the {100 * r.tile.wasted_row_share:.0f} % of tensor-core work",
        f"{p.table_entries} ids of 4 bytes are {p.table_bytes} B",
        f"{100 * flat.table_share:.2g} % of one head's bytes",
        f"ids [0, 1, 2] are {expand_page_ids([0, 1, 2], 2)}",
        f"{128 // geo.kv_heads} for the 8B model, {128 // SHARE.kv_heads} for the 70B rank",
        rf"$e = \lfloor 132 \cdot \log_2 40 \rfloor = {extended}$ and $G = 8$, "
        f"so the rule computes {wanted} and the cap reduces it to {granted}",
        f"the batch of 1 is at most {flip - 1} and the mode is not batch-invariant",
        f"launches ${split.stage1.grid} = {split.stage1.launched_blocks}$ blocks",
        f"with {split.live_rows} live rows",
        f"The merge runs on ${split.merge.grid}$ blocks",
        f"{layers * t.kv_read_bytes / 1e6:.1f} MB of KV, {layers * t.partial_traffic_bytes / 1e6:.0f} MB of states",
        f"and {layers * len(split.kernels)} launches for one token",
        f"lets {split.live_blocks - whole.live_blocks} more SMs load them",
        f"Batch {flip - 1} against {flip} flips",
    ]


@pytest.mark.parametrize("said", sentences())
def test_the_prose_has_the_numbers_that_the_tool_computes(said: str) -> None:
    """Line breaks aside, the fragment stands in the page."""
    page = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    assert re.sub(r"\s+", " ", said) in page


def test_shares_named_in_words_are_those_shares() -> None:
    """At 512 keys the states move a quarter of the KV bytes, at 128 keys half."""
    assert dc.traffic(plan(context=512)).partial_share == pytest.approx(0.25, rel=0.03)
    assert dc.traffic(plan(context=128)).partial_share == pytest.approx(0.5, rel=0.03)

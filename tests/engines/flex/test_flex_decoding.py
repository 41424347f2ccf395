"""FlexAttention's decode policy: known launches, fallbacks, masks, and what torch itself says about them."""

from __future__ import annotations

import pytest

from decodecalc.batch import Batch
from decodecalc.engines import plan
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache

LLAMA3_8B = Geometry(32, 8, 128)


def flex(geo=LLAMA3_8B, lens=(2560,), q_lens=1, gpu="h100-sxm", kv=None, torch="2.14", **options):
    return plan(f"flex-decoding@{torch}", geo, Batch(lens, q_lens), kv=kv, gpu=gpu, **options)


@pytest.mark.parametrize(("batch", "splits"), [(1, 32), (2, 16), (8, 4), (16, 2), (17, 1), (200, 1)])
def test_two_blocks_per_sm_rounded_down(batch, splits):
    """get_split_k: 132 // (B x 8) x 2, at least 1, so 17 requests already launch one split each."""
    p = flex(lens=(2560,) * batch)
    assert p.stage1.grid == (1, batch * 8, splits)
    assert p.splits.launched == splits


def test_llama3_8b_at_2560_keys():
    """32 splits of ceil(2560 / 32) = 80 keys, rounded up to the tile of 64: 128 keys, so 20 splits have any."""
    p = flex()
    assert (p.detail.TILE_KV, p.detail.BLOCK_M, p.detail.BLOCK_N) == ((128,), 16, 64)
    assert (p.splits.requested, p.splits.live) == ((32,), (20,))
    assert (p.live_blocks, p.live_rows, p.stage1.threads) == (160, 4, 64)
    assert p.scratch_bytes == 32 * 32 * (128 + 2) * 4
    assert "20 of 32 splits have keys" in p.gate("all_splits_live").reason


def test_pieces_are_cut_from_the_capacity():
    """A cache of 32 K keys holding 1000: pieces of 1024 keys leave one split alive; without full blocks, all."""
    p = flex(lens=(1000,), kv_len=32_768)
    assert (p.splits.live, p.detail.TILE_KV, p.keys_read) == ((1,), (1024,), (1024,))
    own = flex(lens=(1000,), kv_len=32_768, has_full_blocks=False)
    assert (own.splits.live, own.detail.TILE_KV) == ((16,), (64,))


def test_without_a_block_mask_one_split_reads_everything():
    """The empty BlockMask is one block of 2^30 keys, and pieces are cut from it."""
    p = flex(block_mask=False)
    assert (p.splits.launched, p.splits.live, p.live_blocks) == (32, (1,), 8)
    assert "cut from 2^30 keys" in p.gate("all_splits_live").reason
    with pytest.raises(InputError, match="equal lengths"):
        flex(lens=(100, 200), block_mask=False)
    with pytest.raises(InputError, match="needs a BlockMask"):
        flex(Geometry(8, 8, 128, window=100), block_mask=False)


def test_a_window_leaves_its_blocks_to_the_first_splits():
    """1000 keys of window are 9 mask blocks of 128; pieces are still cut from all keys."""
    p = flex(Geometry(8, 8, 128, window=1000), (20_000,))
    first = (20_000 - 1000) // 128 * 128
    assert p.splits.keys[0][0][0] == first
    assert p.splits.launched == 32
    assert p.splits.live == (2,)
    assert p.detail.kv_num_blocks == (157 - first // 128,)


@pytest.mark.parametrize(
    ("geo", "changes", "said"),
    [
        (Geometry(28, 4, 128), {}, "group 7 is no power of two"),
        (LLAMA3_8B, {"q_lens": 128}, "128 query tokens"),
        (LLAMA3_8B, {"force_flex_attention": True}, "FORCE_USE_FLEX_ATTENTION"),
    ],
)
def test_fallback_reads_keys_per_query_head(geo, changes, said):
    """_use_flex_decoding: the unsplit kernel has a block per query head; vLLM's backend forces it."""
    p = flex(geo, **changes)
    assert (p.path, p.stage1.name, p.stage1.grid) == ("unsplit", "flex_attention", (1, 1, geo.q_heads))
    assert (p.unsplit_blocks, p.scratch_bytes, p.determinism) == (geo.q_heads, 0, "invariant")
    assert said in p.gate("flex_decoding").reason
    assert p.merge is None


def test_unsplit_tiles_follow_the_device():
    """get_flex_attn_fwd_configs without autotuning, bf16, D 128."""
    tiles = {}
    for gpu in ("a100-sxm", "h100-sxm", "b200", "rtx-5090", "mi300x"):
        p = flex(gpu=gpu, force_flex_attention=True)
        tiles[gpu] = (p.block_rows, p.tile_keys, p.stage1.threads)
    nvidia = dict.fromkeys(("a100-sxm", "h100-sxm", "rtx-5090"), (128, 64, 256))
    assert tiles == {**nvidia, "b200": (128, 128, 256), "mi300x": (64, 64, 512)}
    assert flex(gpu="b200", torch="2.13", force_flex_attention=True).tile_keys == 64


def test_releases_differ():
    """2.6 counted on 128 SMs, once; before 2.11 the grid had two axes and pieces were always cut from KV_LEN; before
    2.9 an odd group failed to compile."""
    grids = {v: flex(torch=v).stage1.grid for v in ("2.6.0", "2.8.0", "2.10.0", "2.12.1", "2.14.1")}
    assert grids == {
        "2.6.0": (8, 16, 1),
        "2.8.0": (8, 32, 1),
        "2.10.0": (8, 32, 1),
        "2.12.1": (1, 8, 32),
        "2.14.1": (1, 8, 32),
    }
    assert flex(torch="2.10", block_mask=False).splits.live == (20,)
    assert flex(lens=(1000,), torch="2.10", kv_len=32_768, has_full_blocks=False).splits.live == (1,)
    assert flex(Geometry(28, 4, 128), torch="2.10").stage1.name == "flex_attention"
    with pytest.raises(GateError, match="power of two") as refusal:
        flex(Geometry(28, 4, 128), torch="2.8")
    assert refusal.value.code == "group_not_power_of_2"


def test_a_split_count_given_by_hand():
    """kernel_options SPLIT_KV: a fixed count, invariant only at 1."""
    assert flex(split_kv=8).splits.launched == 8
    assert flex(split_kv=8).determinism == "fixed count"
    assert (flex(split_kv=1).determinism, flex().determinism) == ("invariant", "batch-dependent")


def test_one_split_still_runs_the_reduction():
    """The decode kernel always writes partials, and inductor's reduction always reads them."""
    p = flex(split_kv=1)
    assert (p.path, p.merge.role) == ("split", "merge")
    assert not p.gate("merge_grid_known").passed


def test_refusals():
    """Rows that no mask block holds, other dtypes, a cache that is too small."""
    with pytest.raises(GateError) as refusal:
        flex(Geometry(128, 1, 128), q_lens=4)
    assert refusal.value.code == "mask_block_size"
    assert flex(Geometry(128, 1, 128), q_lens=4, sparse_block_size=512).block_rows == 512
    with pytest.raises(GateError, match="bf16 and fp16"):
        flex(kv=KvCache(dtype="fp8"))
    with pytest.raises(InputError, match="less than the longest request"):
        flex(kv_len=100)


def test_torch_makes_the_masks_that_the_policy_assumes():
    """create_block_mask for few query rows: no full blocks, and the kept blocks come first and in order."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import create_block_mask

    for keys, capacity, q_len, window in ((300, 300, 1, None), (700, 1024, 4, None), (1000, 1024, 1, 200)):
        seen = window or keys

        def mask(b, h, q, k, last=keys - q_len, seen=seen):
            return (k <= q + last) & (k > q + last - seen)

        made = create_block_mask(mask, 1, None, q_len, capacity, device="cpu")
        assert int(made.full_kv_num_blocks) == 0
        p = flex(Geometry(8, 8, 64, window=window), (keys,), q_len, kv_len=capacity)
        count = int(made.kv_num_blocks)
        assert p.detail.kv_num_blocks == (count,)
        kept = made.kv_indices.flatten()[:count]
        assert kept.tolist() == torch.arange(p.splits.keys[0][0][0] // 128, -(-keys // 128)).tolist()

"""Sparse attention: every query token has a list of cache slots, padded and with holes, against the float64 reference.
In the interpreter, or compiled where there is a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from sparse_steps import check, sparse_step

pytestmark = pytest.mark.interpreter

LISTS = {
    "full": [[*range(40)], [*range(56, 16, -1)]],
    "padded behind": [[3, 1, 4, *[-1] * 40], [*range(33), *[-1] * 10]],
    "holes anywhere": [[-1, 5, -1, -1, 9, 2, *[-1] * 30, 6], [-1] * 20 + [7, 8]],
    "a list of nothing": [[-1] * 33, [], [5]],
    "one slot twice": [[7, 7, 3, -1, 7]],
}


def launches() -> dict[str, Any]:
    """Unsplit, split by count and size, and with the merge in the last block."""
    from decodecalc_kernels import LaunchConfig

    return {
        "unsplit": LaunchConfig(tile_keys=16),
        "count": LaunchConfig.fixed_count(3, unit=16, tile_keys=16, merge_splits=2),
        "size": LaunchConfig.fixed_size(16, 64, tile_keys=16, merge_rows=4),
        "fused": LaunchConfig.fixed_count(3, unit=16, tile_keys=16, merge="fused", merge_splits=2),
    }


@pytest.mark.parametrize("launch", ["unsplit", "count", "size", "fused"])
@pytest.mark.parametrize("lists", LISTS)
def test_lists_with_holes_match_the_reference(lists: str, launch: str) -> None:
    step = sparse_step(LISTS[lists], heads=4, head_dim=48, v_dim=32, mla=True)
    check(step, launches()[launch])


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_deepseek_s_widths_match(dtype: str) -> None:
    """576 / 512 with 16 heads, as one rank of eight has them."""
    lists = [[*range(20), -1, -1, 50, *[-1] * 9], [-1, *range(60, 91)]]
    check(sparse_step(lists, heads=16, head_dim=576, v_dim=512, mla=True, dtype=dtype), launches()["count"], dtype)


def test_groups_with_values_of_their_own_match() -> None:
    """No latent: two KV heads share a list."""
    step = sparse_step(LISTS["holes anywhere"], heads=6, kv_heads=2, head_dim=32, v_dim=16, mla=False)
    check(step, launches()["size"])


def test_a_list_without_holes_gives_the_same_bits_as_its_page_table() -> None:
    """Leaving nothing out changes nothing."""
    import torch

    from decodecalc_kernels import decode_attention

    q, k, v, more = sparse_step(LISTS["full"], heads=4, head_dim=48, v_dim=32, mla=True)
    launch = launches()["count"]
    with_holes = decode_attention(q, k, v, config=launch, holes=True, **more)
    assert torch.equal(with_holes, decode_attention(q, k, v, config=launch, **more))


def test_lists_of_several_tokens_or_with_windows_are_refused() -> None:
    from decodecalc_kernels import decode_attention

    q, k, v, more = sparse_step(LISTS["full"], heads=4, head_dim=48, v_dim=32, mla=True)
    with pytest.raises(ValueError, match="holes"):
        decode_attention(q, k, v, config=launches()["count"], holes=True, window=8, **more)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [16, 128])
def test_lists_of_2048_match_at_real_sizes(heads: int) -> None:
    """DeepSeek-V3.2's and GLM-5's top-k of 2048 from a long context, some lists shorter."""
    import torch

    from decodecalc_kernels import LaunchConfig

    gen = torch.Generator().manual_seed(1)
    lists = []
    for known in (2048, 2048, 700, 2048, 1):
        chosen = torch.randperm(20_000, generator=gen)[:known]
        one = torch.full((2048,), -1)
        one[torch.randperm(2048, generator=gen)[:known]] = chosen
        lists.append(one.tolist())
    step = sparse_step(lists, heads=heads, head_dim=576, v_dim=512, mla=True, dtype="bf16", slots=20_000)
    rows = 16 if heads == 16 else 64
    check(step, LaunchConfig.fixed_count(8, unit=32, tile_keys=32, rows=rows, warps=8, stages=2), "bf16")

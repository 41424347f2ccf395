"""llama.cpp's FlashAttention kernels in a trace: vector, tile and tensor-core kernels and their two kinds of merge."""

from __future__ import annotations

import pytest
from launches import make_launch

from decodecalc.trace.attribution import Surroundings
from decodecalc.trace.kernel_names import NameFacts
from decodecalc.trace.load import knowledge

VEC = "void flash_attn_ext_vec<128, 2, (ggml_type)1, (ggml_type)1, false>(char const*)"
MMA = "void flash_attn_ext_f16<576, 512, 4, 16, false, true>(char const*)"
TILE = "void flash_attn_tile<64, 64, 4, 8, false>(char const*)"
COMBINE, FIXUP = (
    "void flash_attn_combine_results<128>(float*)",
    "void flash_attn_stream_k_fixup_uniform<128, 8, 8>(float*)",
)


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (VEC, NameFacts(head_dim=128, tile_rows=2)),
        (MMA, NameFacts(head_dim=576, head_dim_v=512, tile_rows=64)),
        (TILE, NameFacts(head_dim=64, head_dim_v=64, tile_rows=32)),
        ("flash_attn_ext_vec", NameFacts()),
        ("flash_attn_tile", NameFacts()),
    ],
)
def test_names(name: str, facts: NameFacts) -> None:
    """Head dims, and the columns of queries times those of heads that a block holds."""
    assert make_launch(name).kind.facts == facts


@pytest.mark.parametrize("merge", [COMBINE, FIXUP, None])
def test_either_merge_says_that_keys_were_split(merge: str | None) -> None:
    """Parallel blocks are combined, stream-k's shared tiles are fixed up."""
    group = make_launch(MMA, (160, 1, 1), merge=None if merge is None else (merge, (32, 8, 8)))
    found = knowledge().attribute(group, Surroundings())
    assert (found.engines, found.path_split) == (("llama-cpp",), merge is not None)


def test_grids() -> None:
    """Splits stand in the second extent; heads and streams come from the combine, and from no fix-up."""
    seen = knowledge().infer(make_launch(VEC, (1, 16, 32), merge=(COMBINE, (1, 32, 1))), "llama-cpp")
    assert (seen.splits_launched, seen.q_heads, seen.batch, seen.query_tokens) == (16, 32, 1, 1)
    seen = knowledge().infer(make_launch(TILE, (1, 4, 64), merge=(COMBINE, (3, 32, 2))), "llama-cpp")
    assert (seen.splits_launched, seen.q_heads, seen.batch, seen.query_tokens) == (4, 32, 2, 6)
    seen = knowledge().infer(make_launch(VEC, (1, 1, 256)), "llama-cpp", 32)
    assert (seen.splits_launched, seen.q_heads, seen.batch) == (1, 32, None)
    seen = knowledge().infer(make_launch(MMA, (160, 1, 1), merge=(FIXUP, (32, 8, 8))), "llama-cpp")
    assert (seen.splits_launched, seen.q_heads, seen.batch, seen.head_dim) == (None, None, None, 576)

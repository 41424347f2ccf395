"""What FlashAttention 4 takes: widths, cache types and pages by architecture, in the wheel and in vLLM's copy.

Source: the assertions of _flash_attn_fwd and _validate_head_dims in flash_attn/cute/interface.py of flash-attn-4
4.0.0b36 and in vllm/vllm_flash_attn/cute/interface.py of vLLM 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from decodecalc.launch.takes import SAME, SIXTEEN_BITS, Numbers, Takes, only

if TYPE_CHECKING:
    from decodecalc.engines.flash_attention.fa4_call import Fa4Rules, FlashAttention4Options

BLACKWELL = ("sm10x", "sm11x")
# Head sizes and pages of vLLM's copy on Hopper with an fp8 cache: pages hold one tile each, which a window may narrow.
_WIDENED = ((1, 128, (128,)), (129, 192, (112, 96)), (193, 256, (80, 64)), (257, 512, (64,)))


def combinations(options: FlashAttention4Options, rules: Fa4Rules) -> tuple[Takes, ...]:
    """The combinations under these options."""
    return tuple(_combinations(options, rules))


def _combinations(options: FlashAttention4Options, rules: Fa4Rules) -> Iterator[Takes]:
    sixteen = Takes(mla=False, cache_dtypes=SIXTEEN_BITS, query_dtypes=SAME)
    if not options.paged:
        yield replace(sixteen, devices=("sm8x", "sm12x"))
    hopper = replace(sixteen, devices=("sm9x",), note="" if rules.vllm else "only steps that the rule does not split")
    widest = Numbers(step=8, low=8, high=rules.widest_sm90)
    yield replace(hopper, head_dims=widest, value_dims=widest)
    if rules.vllm and options.paged:
        for low, high, pages in _WIDENED:
            widths = Numbers(step=16, low=low, high=high)
            yield replace(
                hopper, cache_dtypes=("fp8",), query_dtypes=SIXTEEN_BITS, head_dims=widths, value_dims=None,
                page_sizes=only(*pages),
            )  # fmt: skip
    for step, one in ((8, replace(sixteen, devices=BLACKWELL)), (16, _eight(sixteen))):
        plain = Numbers(step=step, low=8, high=128)
        yield replace(one, head_dims=plain, value_dims=plain)
        yield replace(one, head_dims=only(192), value_dims=only(128))
        yield replace(one, head_dims=only(256), value_dims=only(256))
        yield replace(one, head_dims=only(64, 512), value_dims=only(512))
    yield from _latents(options, rules)


def _eight(sixteen: Takes) -> Takes:
    return replace(sixteen, devices=("sm10x",), cache_dtypes=("fp8",))


def _latents(options: FlashAttention4Options, rules: Fa4Rules) -> Iterator[Takes]:
    """Absorbed MLA. Lists of keys point into the cache itself, so that no page table is read."""
    dense = Takes(
        devices=BLACKWELL, mla=True, windows=False, sinks=not rules.vllm, softcaps=False, cache_dtypes=SIXTEEN_BITS,
        query_dtypes=SAME, head_dims=only(576), value_dims=only(512), dense=options.sparse_topk is None,
    )  # fmt: skip
    gathered = replace(dense, sparse=True, dense=options.sparse_topk is not None)
    if not rules.vllm:
        gathered = replace(gathered, kv_heads=only(1), groups=Numbers(high=128))
    for one in (dense, gathered):
        yield one
        if not rules.vllm:
            yield _eight(one)

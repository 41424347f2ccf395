"""The page sizes that a backend imposes on vLLM's cache manager and that its kernel sees.

Source: `vllm/platforms/interface.py: update_block_size_for_backend, _align_hybrid_block_size`,
`vllm/v1/worker/utils.py: select_common_block_size`, `vllm/v1/kv_cache_interface.py`.
"""

from __future__ import annotations

from decodecalc.intmath import cdiv
from decodecalc.servers.vllm.accepts import Accepts
from decodecalc.servers.vllm.ask import Ask

DEFAULT_PAGE = 16
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# (bits of a key, bits of a value) of vllm/model_executor/layers/quantization/turboquant/config.py: TQ_PRESETS.
_TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


def manager_page(accepts: Accepts, ask: Ask) -> int | None:
    """Keys of a page of the cache manager; None where a hybrid's cache type has no size we know."""
    page = ask.question.page_size
    if page is None:
        page = accepts.preferred_page(ask) or _default_page(accepts, ask)
    if ask.layer.state_bytes:
        per_key = bytes_per_key(ask)
        return None if per_key is None else _hybrid_page(accepts, ask, page, ask.layer.state_bytes, per_key)
    return page


def _default_page(accepts: Accepts, ask: Ask) -> int:
    """`get_preferred_block_size`: 16 if it is accepted, else the smallest kernel page."""
    if accepts.page_is_accepted(ask, DEFAULT_PAGE):
        return DEFAULT_PAGE
    return min(size.keys for size in accepts.pages(ask))


def _hybrid_page(accepts: Accepts, ask: Ask, page: int, state_bytes: int, per_key: int) -> int:
    """A page of attention at least as large as a recurrent layer's state; it may override the user's size."""
    smallest = min(size.keys for size in accepts.pages(ask))
    aligned = max(smallest, page, ask.rules.mla_hybrid_page if ask.layer.mla else 1)
    needed = aligned * cdiv(state_bytes, aligned * per_key)
    return max(page, smallest * cdiv(needed, smallest))


def kernel_page(accepts: Accepts, ask: Ask, page: int) -> int | None:
    """The page that the kernel sees: the manager's if it has it, else the largest exact one that divides it."""
    pages = accepts.pages(ask)
    if any(size.takes(page) for size in pages):
        return page
    dividing = [size.keys for size in pages if not size.multiple and page % size.keys == 0]
    return max(dividing, default=None)


def bytes_per_key(ask: Ask) -> int | None:
    """Bytes of one key of the layer in the cache, scales included; None for types we know no layout of."""
    layer, kv = ask.layer, ask.kv_dtype
    dim, dim_v = layer.head_dim, layer.head_dim_v or layer.head_dim
    element = _DTYPE_BYTES.get(layer.dtype if kv == "auto" else kv, 1)
    if layer.mla is not None:
        return 656 if kv == "fp8_ds_mla" and ask.rules.ds_mla_bytes else layer.kv_heads * dim * element
    if kv in _TURBOQUANT_BITS:
        return layer.kv_heads * _turboquant_slot(dim, *_TURBOQUANT_BITS[kv])
    if kv.startswith(("octave_", "ultraquant_")):
        return None
    if kv.startswith("nvfp4"):
        return layer.kv_heads * (dim // 2 + dim // 16 + dim_v // 2 + dim_v // 16)
    if kv == "int4_per_token_head":
        return layer.kv_heads * (dim // 2 + dim_v // 2 + 8)
    scales = 8 if kv.endswith("per_token_head") else 0
    return layer.kv_heads * ((dim + dim_v) * element + scales)


def _turboquant_slot(dim: int, key_bits: int, value_bits: int) -> int:
    """Bytes of a key and value of one head, rounded up to an even number (`TurboQuantConfig.slot_size_aligned`)."""
    key = dim if key_bits == 8 else cdiv(dim * key_bits, 8) + 2
    slot = key + cdiv(dim * value_bits, 8) + 4
    return slot + slot % 2

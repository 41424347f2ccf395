"""What vLLM's backends on AMD accept in the newest release, and when its ROCM_ATTN runs the hand-written kernel.

Source: `vllm/v1/attention/backends/{rocm_attn, rocm_aiter_fa, rocm_aiter_unified_attn, rocm_segmented_attn,
rocm_octave_attn, ultraquant_attn}.py`, `mla/{rocm_aiter_mla, rocm_aiter_mla_sparse, aiter_triton_mla}.py`,
`vllm/platforms/rocm.py: use_rocm_custom_paged_attention`, vLLM 0.33.0.
"""

from __future__ import annotations

from decodecalc.servers.vllm.accepts import HALF, PLAIN_DTYPES, Accepts, Size, multiple_of, sizes, yes
from decodecalc.servers.vllm.ask import Ask
from decodecalc.servers.vllm.dense import ANY_DTYPE, FP8, FP8_ANY, TURBOQUANT

ROCM_ATTN = Accepts(
    head_dims=(32, 64, 80, 96, 128, 160, 192, 224, 256),
    dtypes=ANY_DTYPE,
    kv_dtypes=(*PLAIN_DTYPES, *FP8_ANY),
    pages=lambda _: multiple_of(16),
    window=True,
    cuda_graphs=lambda _: "ALWAYS",
)
ROCM_AITER_UNIFIED_ATTN = ROCM_ATTN._replace(
    head_dims=(),
    head_dim_rule=lambda ask: ask.layer.head_dim >= 32,
    dtypes=HALF,
    sinks=yes,
    preferred_page=lambda _: 64,
)
ROCM_AITER_FA = Accepts(
    head_dims=(64, 128, 256),
    kv_dtypes=(*PLAIN_DTYPES, *FP8_ANY),
    pages=lambda _: sizes(16, 32),
    sinks=yes,
    window=True,
    capability=lambda ask: ask.device.cdna > 2,
)


def _segmented_combination(ask: Ask) -> str | None:
    if not ask.device.hip or ask.device.cdna or not str(ask.device.gfx).startswith(("gfx11", "gfx12")):
        return "ROCM_SEGMENTED_ATTN requires AMD RDNA GPUs on ROCm"
    if ask.kv_dtype in FP8 and not str(ask.device.gfx).startswith("gfx12"):
        return "FP8 segmented attention requires gfx12"
    return None


ROCM_SEGMENTED_ATTN = ROCM_ATTN._replace(
    head_dims=(64, 128, 256),
    dtypes=HALF,
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    sinks=yes,
    combination=_segmented_combination,
)
ROCM_OCTAVE = Accepts(
    head_dims=(256,),
    kv_dtypes=("octave_k3v4", "octave_k3v3", "octave_k3v3_compact"),
    pages=lambda _: multiple_of(16),
    capability=lambda ask: ask.device.rdna == 3 or ask.device.cdna == 3,
)
ULTRAQUANT = TURBOQUANT._replace(dtypes=("bfloat16",), kv_dtypes=("ultraquant_4bit",), preferred_page=lambda _: 64)

ROCM_AITER_MLA = Accepts(kv_dtypes=(*PLAIN_DTYPES, *FP8_ANY), pages=lambda _: multiple_of(1), mla=True)
ROCM_AITER_MLA_SPARSE = Accepts(
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    pages=lambda _: (Size(1), Size(16, multiple=True)),
    mla=True,
    sparse=True,
    sinks=lambda ask: ask.device.cdna in (3, 4),
)

_ALL = {
    "ROCM_ATTN": ROCM_ATTN,
    "ROCM_AITER_UNIFIED_ATTN": ROCM_AITER_UNIFIED_ATTN,
    "ROCM_AITER_FA": ROCM_AITER_FA,
    "ROCM_SEGMENTED_ATTN": ROCM_SEGMENTED_ATTN,
    "ROCM_OCTAVE": ROCM_OCTAVE,
    "ULTRAQUANT": ULTRAQUANT,
    "ROCM_AITER_MLA": ROCM_AITER_MLA,
    "ROCM_AITER_TRITON_MLA": ROCM_AITER_MLA,
    "ROCM_AITER_MLA_SPARSE": ROCM_AITER_MLA_SPARSE,
}
AMD = {name: accepts._replace(amd_only=True) for name, accepts in _ALL.items()}


def custom_paged_attention(ask: Ask, page: int, max_keys: int = 8192) -> bool:
    """Whether ROCM_ATTN runs the hand-written paged kernel for this page; its Triton kernel otherwise."""
    layer, device = ask.layer, ask.device
    shared = layer.window is None and layer.dtype in HALF and max_keys <= 128 * 1024 and not layer.sinks
    if device.cdna:
        return shared and layer.head_dim in (64, 128) and page in (16, 32) and 1 <= layer.group <= 16
    return (
        shared
        and device.rdna > 0
        and layer.head_dim == 128
        and page == 16
        and 3 <= layer.group <= 16
        and ask.kv_dtype == "auto"
    )

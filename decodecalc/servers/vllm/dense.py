"""What vLLM's backends for ordinary layers on NVIDIA accept, in the newest release.

Source: `vllm/v1/attention/backends/{flash_attn, flashinfer, triton_attn, flex_attention, turboquant_attn, b12x,
hpc_attn}.py`, vLLM 0.33.0.
"""

from __future__ import annotations

from dataclasses import replace

from decodecalc.servers.question import Question
from decodecalc.servers.vllm import flash_attn, flashinfer
from decodecalc.servers.vllm.accepts import HALF, PLAIN_DTYPES, Accepts, Size, multiple_of, sizes, yes
from decodecalc.servers.vllm.ask import Ask

ANY_DTYPE = (*HALF, "float32")
FP8 = ("fp8", "fp8_e4m3")
FP8_ANY = (*FP8, "fp8_e5m2")
PER_TOKEN_HEAD = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")
TURBOQUANT_DTYPES = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")


def _from_ampere(ask: Ask) -> bool:
    return ask.device.capability >= (8, 0)


def _at_least_32(ask: Ask) -> bool:
    return ask.layer.head_dim >= 32


def _fa_head_dim(ask: Ask) -> bool:
    dim = ask.layer.head_dim
    return dim % 8 == 0 and (dim <= 256 or (dim <= 512 and flash_attn.runs(4, ask)))


def _fa_pages(ask: Ask) -> tuple[Size, ...]:
    imposed = flash_attn.imposed_page(ask)
    return sizes(imposed) if imposed else multiple_of(16)


def _fa_preferred(ask: Ask) -> int | None:
    imposed = flash_attn.imposed_page(ask)
    return max(16, imposed) if imposed else None


def _fa_combination(ask: Ask) -> str | None:
    if ask.layer.sinks and ask.device.capability < (9, 0):
        return "sink not supported on compute capability < 9.0"
    rules, layer = ask.rules, ask.layer
    if layer.image_prefix and ask.is_quantized and rules.fa4_hopper_fp8 and ask.device.exactly(90):
        return "SM90 FP8 KV with mm_prefix requires Triton"
    if rules.fa_fp8_sentence and ask.is_quantized and not flash_attn.takes_fp8(ask, with_layer=True):
        return rules.fa_fp8_sentence
    if layer.image_prefix:
        found = flash_attn.version(
            ask, head_dim=layer.head_dim, page=ask.question.page_size, hd256=True, sinks=layer.sinks
        )
        if found != 4:
            return (
                "mm_prefix (PrefixLM bidirectional attention) requires FlashAttention v4, which does not resolve for "
                "this head_size"
            )
    return None


FLASH_ATTN = Accepts(
    head_dim_rule=_fa_head_dim,
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    kv_dtype_rule=lambda ask: not ask.is_quantized or flash_attn.takes_fp8(ask, with_layer=False),
    pages=_fa_pages,
    preferred_page=_fa_preferred,
    image_prefix=lambda ask: flash_attn.runs(4, ask),
    sinks=lambda ask: flash_attn.version(ask) in (3, 4),
    capability=_from_ampere,
    window=True,
    non_causal=True,
    batch_invariant=True,
    combination=_fa_combination,
    cuda_graphs=flash_attn.cuda_graphs,
)

FLASHINFER = Accepts(
    head_dims=(64, 128, 256, 512),
    kv_dtypes=(*PLAIN_DTYPES, *FP8_ANY, "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"),
    kv_dtype_rule=flashinfer.takes_kv_dtype,
    pages=flashinfer.pages,
    sinks=flashinfer.takes_sinks,
    capability=lambda ask: (8, 0) <= ask.device.capability <= (12, 1),
    window=True,
    non_causal=True,
    combination=flashinfer.combination,
    imports="flashinfer",
    cuda_graphs=flashinfer.cuda_graphs,
)

TRITON_ATTN = Accepts(
    head_dim_rule=_at_least_32,
    dtypes=ANY_DTYPE,
    kv_dtypes=(*PLAIN_DTYPES, *FP8_ANY, *PER_TOKEN_HEAD),
    pages=lambda _: multiple_of(16),
    image_prefix=yes,
    sinks=yes,
    window=True,
    non_causal=True,
    batch_invariant=True,
    cuda_graphs=lambda _: "ALWAYS",
)

FLEX_ATTENTION = Accepts(
    dtypes=ANY_DTYPE,
    pages=lambda _: multiple_of(16),
    image_prefix=yes,
    window=True,
    non_causal=True,
    batch_invariant=True,
    cuda_graphs=lambda _: "ALWAYS",
)

TURBOQUANT = Accepts(kv_dtypes=TURBOQUANT_DTYPES, pages=lambda _: sizes(16, 32, 64, 128))


def _b12x_combination(ask: Ask) -> str | None:
    if ask.layer.dtype != "bfloat16":
        return "b12x currently requires bfloat16 queries"
    if ask.kv_dtype == "float16":
        return "b12x does not support float16 KV cache"
    if ask.is_quantized and ask.kv_dtype not in FP8:
        # The source names `fp8/fp8_e4m3`; the recorded answer, which counts here, names `fp8` alone.
        return "b12x currently supports only fp8 quantized KV cache dtypes"
    if not ask.settings.b12x_installed:
        return "Install the b12x backend with `pip install vllm[b12x]`"
    return None


B12X = Accepts(
    head_dims=(64, 128, 192, 256),
    dtypes=("bfloat16",),
    kv_dtypes=("auto", "bfloat16", *FP8),
    pages=lambda _: sizes(64, 128),
    exact_pages=True,
    preferred_page=lambda _: 128,
    sinks=yes,
    capability=lambda ask: ask.device.capability in ((12, 0), (12, 1)),
    window=True,
    combination=_b12x_combination,
)

HPC_ATTN = Accepts(
    head_dims=(128,),
    kv_dtypes=("auto", "bfloat16", "fp8_e4m3"),
    pages=lambda _: sizes(64),
    capability=lambda ask: ask.device.capability == (9, 0),
    cuda_graphs=lambda _: "UNIFORM_SINGLE_TOKEN_DECODE",
)


def _causal_on_hopper(ask: Ask) -> str | None:
    """The causal half of TRITON_FLASH_ATTN (`triton_flash_attn.py: _FABackend.supports_combination`)."""
    own = _fa_combination(ask._replace(question=_without_image_prefix(ask)))
    if own is not None:
        return own
    layer = ask.layer
    found = flash_attn.version(ask, head_dim=layer.head_dim, page=ask.question.page_size, hd256=True, sinks=layer.sinks)
    return None if found in (3, 4) else "causal route requires FlashAttention v3 or v4"


def _without_image_prefix(ask: Ask) -> Question:
    return replace(ask.question, layer=replace(ask.layer, image_prefix=False))


# Composites: Triton serves the tokens of an image, the named backend the causal rest.
TRITON_FLASH_ATTN = FLASH_ATTN._replace(
    image_prefix=yes,
    capability=lambda ask: ask.device.major == 9,
    combination=_causal_on_hopper,
    non_causal=False,
)
TRITON_FLASHINFER = FLASHINFER._replace(image_prefix=yes, non_causal=False)

DENSE = {
    "FLASH_ATTN": FLASH_ATTN,
    "FLASHINFER": FLASHINFER,
    "TRITON_ATTN": TRITON_ATTN,
    "FLEX_ATTENTION": FLEX_ATTENTION,
    "TURBOQUANT": TURBOQUANT,
    "B12X": B12X,
    "HPC_ATTN": HPC_ATTN,
    "TRITON_FLASH_ATTN": TRITON_FLASH_ATTN,
    "TRITON_FLASHINFER": TRITON_FLASHINFER,
}

"""The candidates of each device, in vLLM's order.

Source: `vllm/platforms/cuda.py` and `rocm.py: _get_backend_priorities`, `vllm/_aiter_ops.py`.
"""

from __future__ import annotations

from decodecalc.servers.vllm.ask import Ask


def candidates(ask: Ask) -> tuple[str, ...]:
    """Names of the backends that automatic selection looks at, first preferred."""
    if ask.device.hip:
        return _amd(ask)
    return _latent(ask) if ask.layer.mla else _dense(ask)


def _dense(ask: Ask) -> tuple[str, ...]:
    tail = ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    image = ask.rules.lists_image_prefix and ask.layer.image_prefix
    non_causal = ask.rules.lists_non_causal and ask.settings.use_non_causal
    if ask.device.major == 10 and not non_causal:
        return (*(("TRITON_FLASHINFER",) if image else ()), "FLASHINFER", "FLASH_ATTN", *tail)
    hopper = ("TRITON_FLASH_ATTN",) if image and ask.device.major == 9 else ()
    return (*hopper, "FLASH_ATTN", "FLASHINFER", *tail)


def _latent(ask: Ask) -> tuple[str, ...]:
    rules, major = ask.rules, ask.device.major
    if major == 10:
        tokenspeed = ("TOKENSPEED_MLA",) if rules.lists_tokenspeed else ()
        dense = ("FLASHINFER_MLA", *tokenspeed, "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
        return (*dense, *_sparse_blackwell(ask))
    if major == 12 and rules.lists_sm120_mla:
        return ("TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120")
    sparse = rules.lists_sparse_hopper
    if rules.lists_sparse_sm90_flashinfer:
        flashinfer = "FLASHINFER_MLA_SPARSE_SM90"
        sparse = (flashinfer, *sparse) if ask.layer.head_dim == 512 else (*sparse, flashinfer)
    return ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA", *sparse)


def _sparse_blackwell(ask: Ask) -> tuple[str, ...]:
    if ask.is_quantized:
        return ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
    if ask.layer.q_heads > 16:
        return ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
    fa4 = ("FLASH_ATTN_MLA_SPARSE_FA4",) if ask.rules.lists_sparse_fa4 else ()
    return (*fa4, "FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")


def _amd(ask: Ask) -> tuple[str, ...]:
    if ask.layer.sparse:
        return ("ROCM_AITER_MLA_SPARSE",)
    settings, device = ask.settings, ask.device
    usable = settings.aiter and device.cdna > 2
    enabled = usable and settings.flag("VLLM_ROCM_USE_AITER", "False")
    if ask.layer.mla:
        if enabled and settings.flag("VLLM_ROCM_USE_AITER_MLA", "True"):
            return ("ROCM_AITER_MLA", "TRITON_MLA", "ROCM_AITER_TRITON_MLA")
        return ("TRITON_MLA",)
    names = ["ROCM_ATTN"]
    if enabled and settings.flag("VLLM_ROCM_USE_AITER_MHA", "True"):
        names.append("ROCM_AITER_FA")
    on_rdna4 = settings.aiter and device.rdna == 4 and settings.flag("VLLM_ROCM_USE_AITER", "False")
    if usable:
        names.append("ROCM_AITER_UNIFIED_ATTN")
    elif on_rdna4 and ask.rules.lists_rdna_unified:
        names.insert(0, "ROCM_AITER_UNIFIED_ATTN")
    return (*names, *ask.rules.lists_rocm_tail)

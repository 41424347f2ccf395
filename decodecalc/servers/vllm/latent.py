"""What vLLM's MLA backends on NVIDIA accept, dense and sparse, in the newest release.

Source: `vllm/v1/attention/backends/mla/*.py`, `vllm/model_executor/layers/attention/mla_attention.py`, vLLM 0.33.0.
"""

from __future__ import annotations

from decodecalc.servers.question import MlaDims
from decodecalc.servers.vllm.accepts import PLAIN_DTYPES, Accepts, Check, multiple_of, sizes
from decodecalc.servers.vllm.ask import Ask
from decodecalc.servers.vllm.dense import FP8

WIDTHS = (320, 512, 576)


def on_major(*majors: int) -> Check:
    """The device's major compute capability is one of these."""
    return lambda ask: ask.device.major in majors


def _no_flash_attention(ask: Ask) -> str | None:
    return None if ask.device.family(90) and not ask.device.hip else "FlashAttention MLA not supported on this device"


FLASH_ATTN_MLA = Accepts(
    head_dims=WIDTHS,
    pages=lambda _: multiple_of(16),
    mla=True,
    capability=on_major(9),
    batch_invariant=True,
    combination=_no_flash_attention,
)


def _flashmla_combination(ask: Ask) -> str | None:
    if ask.device.hip:
        return (
            "vllm._flashmla_C is not available, likely was not compiled due to insufficient nvcc version or a "
            "supported arch was not in the list of target arches to compile for."
        )
    if ask.layer.sparse:
        if ask.device.family(90) or ask.device.family(100):
            return None
        return f"FlashMLA Sparse is only supported on {ask.rules.flashmla_sparse_devices} devices."
    return None if ask.device.family(90) else "FlashMLA Dense is only supported on Hopper devices."


FLASHMLA = Accepts(
    head_dims=WIDTHS,
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    pages=lambda _: sizes(64),
    mla=True,
    capability=on_major(9, 10),
    combination=_flashmla_combination,
)


def _dims(ask: Ask) -> MlaDims | None:
    return ask.layer.mla


def _flashinfer_mla_combination(ask: Ask) -> str | None:
    dims = _dims(ask)
    nope = dims.qk_nope_head_dim if dims else 1
    if nope not in (64, 128, 192):
        return f"FlashInfer MLA kernel requires qk_nope_head_dim in [64, 128, 192], but got {nope}"
    return None


FLASHINFER_MLA = Accepts(
    head_dims=WIDTHS,
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    pages=lambda _: sizes(32, 64),
    mla=True,
    capability=on_major(10),
    combination=_flashinfer_mla_combination,
    imports="flashinfer",
    cuda_graphs=lambda _: "ALWAYS",
)


def _tokenspeed_combination(ask: Ask) -> str | None:
    if not ask.settings.tokenspeed_installed:
        return "tokenspeed_mla package is not installed. Install it with: `uv pip install tokenspeed-mla`"
    dims = _dims(ask)
    got = (dims.qk_nope_head_dim, dims.qk_rope_head_dim, dims.v_head_dim) if dims else (0, 0, 0)
    if got != (128, 64, 128):
        return (
            "tokenspeed_mla requires DeepSeek R1 MLA dimensions (qk_nope_head_dim=128, qk_rope_head_dim=64, "
            f"v_head_dim=128), got {got}"
        )
    return None


TOKENSPEED_MLA = Accepts(
    head_dims=WIDTHS,
    kv_dtypes=FP8,
    pages=lambda _: sizes(32, 64),
    mla=True,
    capability=on_major(10),
    combination=_tokenspeed_combination,
)

CUTLASS_MLA = Accepts(
    head_dims=WIDTHS,
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    pages=lambda _: sizes(128),
    mla=True,
    capability=on_major(10),
    cuda_graphs=lambda _: "UNIFORM_SINGLE_TOKEN_DECODE",
)

TRITON_MLA = Accepts(
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    pages=lambda _: multiple_of(16),
    mla=True,
    batch_invariant=True,
)


def _flashmla_sparse_combination(ask: Ask) -> str | None:
    """Head dim 512 (no rope) only on Hopper, and the NVFP4 layout only on 10.x."""
    kv, device, dims = ask.kv_dtype, ask.device, _dims(ask)
    if ask.layer.head_dim == 512 and ask.rules.flashmla_sparse_no_rope:
        taken = (*PLAIN_DTYPES, *ask.rules.flashmla_sparse_no_rope)
        if kv not in taken or device.major != 9:
            extra = "".join(f" or {name}" for name in ask.rules.flashmla_sparse_no_rope if name not in PLAIN_DTYPES)
            return (
                f"FLASHMLA_SPARSE supports head_size 512 only with bf16{extra} kv-cache on SM90 (NoPE), "
                f"got kv_cache_dtype={kv}, capability=DeviceCapability(major={device.major}, minor={device.minor})"
            )
        if (dims.qk_rope_head_dim if dims else 64) != 0:
            return "FLASHMLA_SPARSE supports head_size 512 only for rope-free (NoPE) models"
    if kv == "nvfp4_ds_mla" and device.major != 10 and ask.rules.flashmla_sparse_nvfp4:
        return f"FLASHMLA_SPARSE only supports the {kv} kv-cache dtype on SM100 (Blackwell)"
    return None


FLASHMLA_SPARSE = Accepts(
    head_dims=(576, 512),
    dtypes=("bfloat16",),
    kv_dtypes=("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
    pages=lambda _: multiple_of(64),
    mla=True,
    sparse=True,
    capability=on_major(9, 10),
    combination=_flashmla_sparse_combination,
)


def _flashinfer_sparse_combination(ask: Ask) -> str | None:
    if ask.kv_dtype == "fp8_ds_mla":
        return "FLASHINFER_MLA_SPARSE SM10 does not support fp8_ds_mla kv-cache dtype"
    return flashinfer_sparse_dims(ask)


def flashinfer_sparse_dims(ask: Ask, own_name: str = "FLASHINFER_MLA_SPARSE") -> str | None:
    """The widths that trtllm-gen's sparse MLA kernel has."""
    dims = _dims(ask)
    nope = dims.qk_nope_head_dim if dims else 1
    if ask.rules.flashinfer_sparse_no_rope and dims and dims.qk_rope_head_dim == 0:
        if nope != 256 or dims.kv_lora_rank != 512:
            return (
                "FlashInfer native no-rope MLA requires qk_nope_head_dim=256 and kv_lora_rank=512, but got "
                f"qk_nope_head_dim={nope}, kv_lora_rank={dims.kv_lora_rank}"
            )
    elif nope not in (128, 192):
        return f"FlashInfer MLA Sparse kernel requires qk_nope_head_dim in [128, 192], but got {nope}"
    if ask.layer.index_topk is None:
        return "FlashInfer MLA Sparse requires model with index_topk config"
    return None


FLASHINFER_MLA_SPARSE = Accepts(
    head_dims=(512, 576),
    kv_dtypes=(*PLAIN_DTYPES, *FP8),
    pages=lambda _: multiple_of(32),
    mla=True,
    sparse=True,
    capability=on_major(10),
    combination=_flashinfer_sparse_combination,
)


def _sm120_combination(ask: Ask) -> str | None:
    name = "FLASHINFER_MLA_SPARSE_SM120"
    if not ask.has_flashinfer:
        return f"{name} requires FlashInfer's sparse MLA decode API"
    if ask.layer.dtype != "bfloat16":
        return "dtype not supported"
    if ask.kv_dtype not in ("auto", *FP8, "fp8_ds_mla"):
        return "kv_cache_dtype not supported"
    topk = ask.layer.index_topk
    if topk is None:
        return f"{name} requires a model with index_topk config"
    return None if topk == 2048 else f"{name} requires index_topk=2048; got {topk}"


FLASHINFER_MLA_SPARSE_SM120 = Accepts(
    head_dims=(512, 576),
    dtypes=("bfloat16",),
    kv_dtypes=("auto", *FP8, "fp8_ds_mla"),
    pages=lambda _: multiple_of(64),
    mla=True,
    sparse=True,
    capability=on_major(12),
    combination=_sm120_combination,
)


def _sm90_combination(ask: Ask) -> str | None:
    name = "FLASHINFER_MLA_SPARSE_SM90"
    if not ask.has_flashinfer:
        return (
            f"{name} requires FlashInfer with SM90 MLA support (ckv_scale_arr in BatchMLAPagedAttentionWrapper.run, "
            "FlashInfer >= 0.6.18)"
        )
    if not ask.layer.sparse:
        return f"{name} requires sparse MLA"
    dims = _dims(ask)
    if dims and dims.kv_lora_rank != 512:
        return f"{name} requires kv_lora_rank=512"
    if dims and dims.qk_rope_head_dim not in (0, 64):
        return f"{name} requires qk_rope_head_dim in (0, 64)"
    return None


FLASHINFER_MLA_SPARSE_SM90 = Accepts(
    head_dims=(512, 576),
    dtypes=("bfloat16",),
    kv_dtypes=("auto", "bfloat16", *FP8),
    pages=lambda _: multiple_of(64),
    mla=True,
    sparse=True,
    capability=on_major(9),
    combination=_sm90_combination,
)


def _fa_sparse_combination(ask: Ask) -> str | None:
    if ask.kv_dtype not in PLAIN_DTYPES:
        return "FlashAttention MLA Sparse currently supports only FP16/BF16 KV cache"
    if (own := _no_flash_attention(ask)) is not None:
        return own
    return None if ask.layer.index_topk is not None else "FlashAttention MLA Sparse requires model with index_topk"


FLASH_ATTN_MLA_SPARSE = Accepts(
    pages=lambda _: multiple_of(64),
    mla=True,
    sparse=True,
    capability=on_major(9),
    combination=_fa_sparse_combination,
)


def _fa4_sparse_combination(ask: Ask) -> str | None:
    if not ask.has_flashinfer:
        return "FA4 sparse MLA runs its prefill batches on FlashInfer's kernel"
    major = ask.device.major
    if major not in (9, 10, 11):
        return "FA4 unavailable: FA4 is only supported on devices with compute capability 9.x, 10.x, or 11.x"
    topk, dims = ask.layer.index_topk, _dims(ask)
    if topk is None or topk % 128:
        return f"FA4 sparse MLA requires index_topk % 128 == 0, got {topk}"
    widths = (dims.kv_lora_rank, dims.qk_rope_head_dim) if dims else (None, None)
    if widths != (512, 64):
        return f"FA4 sparse MLA requires (kv_lora_rank, qk_rope_head_dim) == (512, 64), got {widths}"
    heads = ask.layer.q_heads
    if heads not in (8, 16, 32, 64, 128):
        return f"FA4 sparse MLA requires (8, 16, 32, 64, 128) gathered query heads, got num_heads={heads} * dcp_size=1"
    if ask.kv_dtype == "fp8_ds_mla":
        return "FLASH_ATTN_MLA_SPARSE_FA4 SM10 does not support fp8_ds_mla kv-cache dtype"
    return flashinfer_sparse_dims(ask)


FLASH_ATTN_MLA_SPARSE_FA4 = Accepts(
    head_dims=(576,),
    dtypes=("bfloat16",),
    kv_dtypes=("auto", "bfloat16"),
    pages=lambda _: multiple_of(64),
    mla=True,
    sparse=True,
    capability=on_major(10),
    combination=_fa4_sparse_combination,
)

LATENT = {
    "FLASH_ATTN_MLA": FLASH_ATTN_MLA,
    "FLASHMLA": FLASHMLA,
    "FLASHINFER_MLA": FLASHINFER_MLA,
    "TOKENSPEED_MLA": TOKENSPEED_MLA,
    "CUTLASS_MLA": CUTLASS_MLA,
    "TRITON_MLA": TRITON_MLA,
    "FLASHMLA_SPARSE": FLASHMLA_SPARSE,
    "FLASHINFER_MLA_SPARSE": FLASHINFER_MLA_SPARSE,
    "FLASHINFER_MLA_SPARSE_SM120": FLASHINFER_MLA_SPARSE_SM120,
    "FLASHINFER_MLA_SPARSE_SM90": FLASHINFER_MLA_SPARSE_SM90,
    "FLASH_ATTN_MLA_SPARSE": FLASH_ATTN_MLA_SPARSE,
    "FLASH_ATTN_MLA_SPARSE_FA4": FLASH_ATTN_MLA_SPARSE_FA4,
}

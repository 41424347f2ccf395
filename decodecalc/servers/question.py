"""What is asked of a server: one attention layer of one rank, the GPU under it and what the user set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.geometry import check_count
from decodecalc.gpus import Gpu

# How the FlashInfer package stands on the host.
INSTALLED, NO_CUBINS, ABSENT = "installed", "no_cubins", "absent"
_MODEL_DTYPES = {
    "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "half": "float16",
    "fp32": "float32", "float32": "float32", "float": "float32",
}  # fmt: skip


class MlaDims(NamedTuple):
    """Widths of multi-head latent attention as a model's configuration names them."""

    kv_lora_rank: int
    """Elements of the latent that is both key and value."""
    qk_rope_head_dim: int
    """Elements of the key that carry the position, behind the latent; 0 for a model without rotary embedding."""
    qk_nope_head_dim: int
    """Elements of a query head without position, before absorption."""
    v_head_dim: int
    """Elements of a value head, after the latent is expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a server knows of one attention layer when it picks a backend. Heads are those of one rank."""

    q_heads: int
    """Query heads of this rank."""
    kv_heads: int
    """KV heads of this rank; 1 for MLA, whose latent every rank holds whole."""
    head_dim: int
    """Width of a key in the cache: the latent with its rope part for MLA."""
    head_dim_v: int | None = None
    """Width of a value; None where it is that of the key."""
    mla: MlaDims | None = None
    """The latent's widths; None for an ordinary layer."""
    index_topk: int | None = None
    """Keys that a sparse layer's indexer keeps, as the configuration states it; None for a dense layer."""
    sparse: bool = False
    """The layer reads only the keys that an indexer picks."""
    sinks: bool = False
    """The layer has a learned logit per head in its softmax."""
    window: int | None = None
    """Keys a query may see, itself included; None is full attention."""
    softcap: bool = False
    """The layer caps its logits."""
    dtype: str = "bfloat16"
    """Element type of the model: bfloat16, float16 or float32."""
    image_prefix: bool = False
    """Tokens of an image attend to each other in both directions (a prefix language model)."""
    state_bytes: int | None = None
    """Bytes of a recurrent layer's state beside this layer, for a hybrid model; None without such layers."""
    context_ranks: int = 1
    """Ranks that divide the keys of a request (decode context parallelism)."""

    def __post_init__(self) -> None:
        for name in ("q_heads", "kv_heads", "head_dim"):
            check_count(name, getattr(self, name), high=1 << 24)
        if self.dtype not in _MODEL_DTYPES:
            raise UnknownNameError("model dtype", str(self.dtype), _MODEL_DTYPES)
        object.__setattr__(self, "dtype", _MODEL_DTYPES[self.dtype])

    @property
    def group(self) -> int:
        """Query heads to one KV head, rounded down as servers do."""
        return self.q_heads // self.kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """What a user of vLLM sets beside the question's own fields, and what its host has installed."""

    batch_invariant: bool = False
    """VLLM_BATCH_INVARIANT=1."""
    flash_attn_version: int | None = None
    """`--attention-config.flash_attn_version` (2, 3 or 4)."""
    use_trtllm_attention: bool | None = None
    """`--attention-config.use_trtllm_attention`."""
    disable_flashinfer_q_quantization: bool = False
    """`--attention-config.disable_flashinfer_q_quantization`: queries keep the model's dtype with an FP8 cache."""
    flash_attn_max_num_splits_for_cuda_graph: int = 32
    """`--attention-config.flash_attn_max_num_splits_for_cuda_graph`."""
    tq_max_kv_splits_for_cuda_graph: int = 32
    """`--attention-config.tq_max_kv_splits_for_cuda_graph`."""
    use_non_causal: bool = False
    """`--attention-config.use_non_causal`."""
    backend_per_kind: Mapping[str, str] = field(default_factory=dict)
    """`--attention-config.backend_per_kind`: a backend for one kind of cache group (full_attention, sliding_window,
    mla_attention, sliding_window_mla), before `backend`."""
    cudagraph_mode: str = "FULL_AND_PIECEWISE"
    """`--compilation-config.cudagraph_mode`: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE."""
    max_cudagraph_capture_size: int | None = None
    """Largest captured batch, in tokens; None takes every decode step for a captured one under full graphs."""
    flashinfer: str = INSTALLED
    """`installed`, `no_cubins` (no flashinfer-cubin package and the download host out of reach) or `absent`."""
    b12x_installed: bool = False
    """The `b12x` package is installed."""
    tokenspeed_installed: bool = True
    """The `tokenspeed-mla` package, which vLLM's wheel requires, is installed."""
    aiter: bool = True
    """The aiter package is installed (AMD only)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server's process."""

    def __post_init__(self) -> None:
        if self.flashinfer not in (INSTALLED, NO_CUBINS, ABSENT):
            raise UnknownNameError("state of the FlashInfer package", str(self.flashinfer), FLASHINFER_STATES)

    @property
    def has_full_graphs(self) -> bool:
        """Whether whole decode steps are captured (`CUDAGraphMode.has_full_cudagraphs`)."""
        return self.cudagraph_mode.upper() in ("FULL", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")

    def flag(self, name: str, default: str) -> bool:
        """A boolean environment variable as `vllm/envs.py` reads it."""
        return str(self.env.get(name, default)).lower() in ("true", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """What a user of SGLang sets beside the question's own fields, and what its host has installed."""

    architecture: str | None = None
    """The first of the configuration's `architectures`, for SGLang's overrides."""
    tp_size: int = 1
    """`--tensor-parallel-size`."""
    prefill_attention_backend: str | None = None
    """`--prefill-attention-backend`."""
    decode_attention_backend: str | None = None
    """`--decode-attention-backend`."""
    deterministic: bool = False
    """`--enable-deterministic-inference`."""
    num_kv_splits: int | None = None
    """`--triton-attention-num-kv-splits`."""
    split_tile_size: int | None = None
    """`--triton-attention-split-tile-size`."""
    speculative_algorithm: str | None = None
    """`--speculative-algorithm`."""
    speculative_eagle_topk: int | None = None
    """`--speculative-eagle-topk`."""
    flashinfer_installed: bool = True
    """The flashinfer-python package is installed."""
    aiter_preshuffle: bool = False
    """aiter's preshuffled paged kernel can be used (Triton 3.5 or newer): DeepSeek's sparse cache then has pages on
    AMD too."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One layer on one GPU under one server's settings.

    `kv_cache_dtype`, `page_size` and `backend` are what the user gave, in the server's own words; None (or `auto`)
    where nothing was given.
    """

    layer: Layer
    """The layer."""
    gpu: Gpu
    """The GPU; its compute capability (NVIDIA) or gfx name (AMD) decides."""
    kv_cache_dtype: str = "auto"
    """`--kv-cache-dtype`."""
    page_size: int | None = None
    """`--block-size` of vLLM, `--page-size` of SGLang."""
    backend: str | None = None
    """`--attention-backend`."""
    settings: VllmSettings | SglangSettings | None = None
    """Settings of the server asked; None takes its defaults."""

    def __post_init__(self) -> None:
        if self.page_size is not None:
            check_count("page_size", self.page_size, high=1 << 24)

    def vllm(self) -> VllmSettings:
        """vLLM's settings; InputError when the question holds another server's."""
        if self.settings is None:
            return VllmSettings()
        if not isinstance(self.settings, VllmSettings):
            raise InputError("the question's settings are not vLLM's: give VllmSettings")
        return self.settings

    def sglang(self) -> SglangSettings:
        """SGLang's settings; InputError when the question holds another server's."""
        if self.settings is None:
            return SglangSettings()
        if not isinstance(self.settings, SglangSettings):
            raise InputError("the question's settings are not SGLang's: give SglangSettings")
        return self.settings

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the GPU by its name."""
        from dataclasses import asdict

        values = {name: getattr(self, name) for name in ("kv_cache_dtype", "page_size", "backend")}
        settings = asdict(self.settings) if self.settings else None
        layer = asdict(self.layer)
        layer["mla"] = None if self.layer.mla is None else self.layer.mla._asdict()
        return {"layer": layer, "gpu": self.gpu.label, **values, "settings": settings}


FLASHINFER_STATES = (INSTALLED, NO_CUBINS, ABSENT)

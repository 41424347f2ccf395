"""The parameters in which vLLM's releases differ; the defaults are the newest release's."""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.servers.context import vllm_backends

_ALL_QUANTISED = ("fp8", "nvfp4", "turboquant_", "octave_", "ultraquant_")


class VllmRules(NamedTuple):
    """Parameters of one release."""

    quantized_prefixes: tuple[str, ...] = _ALL_QUANTISED
    """Cache types that count as quantised, beside those per token and head."""
    quantized_names: tuple[str, ...] = ()
    """Cache types that count as quantised under this very name alone."""
    names_missing_module: bool = True
    """A package that is missing is named in the reason; releases before 0.29 say only `ImportError`."""
    asks_window: bool = True
    """A layer with a sliding window asks the backend for it."""
    # The device's lists
    lists_non_causal: bool = True
    """A non-causal model on compute capability 10.x gets the list of the other devices."""
    lists_image_prefix: bool = True
    """Composite backends stand in front for models with an image prefix."""
    lists_tokenspeed: bool = True
    """TOKENSPEED_MLA is a candidate on compute capability 10.x."""
    lists_sm120_mla: bool = True
    """Compute capability 12.x has an MLA list of its own."""
    lists_sparse_fa4: bool = True
    """FLASH_ATTN_MLA_SPARSE_FA4 comes first for at most 16 query heads with a 16-bit cache."""
    lists_sparse_hopper: tuple[str, ...] = ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")
    """Sparse backends below 10.x."""
    lists_sparse_sm90_flashinfer: bool = True
    """FLASHINFER_MLA_SPARSE_SM90 is a candidate: first at head dim 512, else last."""
    lists_rdna_unified: bool = True
    """ROCM_AITER_UNIFIED_ATTN comes first on RDNA 4 with VLLM_ROCM_USE_AITER."""
    lists_rocm_tail: tuple[str, ...] = ("TRITON_ATTN", "TURBOQUANT", "ROCM_OCTAVE", "ULTRAQUANT")
    """Last candidates on AMD."""
    # FlashAttention
    fa3_wide_heads_become_fa4: bool = True
    """FlashAttention 3 on Hopper gives way to 4 above head dim 256."""
    fa4_hd256: str = "kernel"
    """Head dim 256 on Blackwell: `kernel` (a kernel of its own with its conditions), `no_window` or `no`."""
    fa4_takes_192: bool = False
    """FlashAttention 4 on Blackwell takes head dim 192 whatever the value's width."""
    fa4_fp8: bool = True
    """FlashAttention 4 on Blackwell reads an FP8 cache."""
    fa4_hopper_fp8: bool = True
    """FlashAttention 4 on Hopper reads an FP8 cache at head dim 512."""
    fa_fp8_sentence: str | None = "FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100"
    """FLASH_ATTN's own reason against an FP8 cache; None in releases that have none."""
    fa_full_graph_versions: tuple[int, ...] = (3, 4)
    """Versions of FlashAttention under which any batch can be captured whole."""
    # FlashInfer
    xqa_families: tuple[int, ...] = (90, 120)
    """Compute capabilities whose decode kernel behind the TensorRT-LLM interface is XQA."""
    trtllm_phases: bool = True
    """Prefill and decoding ask for TensorRT-LLM kernels apart."""
    fi_sink_families: tuple[int, ...] = (90, 120)
    """Compute capabilities beside 10.x on which FLASHINFER takes sinks."""
    fi_xqa_checks_head: bool = True
    """XQA gives way to the native kernel for head dims it has not."""
    fi_graphs_check_head: bool = True
    """So does the class of CUDA-graph support."""
    fi_hopper_single_token: bool = False
    """On Hopper only single query tokens are captured."""
    fi_hopper_window_fails: bool = False
    """The metadata builder refuses sliding windows on Hopper."""
    fi_nvfp4_checked: bool = True
    """An NVFP4 cache asks for a device at selection."""
    fi_nvfp4_fa2: bool = True
    """The fa2 kernel reads an NVFP4 cache on 8.x, 9.0 and 12.x."""
    fi_pins_fa2: bool = True
    """The native wrapper is told `fa2` below compute capability 9.0."""
    fi_large_pages: bool = True
    """Pages of 128 keys and more with trtllm-gen."""
    # Sparse MLA
    flashmla_sparse_no_rope: tuple[str, ...] = ("fp8_ds_mla",)
    """Cache types beside the 16-bit ones that FLASHMLA_SPARSE takes at head dim 512 on Hopper; empty in releases that
    do not look at that head dim apart."""
    flashmla_sparse_devices: str = "Hopper and Blackwell DC"
    """The devices that FlashMLA Sparse names when it refuses."""
    flashmla_sparse_nvfp4: bool = True
    """FLASHMLA_SPARSE knows an NVFP4 layout, on 10.x only."""
    flashinfer_sparse_no_rope: bool = True
    """FLASHINFER_MLA_SPARSE looks at models without rope apart."""
    # Decode context parallelism (`servers.context`)
    dcp_backends: tuple[str, ...] = vllm_backends("0.33.0")
    """Backends that can divide a request's keys over ranks."""
    dcp_selects: bool = True
    """Other backends are left out of the choice; else the server stops at start-up."""
    # Pages
    mla_hybrid_page: int = 128
    """Least page of a hybrid MLA model; 1 in releases without one."""
    ds_mla_bytes: bool = False
    """`fp8_ds_mla` counts 656 bytes a key in a hybrid's page."""

"""vLLM's releases: what differs from one to the next, as chains of `replace` from the newest back.

Read from the wheels of every release named here; 0.24.0, 0.27.1, 0.30.0 and 0.33.0 are checked against recordings of
the engine's own answers. Limits: causal decoding without context parallelism, KV connectors or adaptive verification;
a hybrid's state in the cache's `align` mode and a float32 state under 0.24 (which changes FLASH_ATTN's pages) are not
modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from decodecalc.errors import UnknownNameError
from decodecalc.launch.policy import version_key
from decodecalc.servers.vllm import backends as b
from decodecalc.servers.vllm.accepts import Accepts

_PLAIN_QUANTISED = ("fp8", "nvfp4")
_ALL_QUANTISED = ("fp8", "nvfp4", "turboquant_", "octave_", "ultraquant_")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRules:
    """Parameters of one release."""

    backends: Mapping[str, Accepts] = field(default_factory=dict, repr=False)
    """What each backend accepts; a name that is missing cannot be given either."""
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
    # Pages
    mla_hybrid_page: int = 128
    """Least page of a hybrid MLA model; 1 in releases without one."""
    ds_mla_bytes: bool = False
    """`fp8_ds_mla` counts 656 bytes a key in a hybrid's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release whose rules were read, and the releases it is known to hold for."""

    name: str
    """The release."""
    first: str
    """First release it holds for."""
    last: str
    """Last release it holds for."""
    rules: VllmRules
    """The rules."""
    recorded: bool = False
    """Checked against recordings of the engine's own answers."""

    @property
    def source(self) -> str:
        """Where the rules were read."""
        return (
            f"vLLM wheel {self.name}: vllm/v1/attention/selector.py, vllm/platforms/cuda.py and rocm.py "
            "(_get_backend_priorities), vllm/v1/attention/backend.py (validate_configuration), "
            "vllm/v1/attention/backends/, vllm/platforms/interface.py (update_block_size_for_backend)"
        )


_OLD_FP8 = "FP8 KV cache requires FA3 on SM90 or FA4 on SM100"
_V33 = VllmRules(backends=b.NEWEST)
_V32 = replace(
    _V33,
    backends=b.before_33(_V33.backends),
    quantized_prefixes=_PLAIN_QUANTISED,
    lists_sparse_fa4=False,
    lists_rocm_tail=("TRITON_ATTN", "TURBOQUANT", "ULTRAQUANT"),
    fa_full_graph_versions=(3,),
)
_V31 = replace(
    _V32,
    backends=b.before_32(_V32.backends),
    lists_rocm_tail=("TRITON_ATTN", "TURBOQUANT"),
    fi_nvfp4_fa2=False,
    fi_pins_fa2=False,
    flashmla_sparse_no_rope=("bfloat16",),
)
_V30 = replace(
    _V31,
    backends=b.before_31(_V31.backends),
    fa4_hopper_fp8=False,
    fa_fp8_sentence=_OLD_FP8,
    flashmla_sparse_no_rope=(),
)
_V29 = replace(
    _V30,
    backends=b.before_30(_V30.backends),
    lists_image_prefix=False,
    lists_sparse_sm90_flashinfer=False,
    fi_sink_families=(120,),
    fi_graphs_check_head=False,
    fi_hopper_single_token=True,
    flashmla_sparse_nvfp4=False,
    fi_hopper_window_fails=True,
    flashinfer_sparse_no_rope=False,
)
_V28 = replace(_V29, fa4_hd256="no", fi_xqa_checks_head=False, names_missing_module=False, ds_mla_bytes=True)
_V27 = replace(
    _V28,
    backends=b.before_28(_V28.backends),
    lists_rdna_unified=False,
    fa4_hd256="no_window",
    quantized_prefixes=("fp8",),
    quantized_names=("nvfp4",),
    xqa_families=(90,),
    fi_sink_families=(),
)
_V26 = replace(_V27, fa4_hd256="no", fa4_takes_192=True, fa4_fp8=False, fa_fp8_sentence=None, mla_hybrid_page=1)
_V25 = replace(_V26, backends=b.before_26(_V26.backends), asks_window=False, lists_non_causal=False)
_V24 = replace(
    _V25,
    backends=b.before_25(_V25.backends),
    lists_sparse_hopper=("FLASHMLA_SPARSE",),
    xqa_families=(),
    trtllm_phases=False,
    fi_hopper_single_token=False,
    fi_hopper_window_fails=False,
    fi_nvfp4_checked=False,
)
_V23 = replace(
    _V24,
    backends=b.before_24(_V24.backends),
    lists_sm120_mla=False,
    fi_large_pages=False,
    flashmla_sparse_devices="Hopper and Blackwell",
)
_V22 = replace(_V23, backends=b.before_23(_V23.backends))
_V21 = replace(_V22, backends=b.before_22(_V22.backends))
_V20 = replace(_V21, backends=b.before_21(_V21.backends), lists_tokenspeed=False, fa3_wide_heads_become_fa4=False)

RELEASES = (
    Release(name="0.33.0", first="0.33.0", last="0.33.0", rules=_V33, recorded=True),
    Release(name="0.32.0", first="0.32.0", last="0.32.0", rules=_V32),
    Release(name="0.31.0", first="0.31.0", last="0.31.0", rules=_V31),
    Release(name="0.30.0", first="0.30.0", last="0.30.0", rules=_V30, recorded=True),
    Release(name="0.29.0", first="0.29.0", last="0.29.0", rules=_V29),
    Release(name="0.28.0", first="0.28.0", last="0.28.0", rules=_V28),
    Release(name="0.27.1", first="0.27.0", last="0.27.1", rules=_V27, recorded=True),
    Release(name="0.26.0", first="0.26.0", last="0.26.0", rules=_V26),
    Release(name="0.25.1", first="0.25.0", last="0.25.1", rules=_V25),
    Release(name="0.24.0", first="0.24.0", last="0.24.0", rules=_V24, recorded=True),
    Release(name="0.23.0", first="0.23.0", last="0.23.0", rules=_V23),
    Release(name="0.22.1", first="0.22.0", last="0.22.1", rules=_V22),
    Release(name="0.21.0", first="0.21.0", last="0.21.0", rules=_V21),
    Release(name="0.20.2", first="0.20.0", last="0.20.2", rules=_V20),
)


def release_of(version: str | None) -> Release:
    """The release whose rules hold for `version`; the newest for None. UnknownNameError names those there are."""
    if version is None:
        return RELEASES[0]
    key = version_key(version)
    for release in RELEASES:
        if version == release.name or version_key(release.first) <= key <= version_key(release.last):
            return release
    short = [r for r in RELEASES if version_key(r.name)[: len(key)] == key]
    if short:
        return short[0]
    raise UnknownNameError("version of vllm", version, [r.name for r in RELEASES], "0.20 to 0.33 are known")

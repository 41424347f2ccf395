"""vLLM's releases: what differs from one to the next, as chains of `replace` from the newest back.

Read from the wheels of every release named here; 0.24.0, 0.27.1, 0.30.0 and 0.33.0 are checked against recordings of
the engine's own answers. Limits: causal decoding without prefill context parallelism, KV connectors or adaptive
verification;
a hybrid's state in the cache's `align` mode and a float32 state under 0.24 (which changes FLASH_ATTN's pages) are not
modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decodecalc.errors import UnknownNameError
from decodecalc.launch.policy import version_key
from decodecalc.servers.context import vllm_backends, vllm_selects
from decodecalc.servers.vllm import backends as b
from decodecalc.servers.vllm.accepts import Accepts
from decodecalc.servers.vllm.parameters import VllmRules

_PLAIN_QUANTISED = ("fp8", "nvfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRelease:
    """A release whose rules were read, and the releases it is known to hold for."""

    name: str
    """The release."""
    first: str
    """First release it holds for."""
    last: str
    """Last release it holds for."""
    rules: VllmRules
    """The rules."""
    backends: Mapping[str, Accepts] = field(repr=False)
    """What each backend accepts; a name that is missing cannot be given either."""
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
_V33 = VllmRules()
_V32 = _V33._replace(
    quantized_prefixes=_PLAIN_QUANTISED,
    lists_sparse_fa4=False,
    lists_rocm_tail=("TRITON_ATTN", "TURBOQUANT", "ULTRAQUANT"),
    fa_full_graph_versions=(3,),
)
_V31 = _V32._replace(
    lists_rocm_tail=("TRITON_ATTN", "TURBOQUANT"),
    fi_nvfp4_fa2=False,
    fi_pins_fa2=False,
    flashmla_sparse_no_rope=("bfloat16",),
)
_V30 = _V31._replace(
    fa4_hopper_fp8=False,
    fa_fp8_sentence=_OLD_FP8,
    flashmla_sparse_no_rope=(),
)
_V29 = _V30._replace(
    lists_image_prefix=False,
    lists_sparse_sm90_flashinfer=False,
    fi_sink_families=(120,),
    fi_graphs_check_head=False,
    fi_hopper_single_token=True,
    flashmla_sparse_nvfp4=False,
    fi_hopper_window_fails=True,
    flashinfer_sparse_no_rope=False,
)
_V28 = _V29._replace(
    fa4_hd256="no",
    fi_xqa_checks_head=False,
    names_missing_module=False,
    ds_mla_bytes=True,
    dcp_backends=vllm_backends("0.28.0"),
    dcp_selects=vllm_selects("0.28.0"),
)
_V27 = _V28._replace(
    lists_rdna_unified=False,
    fa4_hd256="no_window",
    quantized_prefixes=("fp8",),
    quantized_names=("nvfp4",),
    xqa_families=(90,),
    fi_sink_families=(),
)
_V26 = _V27._replace(fa4_hd256="no", fa4_takes_192=True, fa4_fp8=False, fa_fp8_sentence=None, mla_hybrid_page=1)
_V25 = _V26._replace(asks_window=False, lists_non_causal=False, dcp_backends=vllm_backends("0.25.1"))
_V24 = _V25._replace(
    lists_sparse_hopper=("FLASHMLA_SPARSE",),
    xqa_families=(),
    trtllm_phases=False,
    fi_hopper_single_token=False,
    fi_hopper_window_fails=False,
    fi_nvfp4_checked=False,
    dcp_backends=vllm_backends("0.24.0"),
)
_V23 = _V24._replace(
    lists_sm120_mla=False,
    fi_large_pages=False,
    flashmla_sparse_devices="Hopper and Blackwell",
)
_V20 = _V23._replace(lists_tokenspeed=False, fa3_wide_heads_become_fa4=False)

# What each backend accepts, from the newest release back; a release without a line has those of the one above.
_B33 = b.NEWEST
_B32 = b.before_33(_B33)
_B31 = b.before_32(_B32)
_B30 = b.before_31(_B31)
_B29 = b.before_30(_B30)
_B27 = b.before_28(_B29)
_B25 = b.before_26(_B27)
_B24 = b.before_25(_B25)
_B23 = b.before_24(_B24)
_B22 = b.before_23(_B23)
_B21 = b.before_22(_B22)
_B20 = b.before_21(_B21)

RELEASES = (
    VllmRelease(name="0.33.0", first="0.33.0", last="0.33.0", rules=_V33, backends=_B33, recorded=True),
    VllmRelease(name="0.32.0", first="0.32.0", last="0.32.0", rules=_V32, backends=_B32),
    VllmRelease(name="0.31.0", first="0.31.0", last="0.31.0", rules=_V31, backends=_B31),
    VllmRelease(name="0.30.0", first="0.30.0", last="0.30.0", rules=_V30, backends=_B30, recorded=True),
    VllmRelease(name="0.29.0", first="0.29.0", last="0.29.0", rules=_V29, backends=_B29),
    VllmRelease(name="0.28.0", first="0.28.0", last="0.28.0", rules=_V28, backends=_B29),
    VllmRelease(name="0.27.1", first="0.27.0", last="0.27.1", rules=_V27, backends=_B27, recorded=True),
    VllmRelease(name="0.26.0", first="0.26.0", last="0.26.0", rules=_V26, backends=_B27),
    VllmRelease(name="0.25.1", first="0.25.0", last="0.25.1", rules=_V25, backends=_B25),
    VllmRelease(name="0.24.0", first="0.24.0", last="0.24.0", rules=_V24, backends=_B24, recorded=True),
    VllmRelease(name="0.23.0", first="0.23.0", last="0.23.0", rules=_V23, backends=_B23),
    VllmRelease(name="0.22.1", first="0.22.0", last="0.22.1", rules=_V23, backends=_B22),
    VllmRelease(name="0.21.0", first="0.21.0", last="0.21.0", rules=_V23, backends=_B21),
    VllmRelease(name="0.20.2", first="0.20.0", last="0.20.2", rules=_V20, backends=_B20),
)


def release_of(version: str | None) -> VllmRelease:
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

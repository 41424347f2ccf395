"""SGLang's releases: what differs from one to the next, as a chain of `replace` from the newest back.

0.5.10.post1 and 0.5.23 are checked against recordings of the engine's own answers. In the wheels between them only the
parameters of this page were looked up, not every step of the resolution: an answer for them says so. Limits: no data,
prefill context or pipeline parallelism, no HiCache, no PD disaggregation, no multimodal or diffusion models.
"""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.errors import UnknownNameError
from decodecalc.launch.policy import version_key

_CHOICES = (
    "triton", "torch_native", "flex_attention", "dsa", "nsa", "qsa", "dsv4", "compressed", "fa3", "fa4", "flashinfer",
    "llada2_cfg_flashinfer", "flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "trtllm_mha", "hpc_ops",
    "minicpm_flashattn", "minicpm_flashinfer", "aiter", "wave", "intel_amx", "ascend", "intel_xpu",
)  # fmt: skip
_OLD_CHOICES = (
    "triton", "torch_native", "flex_attention", "nsa", "cutlass_mla", "fa3", "fa4", "flashinfer", "flashmla",
    "trtllm_mla", "trtllm_mha", "dual_chunk_flash_attn", "aiter", "wave", "intel_amx", "ascend", "intel_xpu",
)  # fmt: skip
_DEEPSEEK = (
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration", "GlmMoeDsaForCausalLM",
)  # fmt: skip


class SglangServerRules(NamedTuple):
    """Parameters of one release."""

    choices: tuple[str, ...] = _CHOICES
    """Values of `--attention-backend`."""
    deterministic_choices: tuple[str, ...] = ("ascend", "fa3", "fa4", "flashinfer", "intel_xpu", "triton")
    """Backends that `--enable-deterministic-inference` takes."""
    radix_deterministic: tuple[str, ...] = ("ascend", "fa3", "fa4", "triton")
    """Those under which the radix cache stays on."""
    deterministic_first: bool = True
    """The deterministic default is filled in before the generic one."""
    deepseek: tuple[str, ...] = (*_DEEPSEEK, "Glm4MoeLiteForCausalLM", "Glm5NextForConditionalGeneration")
    """Architectures whose deterministic mode takes only backends that keep the radix cache."""
    dsa_name: str = "dsa"
    """The sparse backend's name."""
    dsa_field: str = "dsa"
    """Prefix of the fields of its split backends."""
    dsa_hip: str = "triton"
    """Its kernels on AMD."""
    dsa_hopper_fp8_prefill: str = "flashmla_kv"
    """Its prefill kernel with an FP8 cache below compute capability 10.0."""
    dsa_glm_sm12: bool = True
    """GLM on 12.x with an FP8 cache has kernels of its own."""
    dsa_class: str = "DeepseekSparseAttnBackend"
    """Its class."""
    trtllm_mha_prefill: tuple[int, ...] = (9, 10, 12)
    """Major compute capabilities whose prefill trtllm_mha serves."""
    trtllm_mha_pages: tuple[int, ...] = (16, 32, 64, 128)
    """Pages that trtllm_mha keeps."""
    trtllm_mla_kv: tuple[str, ...] = ("fp8_e4m3", "bf16", "auto")
    """Cache types that trtllm_mla takes."""
    fa4_page_prefill_only: bool = False
    """Only a prefill backend given by name makes fa4's page 128."""
    page_tree: tuple[str, ...] = ("flashinfer", "fa3", "triton")
    """Backends that draft with top-k over 1 on pages of several keys."""
    page_tree_words: bool = True
    """The refusal names them."""
    sinks_need_triton: bool = True
    """The generic default does not give a model with sinks to flashinfer."""
    asymmetric_needs_fa4: bool = True
    """Unequal key and value widths take fa4 instead of trtllm_mha."""
    knows_2026_models: bool = True
    """Gemma 4, MiMo V2 and Inkling have rules of their own."""
    exaone_default: bool = True
    """Exaone4 has a default of its own."""
    gpt_oss_choices: tuple[str, ...] = (
        "triton", "trtllm_mha", "fa3", "fa4", "ascend", "intel_amx", "intel_xpu", "aiter",
    )  # fmt: skip
    """Backends that gpt-oss takes."""
    mamba_no_buffer: tuple[str, ...] = ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
    """Hybrid architectures whose state cache has no second buffer, so that pages hold one key."""
    mamba_refuses_drafts: bool = False
    """Hybrid architectures refuse speculative decoding."""
    nemotron_on_blackwell: bool = True
    """NemotronH has defaults of its own on Blackwell; before, flashinfer on 10.x."""
    small_gpu_graphs: tuple[int, int] = (48, 160)
    """Largest captured batch on GPUs of 20 to 35 GiB: below and from four ranks on."""


class SglangRelease(NamedTuple):
    """A release whose rules were read, and the releases that are answered with them."""

    name: str
    """The release."""
    first: str
    """First release."""
    last: str
    """Last release."""
    rules: SglangServerRules
    """The rules."""
    source: str
    """Where they were read."""
    recorded: bool = False
    """Checked against recordings of the engine's own answers."""


_V23 = SglangServerRules()
_V21 = _V23._replace(exaone_default=False)
_V20 = _V21._replace(trtllm_mla_kv=("fp8_e4m3", "fp4_e2m1", "bf16", "auto"))
_V19 = _V20._replace(choices=(*_CHOICES, "cutlass_mla"), dsa_hip="tilelang", small_gpu_graphs=(24, 80))
_V18 = _V19._replace(
    deterministic_choices=("ascend", "fa3", "fa4", "flashinfer", "triton"),
    trtllm_mha_prefill=(10,),
    nemotron_on_blackwell=False,
)
_V16 = _V18._replace(
    choices=tuple(name for name in _V18.choices if name != "hpc_ops"),
    trtllm_mha_pages=(16, 32, 64),
    asymmetric_needs_fa4=False,
    dsa_glm_sm12=False,
)
_V15 = _V16._replace(
    deterministic_choices=("flashinfer", "fa3", "triton", "ascend"),
    radix_deterministic=("fa3", "triton", "ascend"),
    deepseek=_DEEPSEEK,
)
_V14 = _V15._replace(fa4_page_prefill_only=True)
_V12 = _V14._replace(
    choices=_OLD_CHOICES,
    deterministic_choices=("flashinfer", "fa3", "triton"),
    radix_deterministic=("fa3", "triton"),
    dsa_name="nsa",
    dsa_field="nsa",
    dsa_hopper_fp8_prefill="flashmla_auto",
    dsa_class="NativeSparseAttnBackend",
    page_tree=("flashinfer", "fa3"),
    page_tree_words=False,
    knows_2026_models=False,
)
_V11 = _V12._replace(
    deterministic_first=False,
    gpt_oss_choices=("triton", "trtllm_mha", "fa3", "fa4", "ascend", "aiter"),
    mamba_no_buffer=(),
    mamba_refuses_drafts=True,
)
_V10 = _V11._replace(sinks_need_triton=False)

_NEW_FILES = (
    "sglang/srt/arg_groups/ (pipeline, attention_hook, model_hook, overrides, model_override_base, model_overrides, "
    "memory_hook, speculative_hook), sglang/srt/layers/attention/attention_registry.py"
)
_OLD_FILES = (
    "sglang/srt/server_args.py (ServerArgs.__post_init__ and its handlers), "
    "sglang/srt/layers/attention/attention_registry.py"
)


def _release(name: str, first: str, rules: SglangServerRules, files: str, *, recorded: bool = False) -> SglangRelease:
    source = f"SGLang wheel {name}: {files}"
    return SglangRelease(name=name, first=first, last=name, rules=rules, source=source, recorded=recorded)


RELEASES = (
    _release("0.5.23", "0.5.23", _V23, _NEW_FILES, recorded=True),
    _release("0.5.22", "0.5.22", _V23, _NEW_FILES),
    _release("0.5.21", "0.5.21", _V21, _NEW_FILES),
    _release("0.5.20", "0.5.20", _V20, _NEW_FILES),
    _release("0.5.19", "0.5.19", _V19, _NEW_FILES),
    _release("0.5.18", "0.5.17", _V18, _OLD_FILES),
    _release("0.5.16", "0.5.16", _V16, _OLD_FILES),
    _release("0.5.15.post1", "0.5.15", _V15, _OLD_FILES),
    _release("0.5.14", "0.5.13", _V14, _OLD_FILES),
    _release("0.5.12.post1", "0.5.12", _V12, _OLD_FILES),
    _release("0.5.11", "0.5.11", _V11, _OLD_FILES),
    _release("0.5.10.post1", "0.5.10", _V10, _OLD_FILES, recorded=True),
)


def release_of(version: str | None) -> SglangRelease:
    """The release whose rules answer `version`; the newest for None. UnknownNameError names those there are."""
    if version is None:
        return RELEASES[0]
    key = version_key(version)
    for release in RELEASES:
        if version == release.name or version_key(release.first) <= key <= version_key(release.last):
            return release
    raise UnknownNameError("version of sglang", version, [r.name for r in RELEASES], "0.5.10 to 0.5.23 are known")

"""SGLang's generic and per-architecture defaults.

Source: 0.5.23 `arg_groups/model_override_base.py: get_default_attn_backend` and `arg_groups/model_overrides/`;
0.5.10.post1 `server_args.py: _get_default_attn_backend, _handle_model_specific_adjustments`.
"""

from __future__ import annotations

from collections.abc import Callable

from decodecalc.servers.sglang.state import ServerState


def generic_default(state: ServerState) -> str:
    """The backend where neither the user nor the architecture chose one."""
    topk_one = state.topk == 0 or (state.topk == 1 and state.page in (1, None))
    if not state.has_mla:
        if state.on_hopper and topk_one:
            return "fa3"
        known_topk = not state.drafts or state.topk > 0 or str(state.settings.speculative_algorithm).upper() == "DFLASH"
        if state.on_sm100 and topk_one and known_topk:
            layer = state.layer
            asymmetric = layer.head_dim_v is not None and layer.head_dim_v != layer.head_dim
            return "fa4" if asymmetric and state.rules.asymmetric_needs_fa4 else "trtllm_mha"
        if state.device.hip:
            return "aiter"
        sinks = state.layer.sinks and state.rules.sinks_need_triton
        return "flashinfer" if state.settings.flashinfer_installed and not sinks else "triton"
    if state.on_hopper:
        return "fa3"
    if state.on_sm100:
        return "flashinfer"
    if state.device.hip:
        return "aiter" if state.layer.q_heads in (16, 128) else "triton"
    return "triton"


def _by_device(state: ServerState, *, sm100: str, hopper: str, hip: str | None, other: str) -> str:
    if state.on_sm100:
        return sm100
    if state.on_hopper:
        return hopper
    return hip if hip is not None and state.device.hip else other


def _gpt_oss(state: ServerState) -> None:
    if state.nothing_given:
        backend = _by_device(state, sm100="trtllm_mha", hopper="fa3", hip="aiter", other="triton")
        state.choose(backend, "gpt-oss has this default on this device")


def _llama4(state: ServerState) -> None:
    if state.attention is None:
        backend = _by_device(state, sm100="trtllm_mha", hopper="fa3", hip="aiter", other="triton")
        state.choose(backend, "Llama 4 has this default on this device")


def _gemma4(state: ServerState) -> None:
    if state.attention is None and state.rules.knows_2026_models:
        state.choose("trtllm_mha" if state.on_sm100 else "triton", "Gemma 4 has this default on this device")


def _sliding_by_capability(state: ServerState) -> None:
    """Olmo 2 and 3, Exaone 4: fa3 from compute capability 8.0 on, also where fa3 then refuses to start."""
    if state.attention is None:
        on_cuda = not state.device.hip and state.device.capability >= (8, 0)
        backend = "trtllm_mha" if state.on_sm100 else "fa3" if on_cuda else "triton"
        state.choose(backend, f"{state.architecture} has this default on this device")


def _exaone(state: ServerState) -> None:
    if state.rules.exaone_default and state.layer.window is not None:
        _sliding_by_capability(state)


def _sm100(backend: str) -> Callable[[ServerState], None]:
    def override(state: ServerState) -> None:
        if state.on_sm100 and state.attention is None:
            state.choose(backend, f"{state.architecture} has this default on compute capability 10.x")

    return override


def _qwen3_hybrid(state: ServerState) -> None:
    """Qwen3-Next and Qwen3.5: trtllm_mha needs pages, which the state cache takes only with drafts."""
    if not state.on_sm100 or state.attention is not None:
        return
    paged = generic_default(state) == "trtllm_mha" and state.drafts
    state.choose("trtllm_mha" if paged else "triton", f"{state.architecture} has this default on 10.x")
    if state.rules.deterministic_first:  # the newer releases set the page with it
        state.impose_page(64 if paged else 1, f"{state.architecture} sets it with its backend on 10.x")


def _nemotron_h(state: ServerState) -> None:
    if not state.rules.nemotron_on_blackwell:
        _sm100("flashinfer")(state)
        return
    if not state.on_blackwell or not state.nothing_given:
        return
    if not state.drafts:
        if state.on_sm100:
            state.choose("trtllm_mha", "NemotronH has this default on compute capability 10.x")
    elif state.on_sm100 and state.topk <= 1:
        state.choose("trtllm_mha", "NemotronH has this default on compute capability 10.x with one draft branch")
        if state.page is None:
            state.impose_page(64, "NemotronH sets it with trtllm_mha")
    else:
        state.choose("triton", "NemotronH has this default on Blackwell with drafts")


def _granite(state: ServerState) -> None:
    """Granite hybrids; SGLang looks for a recurrent layer, which `state_bytes` stands for here."""
    if state.layer.state_bytes is not None:
        _sm100("flashinfer" if state.rules.knows_2026_models else "triton")(state)


def _deepseek(state: ServerState) -> None:
    if state.is_dsa:
        if state.nothing_given:
            state.choose(state.rules.dsa_name, "DeepSeek sparse attention has a backend of its own")
        _dsa_page(state)
    elif state.on_sm100 and state.nothing_given:
        state.choose("trtllm_mla", "DeepSeek V3 and R1 have this default on compute capability 10.x")


def _dsa_page(state: ServerState) -> None:
    preshuffled = state.rules.deterministic_first and state.settings.aiter_preshuffle
    page = 1 if state.device.hip and not preshuffled else 64
    state.impose_page(page, "DeepSeek sparse attention stores its cache so")


def _blackwell_fa4(state: ServerState) -> None:
    """Step 3.5 and 3.7."""
    if state.nothing_given and state.on_blackwell:
        state.choose("fa4", f"{state.architecture} has this default on Blackwell")
    elif state.nothing_given and state.on_hopper:
        state.choose("fa3", f"{state.architecture} has this default on Hopper")


def _mimo(state: ServerState) -> None:
    if state.nothing_given and state.on_sm100 and state.rules.knows_2026_models:
        state.choose("fa4", "MiMo V2 has this default on compute capability 10.x")


def _inkling(state: ServerState) -> None:
    if state.nothing_given and state.rules.knows_2026_models:
        backend = "fa4" if state.on_hopper or state.on_sm100 else "triton"
        state.choose(backend, "Inkling has this default on this device")


_OVERRIDES: dict[str, Callable[[ServerState], None]] = {
    "GptOssForCausalLM": _gpt_oss,
    "Llama4ForConditionalGeneration": _llama4,
    "Llama4ForCausalLM": _llama4,
    "Gemma4ForConditionalGeneration": _gemma4,
    "Gemma4ForCausalLM": _gemma4,
    "Olmo2ForCausalLM": _sliding_by_capability,
    "Exaone4ForCausalLM": _exaone,
    "ExaoneMoEForCausalLM": _exaone,
    "FalconH1ForCausalLM": _sm100("triton"),
    "JetNemotronForCausalLM": _sm100("triton"),
    "Lfm2ForCausalLM": _sm100("flashinfer"),
    "Lfm2MoeForCausalLM": _sm100("flashinfer"),
    "GraniteMoeHybridForCausalLM": _granite,
    "Qwen3NextForCausalLM": _qwen3_hybrid,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_hybrid,
    "Qwen3_5ForConditionalGeneration": _qwen3_hybrid,
    "NemotronHForCausalLM": _nemotron_h,
    "Step3p5ForCausalLM": _blackwell_fa4,
    "Step3p7ForConditionalGeneration": _blackwell_fa4,
    "MiMoV2ForCausalLM": _mimo,
    "MiMoV2FlashForCausalLM": _mimo,
    "InklingForConditionalGeneration": _inkling,
}
# What these raise on, after their defaults: (backends they take, words).
_HYBRIDS = (
    "Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
    "NemotronHForCausalLM", "FalconH1ForCausalLM", "JetNemotronForCausalLM", "Lfm2ForCausalLM",
)  # fmt: skip


def apply_override(state: ServerState) -> None:
    """The architecture's own default, where it has one."""
    if state.is_deepseek_family:
        _deepseek(state)
    elif (override := _OVERRIDES.get(state.architecture or "")) is not None:
        override(state)


def is_hybrid(state: ServerState) -> bool:
    """An architecture with recurrent layers whose state SGLang caches."""
    return state.architecture in _HYBRIDS

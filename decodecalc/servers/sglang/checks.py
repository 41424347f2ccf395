"""What SGLang refuses while it resolves its arguments, and the pages that its backends impose.

Source: 0.5.23 `arg_groups/model_hook.py, attention_hook.py, overrides.py, mamba_hook.py, speculative_hook.py`;
0.5.10.post1 `server_args.py: _handle_attention_backend_compatibility, _handle_deterministic_inference, …`.
"""

from __future__ import annotations

from decodecalc.servers.sglang.defaults import is_hybrid
from decodecalc.servers.sglang.state import RefusedError, ServerState


def check_choices(state: ServerState) -> None:
    """The command line takes only names of its list."""
    for name in (state.attention, state.prefill, state.decode):
        if name is not None and name not in state.rules.choices:
            raise RefusedError(f"{name} is not a choice", "not_a_choice", "invalid choice", "cli")


def apply_aliases(state: ServerState) -> None:
    """Deprecated names (0.5.23 `serving_hook.py: handle_deprecated_args`)."""
    if not state.rules.deterministic_first:
        return
    aliases = {"compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla"}
    if "tokenspeed_mla" in (state.attention, state.decode):
        state.kv_dtype = "fp8_e4m3"
    if state.prefill == "tokenspeed_mla":
        state.prefill = "trtllm_mla"
    state.attention = aliases.get(state.attention or "", state.attention)
    state.prefill = aliases.get(state.prefill or "", state.prefill)
    state.decode = aliases.get(state.decode or "", state.decode)


def check_architecture(state: ServerState) -> None:
    """The backends that an architecture takes."""
    name, rules = state.architecture, state.rules
    if name == "GptOssForCausalLM":
        taken = list(rules.gpt_oss_choices)
        if any(phase not in taken for phase in state.phases()):
            raise RefusedError(
                f"GptOssForCausalLM requires one of {taken} attention backend, but got the following backends",
                "architecture_refuses_backend",
                "AssertionError",
            )
    elif name in ("Exaone4ForCausalLM", "ExaoneMoEForCausalLM") and state.layer.window is not None:
        taken = ["fa3", "triton", "trtllm_mha"]
        if state.attention not in taken:
            raise RefusedError(
                f"One of the attention backends in {taken} is required for {name}, but got {state.attention}",
                "architecture_refuses_backend",
                "AssertionError",
            )
    elif name == "Olmo2ForCausalLM" and state.attention == "flashinfer":
        raise RefusedError(
            "FlashInfer backend can significantly degrade the performance of Olmo3 models.",
            "architecture_refuses_backend",
            "AssertionError",
        )
    elif name in ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"):
        if state.attention not in ("fa3", "aiter", "triton", "ascend", "trtllm_mha", "intel_xpu"):
            raise RefusedError(
                "fa3, aiter, triton, ascend, trtllm_mha or intel_xpu is required for Llama4 model but got "
                f"{state.attention}",
                "architecture_refuses_backend",
                "AssertionError",
            )
    elif name in ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM") and rules.knows_2026_models:
        prefill, decode = state.phases()
        taken = ["trtllm_mha", "triton", "fa4", "ascend", "intel_xpu", "intel_amx", "aiter"]
        if prefill not in taken or decode not in taken:
            raise RefusedError(
                "Gemma4 only supports trtllm_mha, triton, fa4, ascend, intel_xpu, intel_amx, or aiter attention "
                f"backend, got prefill={prefill}, decode={decode}",
                "architecture_refuses_backend",
                "AssertionError",
            )
    _check_first_layer(state)


def _check_first_layer(state: ServerState) -> None:
    name = state.architecture
    lfm = name in ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
    nemotron = name == "NemotronHForCausalLM" and not state.rules.nemotron_on_blackwell
    if (lfm or nemotron) and state.attention == "triton":
        comma = "," if nemotron else ", "
        raise RefusedError(
            f"{name} does not support triton attention backend{comma}as the first layer might not be an attention "
            "layer",
            "architecture_refuses_backend",
            "AssertionError",
        )


def check_state_cache(state: ServerState) -> None:
    """What the cache of a hybrid's recurrent state allows."""
    rules = state.rules
    if state.architecture in rules.mamba_no_buffer:
        if state.page not in (1, None):
            raise RefusedError("no_buffer only supports page_size=1.", "state_cache_refuses_page", "AssertionError")
        if state.attention == "trtllm_mha":
            raise RefusedError(
                "no_buffer do not support trtllm_mha attention backend.", "state_cache_refuses_backend",
                "AssertionError",
            )  # fmt: skip
    if rules.mamba_refuses_drafts and is_hybrid(state):
        if state.drafts:
            raise RefusedError(
                f"Speculative decoding for {state.architecture} is not compatible with radix cache when using "
                "--mamba-scheduler-strategy no_buffer.To use radix cache with speculative decoding, please use "
                "--mamba-scheduler-strategy extra_buffer and set SGLANG_ENABLE_SPEC_V2=1.",
                "state_cache_refuses_drafts",
            )
        if state.attention == "trtllm_mha":
            state.disable_radix = True


def resolve_dsa(state: ServerState) -> None:
    """Cache type and kernels of DeepSeek sparse attention."""
    if not state.is_dsa:
        return
    rules, major = state.rules, state.device.major
    if state.kv_dtype == "auto":
        state.kv_dtype = "fp8_e4m3" if major >= 10 else "bfloat16"
        state.notes.append(f"The cache holds {state.kv_dtype}: DeepSeek sparse attention's default on this device.")
    if state.kv_dtype == "bf16":
        state.kv_dtype = "bfloat16"
    if state.kv_dtype not in ("bfloat16", "fp8_e4m3"):
        raise RefusedError(
            "DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype", "dsa_refuses_kv_dtype",
            "AssertionError",
        )  # fmt: skip
    fp8 = state.kv_dtype == "fp8_e4m3"
    if rules.dsa_glm_sm12 and state.architecture == "GlmMoeDsaForCausalLM" and state.on_sm120 and fp8:
        state.dsa_prefill = state.dsa_decode = "flashinfer_sparse_mla"
    elif state.device.hip:
        state.dsa_prefill = state.dsa_decode = rules.dsa_hip
    elif fp8:
        state.dsa_prefill = "trtllm" if major >= 10 else rules.dsa_hopper_fp8_prefill
        state.dsa_decode = "trtllm" if major >= 10 else "flashmla_kv"
    else:
        state.dsa_prefill = "flashmla_sparse"
        state.dsa_decode = "trtllm" if major >= 10 else "fa3"


def resolve_deterministic(state: ServerState) -> None:
    """The deterministic default, and what deterministic inference refuses."""
    if not state.settings.deterministic:
        return
    rules = state.rules
    deepseek = state.architecture in rules.deepseek
    if state.attention is None:
        blackwell = state.on_sm100 or state.on_sm120
        state.choose(
            ("triton" if deepseek else "flashinfer") if blackwell else "fa3", "the default of deterministic inference"
        )
    elif state.attention not in rules.deterministic_choices:
        raise RefusedError(
            f"Currently only {list(rules.deterministic_choices)} attention backends are supported for deterministic "
            f"inference, but you explicitly specified '{state.attention}'.",
            "not_deterministic",
        )
    if deepseek:
        _check_deterministic_deepseek(state)
    if state.attention not in rules.radix_deterministic:
        state.disable_radix = True


def _check_deterministic_deepseek(state: ServerState) -> None:
    rules, newer = state.rules, state.rules.deterministic_first
    if state.attention not in (rules.radix_deterministic if newer else ("fa3", "triton")):
        models = "absorbed-MLA models. But you're" if newer else "DeepSeek models. But you're"
        raise RefusedError(
            f"Currently only {list(rules.radix_deterministic)} attention backends are supported for deterministic "
            f"inference with {models} using {state.attention}.",
            "not_deterministic",
        )
    if newer and state.attention == "fa4" and state.device.major not in (10, 11):
        raise RefusedError(
            "Deterministic inference with absorbed-MLA models on the fa4 attention backend requires SM100/SM110: it "
            "runs absorbed MLA, whose qv argument flash_attn.cute only implements on those archs.",
            "not_deterministic",
        )


def check_flex(state: ServerState) -> None:
    """Flex attention takes no drafts."""
    if state.attention == "flex_attention" and state.drafts:
        raise RefusedError(
            "Speculative decoding is currently not supported with Flex Attention backend", "flex_refuses_drafts",
            "AssertionError",
        )  # fmt: skip


def impose_latent_pages(state: ServerState) -> None:
    """Pages of flashmla, cutlass_mla, trtllm_mla, cutedsl_mla, trtllm_mha and hpc_ops, and their own checks."""
    asked = (state.attention, state.decode)
    every = (*asked, state.prefill)
    if "flashmla" in asked:
        state.impose_page(64, "flashmla has this page alone")
    if "cutlass_mla" in asked:
        state.impose_page(128, "cutlass_mla has this page alone")
    if not state.rules.deterministic_first and "trtllm_mla" in asked:
        _check_trtllm_mla(state)
    if "trtllm_mla" in asked and state.page not in (32, 64):
        state.impose_page(64, "trtllm_mla has pages of 32 and 64")
    if "cutedsl_mla" in every and state.page not in (32, 64):
        state.impose_page(64, "cutedsl_mla has pages of 32 and 64")
    if not state.rules.deterministic_first and "trtllm_mha" in every:
        _check_trtllm_mha(state)
    if "trtllm_mha" in every and state.page not in state.rules.trtllm_mha_pages:
        names = ", ".join(map(str, state.rules.trtllm_mha_pages))
        state.impose_page(64, f"trtllm_mha has pages of {names}")
    if "hpc_ops" in every:
        state.impose_page(64, "hpc_ops has this page alone")
    if state.rules.deterministic_first:
        if "trtllm_mla" in asked:
            _check_trtllm_mla(state)
        _check_cutedsl(state)
        if "trtllm_mha" in state.phases():
            _check_trtllm_mha(state)


def _check_trtllm_mla(state: ServerState) -> None:
    if not state.on_blackwell:
        raise RefusedError(
            "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x). Please use a different backend.",
            "device_not_supported",
        )
    if state.kv_dtype not in state.rules.trtllm_mla_kv:
        *most, last = state.rules.trtllm_mla_kv
        raise RefusedError(
            f"TensorRT-LLM MLA backend only supports kv-cache-dtype of {', '.join(most)}, or {last}.",
            "kv_dtype_not_supported",
        )


def _check_cutedsl(state: ServerState) -> None:
    if "cutedsl_mla" not in (state.attention, state.decode, state.prefill):
        return
    if state.prefill == "cutedsl_mla":
        raise RefusedError("CuteDSL MLA only supports decoding for now", "decode_only", "AssertionError")
    if not state.on_sm100:
        raise RefusedError(
            "CuteDSL MLA backend is only supported on Blackwell GPUs (SM100). Please use a different backend.",
            "device_not_supported",
        )
    if state.kv_dtype not in ("fp8_e4m3", "bf16", "bfloat16", "auto"):
        raise RefusedError(
            "CuteDSL MLA backend only supports kv-cache-dtype of fp8_e4m3, bf16, or auto.", "kv_dtype_not_supported"
        )
    if state.prefill is None:
        state.prefill = "trtllm_mla"


def _check_trtllm_mha(state: ServerState) -> None:
    prefill, decode = state.phases()
    majors = state.rules.trtllm_mha_prefill
    if prefill == "trtllm_mha" and (state.device.hip or state.device.major not in majors):
        words = (
            "TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100). Please use a different "
            "prefill backend."
            if majors == (10,)
            else "TRTLLM MHA backend for prefill requires Hopper (SM90), Blackwell (SM100), or SM120 GPUs. Please use "
            "a different prefill backend."
        )
        raise RefusedError(words, "device_not_supported")
    if prefill == "trtllm_mha" and state.on_sm120 and state.kv_dtype == "fp8_e4m3":
        raise RefusedError(
            "TRTLLM FMHAv2 prefill on SM120 does not support fp8_e4m3 KV cache or skip-softmax.",
            "kv_dtype_not_supported",
        )
    if decode == "trtllm_mha" and not (state.on_hopper or state.on_sm100 or state.on_sm120):
        raise RefusedError(
            "TRTLLM MHA backend for decode is only supported on Hopper (SM90), Blackwell (SM100) and (SM120) GPUs. "
            "Please use a different decode backend.",
            "device_not_supported",
        )


def fall_back_from_fa3(state: ServerState) -> None:
    """FlashAttention 3 reads e4m3 alone."""
    if state.attention == "fa3" and state.kv_dtype == "fp8_e5m2":
        state.choose("triton", "fa3 cannot read an fp8_e5m2 cache")


def impose_fa4_page(state: ServerState) -> None:
    """FlashAttention 4 on Blackwell."""
    named = (state.prefill,) if state.rules.fa4_page_prefill_only else (state.attention, state.decode, state.prefill)
    branches = state.topk if not state.rules.fa4_page_prefill_only else 0
    if "fa4" in named and not state.has_mla and state.on_sm100 and branches <= 1:
        state.impose_page(128, "fa4 has this page alone on compute capability 10.x")


def check_drafts(state: ServerState) -> None:
    """What EAGLE with several branches refuses."""
    if not state.drafts or state.topk <= 1:
        return
    named = state.phases() if state.rules.deterministic_first else (state.attention, state.decode, state.prefill)
    if "trtllm_mha" in named:
        raise RefusedError(
            "trtllm_mha backend only supports topk = 1 for speculative decoding.", "drafts_not_supported"
        )
    if (state.page or 1) > 1 and state.attention not in state.rules.page_tree:
        words = (
            f"speculative_eagle_topk > 1 with page_size > 1 is only supported on {state.rules.page_tree}; got "
            f"attention_backend={state.attention!r}. Use page_size == 1 or one of those backends."
            if state.rules.page_tree_words
            else "speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results for paged "
            "attention backends. This combination is only supported for the 'flashinfer' backend."
        )
        raise RefusedError(words, "drafts_not_supported")

"""What SGLang chooses: hand cases and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.servers import Layer, MlaDims, Question, SglangSettings, resolve
from decodecalc.servers.sglang.rules import RELEASES

DEEPSEEK = MlaDims(kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
SM8X, SM90, SM100, SM12X, AMD = "rtx4090", "h100-sxm", "b200-sxm", "rtx5090", "mi300x"


def ask(gpu: str, mla: bool = False, topk: int | None = None, kv: str = "auto", page: int | None = None,
        backend: str | None = None, sinks: bool = False, q_heads: int = 16, **settings) -> Question:  # fmt: skip
    """A layer of 16 query heads: 4 KV heads of 128, or DeepSeek's latent (sparse with `topk`)."""
    layer = Layer(
        q_heads=q_heads,
        kv_heads=1 if mla else 4,
        head_dim=576 if mla else 128,
        mla=DEEPSEEK if mla else None,
        index_topk=topk,
        sparse=topk is not None,
        sinks=sinks,
    )
    return Question(
        layer=layer, gpu=dc.load_gpu(gpu), kv_cache_dtype=kv, page_size=page, backend=backend,
        settings=SglangSettings(**settings),
    )  # fmt: skip


EAGLE = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4}
GPT_OSS = {"architecture": "GptOssForCausalLM", "sinks": True}
V3 = {"architecture": "DeepseekV3ForCausalLM", "mla": True}


@pytest.mark.parametrize(
    ("question", "backend", "page"),
    [
        (ask(SM8X), "flashinfer", 1),
        (ask(SM8X, flashinfer_installed=False), "triton", 1),
        (ask(SM90), "fa3", 1),
        (ask(SM100), "trtllm_mha", 64),
        (ask(SM12X), "flashinfer", 1),
        (ask(AMD), "aiter", 1),
        (ask(SM90, **EAGLE), "flashinfer", 1),
        (ask(SM8X, mla=True), "triton", 1),
        (ask(SM90, mla=True), "fa3", 1),
        (ask(SM100, mla=True), "flashinfer", 1),
        (ask(SM100, **V3), "trtllm_mla", 64),
        (ask(AMD, mla=True), "aiter", 1),
        (ask(AMD, mla=True, q_heads=8), "triton", 1),
        (ask(SM90, mla=True, topk=2048), "dsa", 64),
        (ask(AMD, mla=True, topk=2048), "dsa", 1),
        (ask(AMD, mla=True, topk=2048, aiter_preshuffle=True), "dsa", 64),
        (ask(SM8X, deterministic=True), "fa3", 1),
        (ask(SM12X, deterministic=True), "flashinfer", 1),
        (ask(SM100, **GPT_OSS), "trtllm_mha", 64),
        (ask(SM8X, **GPT_OSS), "triton", 1),
        (ask(SM90, kv="fp8_e5m2"), "triton", 1),
        (ask(SM100, architecture="Qwen3NextForCausalLM", page=32), "triton", 1),
        (ask(SM100, backend="fa4"), "fa4", 128),
        (ask(SM90, backend="hpc_ops", page=16), "hpc_ops", 64),
        (ask(SM90, decode_attention_backend="triton"), "triton", 1),
    ],
)
def test_the_backend_and_page_of_0_5_23(question, backend, page):
    """SGLang 0.5.23 decodes with this backend on this page."""
    answer = resolve("sglang", "0.5.23", question)
    assert (answer.backend, answer.page_size) == (backend, page)


def test_an_architectures_default_may_refuse_to_start():
    """Olmo 2 gets fa3 also on 12.x, where fa3's own check refuses when the backend is built."""
    answer = resolve("sglang", "0.5.23", ask(SM12X, architecture="Olmo2ForCausalLM"))
    assert answer.backend == "fa3"
    assert answer.refused.stage == "start"
    assert answer.engine is None


def test_0_5_10_fills_the_generic_default_before_the_deterministic_one():
    """Deterministic inference on Ampere runs fa3 today and ran flashinfer, without the radix cache, in 0.5.10."""
    question = ask("a100-sxm", deterministic=True)
    old = resolve("sglang", "0.5.10.post1", question)
    assert resolve("sglang", "0.5.23", question).backend == "fa3"
    assert (old.backend, old.detail["disable_radix_cache"]) == ("flashinfer", True)


@pytest.mark.parametrize("asked", [None, 4, 32])
def test_amd_overwrites_the_split_cap(asked):
    """The Triton cap is 16 on AMD whatever the user passed, and 8 elsewhere by default."""
    amd = resolve("sglang", "0.5.23", ask(AMD, backend="triton", num_kv_splits=asked))
    nvidia = resolve("sglang", "0.5.23", ask(SM90, backend="triton", num_kv_splits=asked))
    assert amd.options["max_kv_splits_arg"] == 16
    assert nvidia.options["max_kv_splits_arg"] == (asked or 8)


@pytest.mark.parametrize(
    ("question", "cores"),
    [
        (ask(SM8X), "tensor_cores"),
        (ask(SM8X, q_heads=8), "cuda_cores"),
        (ask(SM8X, q_heads=8, kv="fp8_e4m3"), "tensor_cores"),
        (ask(SM8X, env={"SGLANG_FLASHINFER_USE_TENSOR_CORE": "false"}), "cuda_cores"),
    ],
)
def test_flashinfers_planner_follows_the_group(question, cores):
    """A group of 4 and more, or an FP8 cache, decodes on tensor cores; the variable overrides both."""
    assert resolve("sglang", "0.5.23", question).options["path"] == cores


def test_sinks_keep_the_default_away_from_flashinfer():
    """A model with sinks takes triton where others take flashinfer."""
    assert resolve("sglang", "0.5.23", ask(SM12X, sinks=True)).backend == "triton"


choices = st.sampled_from(RELEASES[0].rules.choices)
questions = st.builds(
    ask,
    gpu=st.sampled_from(["a100-sxm", SM8X, SM90, SM100, SM12X, AMD]),
    mla=st.booleans(),
    kv=st.sampled_from(["auto", "bf16", "fp8_e4m3", "fp8_e5m2"]),
    page=st.sampled_from([None, 1, 16, 64, 128]),
    deterministic=st.booleans(),
    speculative_eagle_topk=st.just(None),
)
versions = st.sampled_from([release.name for release in RELEASES])


@given(questions, versions, choices)
def test_a_forced_decode_backend_stands_or_is_refused(question, version, name):
    """A decode backend asked for by name is the answer or the configuration is refused; nothing replaces it."""
    settings = replace(question.settings, decode_attention_backend=name)
    answer = resolve("sglang", version, replace(question, settings=settings))
    aliases = {"compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla"}
    assert answer.forced
    assert answer.backend in (None, name, aliases.get(name))
    assert (answer.backend is not None) or answer.refused is not None


@given(questions, versions)
def test_something_is_always_answered(question, version):
    """Without a forced backend every device has a default, or resolution refuses and says why."""
    answer = resolve("sglang", version, question)
    assert (answer.backend is None) == (answer.refused is not None and answer.refused.stage != "start")
    assert answer.backend is None or answer.page_size >= 1
    assert answer.chain()

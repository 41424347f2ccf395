"""Names of servers and of their backends, and the servers without a list of backends."""

from __future__ import annotations

from dataclasses import replace

import pytest

import decodecalc as dc
from decodecalc.engines.registry import engine_names
from decodecalc.errors import UnknownNameError
from decodecalc.servers import Layer, Question, libraries_of, resolve
from decodecalc.servers.names import SGLANG_NAMES, VLLM_NAMES, resolve_name, server_name


def llama(gpu: str) -> Question:
    """Llama 3 8B's layer."""
    return Question(layer=Layer(q_heads=32, kv_heads=8, head_dim=128), gpu=dc.load_gpu(gpu))


@pytest.mark.parametrize(
    ("name", "gpu", "kernel"),
    [
        ("FLASH_ATTN", "h100-sxm", "fa3"),
        ("FLASH_ATTN", "a100-sxm", "fa2"),
        ("FLASH_ATTN", "b200-sxm", "fa4"),
        ("vllm", "b200-sxm", "trtllm-gen"),
        ("vllm@0.24.0", "b200-sxm", "trtllm-api"),
        ("sglang", "h100-sxm", "fa3"),
        ("trtllm_mha", "h100-sxm", "xqa"),
        ("trtllm_mha@0.5.23", "b200-sxm", "trtllm-gen"),
        ("triton", "a100-sxm", "triton"),
    ],
)
def test_a_servers_name_runs_what_the_device_makes_of_it(name, gpu, kernel):
    """FLASH_ATTN is FlashAttention 2, 3 or 4 by device; trtllm_mha is XQA on Hopper."""
    assert resolve_name(name, llama(gpu)).kernel == kernel


def test_capitals_are_vllms_and_small_letters_are_sglangs():
    """The two servers' names never collide, and none is a policy's name but the library names they share."""
    assert not set(VLLM_NAMES) & set(SGLANG_NAMES)
    assert set(engine_names()) & {*VLLM_NAMES, *SGLANG_NAMES} <= {"flashinfer", "flashmla"}
    assert server_name("FLASHINFER").server == "vllm"
    assert server_name("flashinfer").server == "sglang"


def test_an_unknown_name_gets_the_nearest():
    """A misspelt backend names the nearest one."""
    with pytest.raises(UnknownNameError, match="trtllm_mha"):
        resolve_name("trtllm_mah", llama("h100-sxm"))
    with pytest.raises(UnknownNameError, match="vllm"):
        resolve("vlm", None, llama("h100-sxm"))


@pytest.mark.parametrize(
    ("server", "gpu", "backend"),
    [
        ("tensorrt-llm", "h100-sxm", "XQA"),
        ("tensorrt-llm", "b200-sxm", "trtllm-gen"),
        ("tensorrt-llm", "mi300x", None),
        ("lmdeploy", "a100-sxm", "turbomind"),
        ("lmdeploy", "mi300x", None),
        ("llama.cpp", "rtx4090", "ggml-cuda-fattn"),
        ("transformers", "h100-sxm", "sdpa"),
    ],
)
def test_servers_without_a_list(server, gpu, backend):
    """TensorRT-LLM, LMDeploy, llama.cpp and Transformers have one kernel family a device."""
    assert resolve(server, None, llama(gpu)).backend == backend


def test_multi_head_attention_is_left_to_mmha():
    """TensorRT-LLM's XQA refuses a group of one, and says so."""
    question = llama("h100-sxm")
    answer = resolve("tensorrt-llm", None, replace(question, layer=replace(question.layer, kv_heads=32)))
    assert answer.backend == "MMHA"
    assert any("left to MMHA" in line for line in answer.chain())


def test_transformers_takes_an_implementation_by_name():
    """flash_attention_2 is FlashAttention 2; an unknown implementation is refused."""
    forced = replace(llama("h100-sxm"), backend="flash_attention_2")
    assert resolve("transformers", None, forced).engine == "flash-attention-2"
    assert resolve("transformers", None, replace(forced, backend="flash")).refused.code == "unknown_backend"


def test_an_engine_without_a_policy_is_named_and_not_replaced(monkeypatch):
    """An answer whose engine is not in this release keeps its backend, loses the engine and says so."""
    monkeypatch.setattr("decodecalc.servers.registry.engine_names", lambda: ())
    answer = resolve("vllm", "0.33.0", llama("h100-sxm"))
    assert (answer.backend, answer.engine, dict(answer.options)) == ("FLASH_ATTN", None, {})
    assert "no policy for flash-attention-3" in answer.notes[-1]


def test_required_libraries_by_release():
    """The FlashInfer that a release requires; None for a release that was not read."""
    assert libraries_of("vllm", "0.33.0").flashinfer == "0.7.2.post1"
    assert libraries_of("vllm", "0.33").torch == "2.14.0"
    assert libraries_of("sglang", "0.5.10.post1").flashinfer == "0.6.7.post3"
    assert libraries_of("vllm", "0.19.1") is None


def test_an_answer_shows_itself_as_plain_values():
    """to_dict holds JSON's types alone."""
    import json

    answer = resolve("vllm", "0.33.0", llama("b200-sxm"))
    shown = json.loads(json.dumps(answer.to_dict()))
    assert shown["backend"] == "FLASHINFER"
    assert json.loads(json.dumps(llama("b200-sxm").to_dict()))["layer"]["head_dim"] == 128

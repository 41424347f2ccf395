"""What the servers of an environment run there."""

from __future__ import annotations

import decodecalc as dc
from decodecalc.servers.installed import environment_lines, host_settings

B200 = dc.load_gpu("b200-sxm")


def test_packages_decide_what_runs():
    """Without the FlashInfer package vLLM takes FlashAttention on Blackwell, with it FLASHINFER."""
    model = dc.load_model("llama3-8b")
    bare = environment_lines([model], B200, {"vllm": "0.33.0"}.get)
    full = environment_lines(
        [model], B200, {"vllm": "0.33.0", "flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.2"}.get
    )
    assert bare == ["vLLM 0.33.0 on b200-sxm, llama3-8b: runs FLASH_ATTN (fa4), planned as flash-attention-4"]
    assert full == ["vLLM 0.33.0 on b200-sxm, llama3-8b: runs FLASHINFER (trtllm-gen), planned as trtllm-gen"]


def test_an_unread_release_is_answered_with_the_newest_and_says_so():
    """A release that nobody read is not a reason for silence."""
    lines = environment_lines([dc.load_model("llama3-8b")], B200, {"sglang": "9.9.9"}.get)
    assert lines[0].startswith("SGLang 9.9.9 on b200-sxm")
    assert "was not read" in lines[-1]


def test_no_servers_no_lines():
    """An environment without servers says nothing, and missing cubins are said where FlashInfer is there."""
    assert environment_lines([dc.load_model("llama3-8b")], B200, {}.get) == []
    settings, notes = host_settings("vllm", {"flashinfer-python": "0.7.2"}.get)
    assert settings["flashinfer"] == "installed"
    assert "flashinfer-cubin" in notes[0]

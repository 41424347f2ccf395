"""What a user is told before any number: steps that cannot be, caches that do not fit, heads that are copied."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.registry import engine_names, traits_of
from decodecalc.errors import GateError, InputError
from decodecalc.sanity import kept_bytes, replication_lines, sanity_lines

LLAMA = dc.load_model("llama3-8b")


def said(model: Any, batch: dc.Batch, gpu: str = "h100-sxm", tp: int = 1, dtype: str = "bf16") -> str:
    lines = sanity_lines(model, model.shard(tp).layer_groups, [batch], dc.KvCache(dtype), dc.load_gpu(gpu), tp)
    return "\n".join(lines)


def test_a_context_beyond_the_models_longest_is_said_and_the_longest_is_not() -> None:
    """The boundary is the configuration's own number."""
    longest = LLAMA.max_position
    assert "positions that llama3-8b is made for" in said(LLAMA, dc.Batch([longest + 1]))
    assert said(LLAMA, dc.Batch([longest])) == ""


@given(st.integers(1, 300))
def test_a_cache_is_named_exactly_when_it_does_not_fit_beside_the_weights(requests: int) -> None:
    """131 072 B a token, 8192 tokens a request, in what is left of 85.2 GB."""
    batch = dc.Batch.uniform(requests, 8192)
    needed = requests * 8192 * 131_072 + LLAMA.weights.rank_bytes()
    fits = needed <= dc.load_gpu("h100-sxm").capacity_bytes
    assert bool(said(LLAMA, batch)) is not fits


def test_weights_that_do_not_fit_are_named_as_such() -> None:
    """A model of 405 billion parameters on one small card."""
    assert "the weights alone" in said(dc.load_model("llama3.1-405b"), dc.Batch([1]), "l4")


def test_a_window_and_shared_layers_keep_less() -> None:
    """Only what a server cannot throw away counts: no layer keeps more than its window, and shared ones keep none."""
    model = dc.load_model("gemma3-27b")
    kv, batch = dc.KvCache(), dc.Batch([100_000])
    sliding, full = model.layer_groups
    least = sliding.layers * 1024 * kv.bytes_per_key(sliding.geometry)
    least += full.layers * 100_000 * kv.bytes_per_key(full.geometry)
    assert kept_bytes(model, model.layer_groups, batch, kv) == least


@pytest.mark.parametrize(
    ("name", "tp", "copies"), [("llama3-8b", 8, 0), ("llama3-8b", 32, 4), ("deepseek-v3", 8, 1), ("llama3-8b", 1, 0)]
)
def test_copies_of_kv_heads_are_said(name: str, tp: int, copies: int) -> None:
    """Beyond as many ranks as KV heads each head is held several times; a latent is held by every rank."""
    lines = replication_lines(dc.load_model(name), tp)
    assert bool(lines) is bool(copies)
    assert copies != 4 or "8 KV heads on 32 ranks: each is held 4 times" in lines[0]


def test_the_heading_of_every_command_says_it(call: Any) -> None:
    """A command's own output holds the warning, in people's form and in JSON."""
    argv = ("--model", "llama3-8b", "--context", "9000", "--engine", "vllm-triton")
    assert "warning: 9000 keys are more than" in call("grid", *argv).out
    assert "9000 keys are more than" in call("predict", *argv, "--format", "json").out


@pytest.mark.parametrize(
    "argv",
    [
        ("kv",), ("sweep", "--engine", "vllm-triton"), ("verify", "--engine", "vllm-triton", "--dry-run"), ("step",),
        ("choose",), ("segments",), ("paging",), ("merge",), ("explain",), ("roofline",), ("predict",),
    ],
)  # fmt: skip
def test_every_command_says_that_a_context_is_too_long(call: Any, argv: tuple[str, ...]) -> None:
    """No command of a model counts or plans a request beyond its positions without a word."""
    for context, said in (("9000", True), ("4000", False)):
        result = call(*argv, "--model", "llama3-8b", "--context", context)
        assert result.code == 0, result.err
        found = "9000 keys are more than the 8192 positions" in " ".join((result.out + result.err).split())
        assert found is said


@pytest.mark.parametrize(
    ("command", "switch"),
    [
        ("vllm serve meta-llama/Meta-Llama-3-8B --max-model-len 9000", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"),
        (
            "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B --context-length 9000",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
        ),
    ],
)
def test_a_server_that_is_told_a_longer_context_refuses_to_start(call: Any, command: str, switch: str) -> None:
    """The answer says so, and which variable changes it; with the variable it does not."""
    asked = " ".join(call("serve", command).out.split())
    assert f"the server refuses to start, unless {switch} is set" in asked
    allowed = " ".join(call("serve", f"{switch} {command}").out.split())
    assert "refuses to start" not in allowed
    assert "9000 tokens are more than the 8192 positions" in allowed
    assert "positions" not in call("serve", command.replace("9000", "8192")).out


def test_no_servers_kernel_is_planned_for_a_device_it_does_not_exist_on() -> None:
    """On a device of another vendor every engine that does not name the vendor refuses; the textbook rule plans."""
    gpu, geo = dc.load_gpu("gaudi3"), dc.Geometry(32, 8, 128)
    for name in engine_names():
        if "Intel" in traits_of(name).vendors:
            continue
        with pytest.raises(GateError) as refused:
            dc.plan(name, geo, dc.Batch([100]), gpu=gpu)
        assert refused.value.code == "other_vendor"
    assert dc.plan("flash-decoding", geo, dc.Batch([100]), gpu=gpu).live_blocks


@pytest.mark.parametrize(("word", "is_hip"), [("amd", True), ("AMD", True), (" Nvidia ", False), ("nvidia", False)])
def test_a_vendor_is_a_vendor_however_it_is_spelled(word: str, is_hip: bool) -> None:
    """A GPU file in lower case is of the same device."""
    made = dc.load_gpu({"name": "x", "sm_count": 100, "hbm_bytes_per_s": 2e12, "vendor": word})
    assert made.is_hip is is_hip


def test_a_vendor_that_nobody_knows_is_refused() -> None:
    """It would otherwise be taken for NVIDIA in silence."""
    with pytest.raises(InputError, match="vendor must be one of"):
        dc.load_gpu({"name": "x", "sm_count": 100, "hbm_bytes_per_s": 2e12, "vendor": "advanced"})


def test_the_command_line_refuses_kv_heads_of_a_latent(call: Any) -> None:
    """No layer of a model is shown with KV heads that it is not computed with."""
    result = call("grid", "--q-heads", "16", "--kv-heads", "8", "--head-dim", "576", "--head-dim-v", "512", "--mla")
    assert result.code == 2
    assert "kv_heads is 1" in result.err


@pytest.mark.parametrize("command", ["predict", "roofline", "merge", "paging", "explain", "segments", "grid", "choose"])
@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-v3.2"])
def test_a_latent_or_sparse_model_needs_no_engine_to_be_named(call: Any, command: str, model: str) -> None:
    """The default engine is one that serves the model's layers."""
    result = call(command, "--model", model, "--tp", "8", "--gpu", "h200-sxm")
    assert result.code == 0, result.err

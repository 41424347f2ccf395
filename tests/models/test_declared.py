"""What a configuration declares beside its layers: the cache's type, sinks, and settings that nobody here knows."""

from __future__ import annotations

from typing import Any

import pytest

from decodecalc.models import load_model
from decodecalc.models.zoo import zoo_entries

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "num_hidden_layers": 4,
}  # fmt: skip
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": FLOAT8}, "fp8"),
        ({"kv_cache_scheme": {**FLOAT8, "type": "int"}}, "int8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"kv_cache_scheme": None}, None),
        ({"quant_method": "fp8"}, None),
        ({}, None),
    ],
)
def test_the_type_that_a_checkpoint_declares_is_read(quantization: dict[str, Any], dtype: str | None) -> None:
    """Each publisher's own words for the cache's element type."""
    model = load_model({**LLAMA, "quantization_config": quantization})
    assert model.kv_dtype == dtype
    assert model.warnings == ()


def test_a_declared_type_that_is_not_known_is_a_warning() -> None:
    """Nothing is guessed from bits and words that have no meaning here."""
    model = load_model({**LLAMA, "quantization_config": {"kv_cache_scheme": {"num_bits": 3, "type": "odd"}}})
    assert model.kv_dtype is None
    assert "KV cache of a type that is not known" in model.warnings[0]


def test_a_command_takes_the_declared_type_unless_told_otherwise(call: Any, tmp_path: Any) -> None:
    """Half the bytes by default, and --kv-dtype wins."""
    import json

    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": {"kv_cache_scheme": FLOAT8}}))
    argv = ("grid", "--model", str(path), "--engine", "vllm-triton")
    assert "KV cache fp8, as the checkpoint declares" in call(*argv).out
    assert "KV bf16" in call(*argv, "--kv-dtype", "bf16").out
    for command in (("kv", "--context", "1k"), ("sweep", "--engine", "vllm-triton", "--select", "kv_dtype")):
        given = (*command, "--model", str(path))
        assert "fp8" in call(*given).out
        assert "fp8" not in call(*given, "--kv-dtype", "bf16").out.replace(str(path), "")


@pytest.mark.parametrize(
    "name",
    [
        "sparse_attn_budget",
        "dsa_top_k",
        "kv_select_blocks",
        "second_window",
        "num_sink_keys",
        "quest_token_budget",
        "retrieval_heads",
        "attn_topk_tokens",
        "kv_compress_tokens",
        "evict_to_tokens",
    ],
)
def test_a_setting_of_attention_that_is_not_known_is_named(name: str) -> None:
    """It may change which keys are read, so it is never left out in silence."""
    assert name in load_model({**LLAMA, name: 64}).warnings[-1]
    assert load_model({**LLAMA, name: None}).warnings == ()


def test_a_sparse_setting_without_a_known_budget_is_named() -> None:
    """A mapping that was looked into and said nothing is as unread as one under another name."""
    odd = {"sparse_attention_config": {"block_size": 64, "num_selected_blocks": 16}}
    assert "sparse_attention_config" in load_model({**LLAMA, **odd}).warnings[-1]


def test_chunks_that_no_layer_has_are_noted() -> None:
    """Llama-4's chunk in a class without chunked layers is left out, and not in silence."""
    assert "attention_chunk_size is ignored" in " ".join(load_model({**LLAMA, "attention_chunk_size": 8192}).notes)


@pytest.mark.parametrize(
    "name",
    ["attention_dropout", "attention_bias", "rope_scaling", "num_experts_per_tok", "vision_window", "topk_group"],
)
def test_what_does_not_change_the_keys_is_not_named(name: str) -> None:
    """Weights, training, experts and other towers are no settings of a decode step's keys."""
    assert load_model({**LLAMA, name: 0.5}).warnings == ()


@pytest.mark.parametrize("entry", zoo_entries(), ids=lambda entry: entry.name)
def test_no_model_of_the_zoo_has_a_field_that_is_not_known(entry: Any) -> None:
    """The list of harmless names covers every configuration that ships."""
    assert not any("not known here" in warning for warning in load_model(entry.name).warnings)


@pytest.mark.parametrize("name", ["learnable_sink", "use_attention_sink"])
def test_learned_sinks_are_read_under_their_names(name: str) -> None:
    """One logit per query head in every layer, where the switch is on."""
    assert all(group.geometry.sinks for group in load_model({**LLAMA, name: True}).layer_groups)
    assert not any(group.geometry.sinks for group in load_model({**LLAMA, name: False}).layer_groups)

"""Rules by which a configuration becomes layer groups, one small case each."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodecalc.errors import ModelConfigError
from decodecalc.geometry import Gather, Indexer
from decodecalc.models import Model, load_model


def base(**fields: Any) -> dict[str, Any]:
    """A small configuration of a type no class is known of, with changes."""
    config = {
        "model_type": "custom",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 512,
        "num_hidden_layers": 12,
    }
    config.update(fields)
    return {name: value for name, value in config.items() if value is not ...}


def shape(model: Model) -> list[tuple[str, int, int, int, int, int | None]]:
    """(name, layers, query heads, KV heads, key width, window) of every layer group."""
    return [
        (
            group.name,
            group.layers,
            group.geometry.q_heads,
            group.geometry.kv_heads,
            group.geometry.head_dim,
            group.geometry.window,
        )
        for group in model.layer_groups
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Heads. Old names, nulls, nested objects and rules of single families.
        (base(num_key_value_heads=None), [("all", 12, 8, 8, 64, None)]),
        (base(num_key_value_heads=...), [("all", 12, 8, 8, 64, None)]),
        (base(head_dim=128), [("all", 12, 8, 2, 128, None)]),
        (base(head_dim=None), [("all", 12, 8, 2, 64, None)]),
        (
            base(model_type="falcon", multi_query=True, num_key_value_heads=..., num_kv_heads=8),
            [("all", 12, 8, 1, 64, None)],
        ),
        (base(model_type="falcon", multi_query=False, num_key_value_heads=...), [("all", 12, 8, 8, 64, None)]),
        (
            base(
                model_type="falcon",
                multi_query=True,
                new_decoder_architecture=True,
                num_key_value_heads=...,
                num_kv_heads=4,
            ),
            [("all", 12, 8, 4, 64, None)],
        ),
        (base(model_type="gpt_bigcode", num_key_value_heads=...), [("all", 12, 8, 1, 64, None)]),
        (base(model_type="gpt_bigcode", num_key_value_heads=..., multi_query=False), [("all", 12, 8, 8, 64, None)]),
        (base(num_key_value_heads=..., multi_query=True), [("all", 12, 8, 1, 64, None)]),
        (base(num_key_value_heads=..., attn_config={"kv_n_heads": 4}), [("all", 12, 8, 4, 64, None)]),
        (
            base(num_key_value_heads=..., attn_config={"attn_type": "multiquery_attention"}),
            [("all", 12, 8, 1, 64, None)],
        ),
        (
            base(model_type="chatglm", num_key_value_heads=..., multi_query_attention=True, multi_query_group_num=2),
            [("all", 12, 8, 2, 64, None)],
        ),
        (
            {"model_type": "mpt", "d_model": 512, "n_heads": 8, "n_layers": 12},
            [("all", 12, 8, 8, 64, None)],
        ),
        ({"n_heads": 8, "n_kv_heads": 2, "n_layers": 12, "dim": 512}, [("all", 12, 8, 2, 64, None)]),
        # Windows: uniform, inactive, late, never binding, listed, unused by the class.
        (base(sliding_window=1024), [("sliding", 12, 8, 2, 64, 1024)]),
        (base(sliding_window=1024, use_sliding_window=False), [("all", 12, 8, 2, 64, None)]),
        (base(sliding_window=0), [("all", 12, 8, 2, 64, None)]),
        (base(sliding_window=-1), [("all", 12, 8, 2, 64, None)]),
        (base(sliding_window=False), [("all", 12, 8, 2, 64, None)]),
        (base(sliding_window=4096, max_position_embeddings=4096), [("all", 12, 8, 2, 64, None)]),
        (
            base(sliding_window=1024, use_sliding_window=True, max_window_layers=8),
            [("full", 8, 8, 2, 64, None), ("sliding", 4, 8, 2, 64, 1024)],
        ),
        (
            base(sliding_window=[None, 256, 256, 0] * 3),
            [("full", 6, 8, 2, 64, None), ("sliding", 6, 8, 2, 64, 256)],
        ),
        (base(model_type="llama", sliding_window=1024), [("all", 12, 8, 2, 64, None)]),
        (base(model_type="qwen2", sliding_window=1024), [("all", 12, 8, 2, 64, None)]),
        # Patterns of local and global layers.
        (
            base(sliding_window=128, sliding_window_pattern=4),
            [("sliding", 9, 8, 2, 64, 128), ("full", 3, 8, 2, 64, None)],
        ),
        (
            base(model_type="exaone4", sliding_window=128, sliding_window_pattern="LLLG"),
            [("sliding", 9, 8, 2, 64, 128), ("full", 3, 8, 2, 64, None)],
        ),
        (
            base(model_type="gemma3_text", sliding_window=128, head_dim=64),
            [("sliding", 10, 8, 2, 64, 128), ("full", 2, 8, 2, 64, None)],
        ),
        (
            base(
                model_type="gpt_neo",
                num_key_value_heads=...,
                attention_types=[[["global", "local"], 6]],
                window_size=32,
            ),
            [("full", 6, 8, 8, 64, None), ("sliding", 6, 8, 8, 64, 32)],
        ),
        (
            base(hybrid_layer_pattern=[0, 1, 1] * 4, sliding_window=128, swa_num_key_value_heads=4, swa_head_dim=32),
            [("full", 4, 8, 2, 64, None), ("sliding", 8, 8, 4, 32, 128)],
        ),
        (
            base(
                layer_types=["full_attention", "sliding_attention"] * 6,
                sliding_window=64,
                attention_other_setting={
                    "attention_type": "sliding_attention",
                    "num_attention_heads": 12,
                    "num_attention_groups": 4,
                },
            ),
            [("full", 6, 8, 2, 64, None), ("sliding", 6, 12, 4, 64, 64)],
        ),
        (
            base(global_attn_idx=[0, 11], sliding_window=64),
            [("full", 2, 8, 2, 64, None), ("sliding", 10, 8, 2, 64, 64)],
        ),
        (
            base(
                model_type="gemma4_text",
                layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 2,
                sliding_window=64,
                head_dim=64,
                per_layer_config={
                    "05": {"head_dim": 128, "num_key_value_heads": 1},
                    "11": {"head_dim": 128, "num_key_value_heads": 1},
                },
            ),
            [("sliding", 10, 8, 2, 64, 64), ("full", 2, 8, 1, 128, None)],
        ),
        (
            base(
                model_type="gemma4_text",
                layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 2,
                sliding_window=64,
                head_dim=64,
                global_head_dim=128,
                num_global_key_value_heads=None,
            ),
            [("sliding", 10, 8, 2, 64, 64), ("full", 2, 8, 2, 128, None)],
        ),
        # Hybrids: only the layers that run softmax attention.
        (base(model_type="jamba"), [("all", 1, 8, 2, 64, None)]),
        (base(attn_layer_period=4, attn_layer_offset=1), [("all", 3, 8, 2, 64, None)]),
        (base(model_type="bamba", attn_layer_indices=[3, 7]), [("all", 2, 8, 2, 64, None)]),
        (base(model_type="falcon_h1"), [("all", 12, 8, 2, 64, None)]),
        (base(layer_types=["mamba"] * 5 + ["attention"] + ["mamba"] * 6), [("all", 1, 8, 2, 64, None)]),
        (base(model_type="qwen3_next", head_dim=64), [("all", 3, 8, 2, 64, None)]),
        (base(full_attention_interval=6), [("all", 2, 8, 2, 64, None)]),
        (base(model_type="bailing_moe_linear", layer_group_size=4), [("all", 3, 8, 2, 64, None)]),
        (base(attn_type_list=[0, 0, 0, 1] * 3), [("all", 3, 8, 2, 64, None)]),
        (base(model_type="lfm2", full_attn_idxs=[2, 5]), [("all", 2, 8, 2, 64, None)]),
        (base(model_type="nemotron_h", head_dim=64, hybrid_override_pattern="M-M*E"), [("all", 1, 8, 2, 64, None)]),
        (
            base(model_type="recurrent_gemma", attention_window_size=256, head_dim=64),
            [("sliding", 4, 8, 2, 64, 256)],
        ),
        (base(model_type="zamba2", num_hidden_layers=54, num_key_value_heads=...), [("all", 9, 8, 8, 128, None)]),
        (base(cross_attention_layers=[3, 8]), [("all", 10, 8, 2, 64, None)]),
        # Per-layer lists.
        (
            base(num_key_value_heads=..., num_key_value_heads_per_layer=[4] * 6 + [2] * 6),
            [("full-q8-kv4", 6, 8, 4, 64, None), ("full-q8-kv2", 6, 8, 2, 64, None)],
        ),
        (
            base(
                num_key_value_heads=None,
                num_hidden_layers=3,
                block_configs=[{"attention": {"n_heads_in_group": g, "no_op": g is None}} for g in (4, None, 2)],
            ),
            [("full-q8-kv2", 1, 8, 2, 64, None), ("full-q8-kv4", 1, 8, 4, 64, None)],
        ),
        # MLA.
        (base(kv_lora_rank=128, qk_rope_head_dim=32, v_head_dim=64), [("all", 12, 8, 1, 160, None)]),
        (base(kv_lora_rank=None, qk_rope_head_dim=0, v_head_dim=0, use_mla=False), [("all", 12, 8, 2, 64, None)]),
        (
            base(
                model_type="kimi_linear",
                kv_lora_rank=128,
                qk_rope_head_dim=32,
                linear_attn_config={"full_attn_layers": [4, 8]},
            ),
            [("all", 2, 8, 1, 160, None)],
        ),
    ],
)
def test_rules(config: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    """A field or class rule gives exactly these layer groups."""
    assert shape(load_model(config)) == expected


def test_llama4_layers_are_chunked_or_full() -> None:
    """Every fourth layer has no rotary embedding and sees everything; the others see their chunk."""
    model = load_model(base(model_type="llama4_text", head_dim=64))
    assert [(group.name, group.layers, group.chunk) for group in model.layer_groups] == [
        ("chunked", 9, 8192),
        ("full", 3, None),
    ]


def test_sparse_layers_read_what_their_indexer_keeps() -> None:
    """DeepSeek-V3.2 keeps `index_topk` keys, MiniMax-M3 a number of blocks."""
    deepseek = load_model(base(model_type="deepseek_v32", kv_lora_rank=512, qk_rope_head_dim=64, index_topk=2048))
    assert [(group.name, group.topk, group.geometry.mla) for group in deepseek.layer_groups] == [("sparse", 2048, True)]
    minimax = base(
        sparse_attention_config={
            "sparse_attention_freq": [0, 1] * 6,
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
        }
    )
    assert [(group.name, group.topk) for group in load_model(minimax).layer_groups] == [
        ("full", None),
        ("sparse", 2048),
    ]


@pytest.mark.parametrize(
    ("change", "gather"),
    [
        (
            {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048, "index_n_heads": 32},
            Gather(topk=2048, indexer=Indexer(heads=32, head_dim=128)),
        ),
        (
            {"kv_lora_rank": 512, "qk_rope_head_dim": 0, "index_topk": 2048, "index_n_heads": 32, "index_kpool": 4,
             "layer_types": ["deepseek_sparse_attention"] * 12},
            Gather(topk=2048, block=4, tail=True, indexer=Indexer(heads=32, head_dim=128, keys_per_entry=4)),
        ),
        (
            {"layer_types": ["qwen_sparse_attention"] * 12, "indexer_budget": 2048, "indexer_compress_ratio": 4,
             "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128},
            Gather(topk=2048, block=4, tail=True, indexer=Indexer(
                heads=4, head_dim=128, keys_per_entry=4, dtype="bf16", scale_bytes=0)),
        ),
        (
            {"sparse_attention_config": {
                "sparse_attention_freq": [1] * 12, "sparse_topk_blocks": 16, "sparse_block_size": 128,
                "sparse_num_index_heads": 4, "sparse_index_dim": 64}},
            Gather(topk=2048, block=128, per_kv_head=True, indexer=Indexer(
                heads=4, head_dim=64, dtype="bf16", scale_bytes=0)),
        ),
    ],
)  # fmt: skip
def test_every_budget_name_is_read(change: dict[str, Any], gather: Gather) -> None:
    """DeepSeek's, GLM's pooled, Qwen's and MiniMax's fields say what a layer gathers and by which indexer."""
    assert [group.geometry.gather for group in load_model(base(**change)).layer_groups] == [gather]


def test_every_finely_compressed_layer_has_the_top_k() -> None:
    """DeepSeek-V4.1 selects in layers of ratio 2 and of ratio 1; ratio 128 reads all, ratio 0 the window."""
    config = base(
        model_type="deepseek_v4", head_dim=512, sliding_window=128, index_topk=512,
        compress_ratios=[0, 2, 2, 1, 1, 128] * 2,
    )  # fmt: skip
    groups = {group.name: group for group in load_model(config).layer_groups}
    assert {name: (group.compress_ratio, group.topk, group.layers) for name, group in groups.items()} == {
        "sliding": (None, None, 2), "compressed-2": (2, 512, 4), "compressed-1": (1, 512, 4),
        "compressed-128": (128, None, 2),
    }  # fmt: skip
    assert [group.keys_read(100_000) for group in groups.values()] == [128, 640, 640, 128 + 781]
    assert groups["sliding"].geometry.window == 128
    assert groups["compressed-2"].geometry.window is None


def test_an_unknown_budget_is_said_and_not_guessed() -> None:
    """Layers that a configuration calls sparse without a budget known here are warned of, with the likely fields."""
    model = load_model(base(layer_types=["sparse_attention"] * 12, selected_keys_topk=512))
    assert model.layer_groups[0].geometry.gather is None
    assert any("select their keys" in text and "selected_keys_topk" in text for text in model.warnings)


def test_a_key_can_be_wider_than_its_value() -> None:
    """MiMo-V2 caches keys of 192 and values of 128 elements."""
    geometry = load_model(base(head_dim=192, v_head_dim=128)).layer_groups[0].geometry
    assert (geometry.head_dim, geometry.head_dim_v, geometry.kv_elements_per_key) == (192, 128, 2 * (192 + 128))


def test_softcap_and_sinks_reach_the_geometry() -> None:
    """Gemma-2 caps its logits (50 by class), gpt-oss has sinks in every layer."""
    gemma = load_model(base(model_type="gemma2", sliding_window=128, head_dim=64))
    assert {group.geometry.softcap for group in gemma.layer_groups} == {50.0}
    oss = load_model(base(model_type="gpt_oss", sliding_window=128, head_dim=64))
    assert {group.geometry.sinks for group in oss.layer_groups} == {True}


def test_only_the_text_part_counts() -> None:
    """The heads of a vision tower are never taken, and a text part without heads takes its class's."""
    vision = {"num_attention_heads": 16, "hidden_size": 1152, "num_hidden_layers": 27}
    model = load_model({"model_type": "llava", "vision_config": vision, "text_config": base()})
    assert shape(model) == [("all", 12, 8, 2, 64, None)]
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    gemma = load_model({"model_type": "gemma3", "vision_config": vision, "text_config": text})
    assert shape(gemma) == [("sliding", 29, 8, 4, 256, 1024), ("full", 5, 8, 4, 256, None)]
    assert any("num_attention_heads" in warning and "class default 8" in warning for warning in gemma.warnings)
    omni = load_model({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": base()}})
    assert shape(omni) == [("all", 12, 8, 2, 64, None)]
    with pytest.raises(ModelConfigError):
        load_model({"model_type": "custom_vl", "vision_config": vision})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (base(model_type="t5"), "encoder-decoder"),
        (base(is_encoder_decoder=True), "encoder-decoder"),
        ({"model_type": "blip-2", "text_config": base(model_type="t5")}, "encoder-decoder"),
        ({"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 64}, "no decoder softmax attention"),
        ({"model_type": "rwkv7", "num_hidden_layers": 4, "hidden_size": 64}, "no decoder softmax attention"),
        (base(model_type="bert"), "no decoder softmax attention"),
        (base(model_type="vit"), "no decoder softmax attention"),
        (base(layer_types=["mamba"] * 12), "no decoder softmax attention"),
        (base(layer_types=["telepathy"] * 12), "'telepathy' is not known"),
        (base(layer_types=["full_attention"] * 3), "3 entries for 12 layers"),
        (base(layer_types="full_attention"), "must be a list of words"),
        (base(layer_types=["sliding_attention"] * 12), "sliding_window is missing"),
        (base(num_attention_heads=0), "num_attention_heads must be between 1"),
        (base(num_attention_heads=-8), "num_attention_heads must be between 1"),
        (base(num_attention_heads=10**12), "num_attention_heads must be between 1"),
        (base(num_attention_heads="8"), "must be a whole number"),
        (base(num_attention_heads=True), "must be a whole number"),
        (base(num_attention_heads=float("nan")), "must be a whole number"),
        (base(num_attention_heads={}), "must be a whole number"),
        (base(num_attention_heads=[]), "no layer has heads"),
        (base(num_attention_heads=...), "no query-head count"),
        (base(num_key_value_heads=3), "not a multiple of 3 KV heads"),
        (base(num_key_value_heads=0), "num_key_value_heads must be between 1"),
        (base(num_hidden_layers=10**9), "must be between 1 and 16384"),
        (base(num_hidden_layers=...), "no layer count"),
        (base(hidden_size=513), "not a multiple of 8 query heads"),
        (base(hidden_size=...), "no head width"),
        (base(model_type="bloom", hidden_size=..., num_key_value_heads=...), "no head width"),
        (base(head_dim=0), "head_dim must be between 1"),
        (base(sliding_window="wide"), "sliding_window must be a whole number"),
        (base(sliding_window=-5), "sliding_window must be between"),
        (base(text_config=[1]), "text_config must be an object"),
        (base(model_type=7), "model_type must be a word"),
        (base(block_configs=[{}], num_hidden_layers=1), "has no attention object"),
        (base(block_configs=[{"attention": {}}]), "block_configs has 1 entries for 12 layers"),
        (base(hybrid_override_pattern="M*", num_hidden_layers=0), "num_hidden_layers must be between 1"),
        (base(hybrid_override_pattern="MX*"), "unknown letters 'X'"),
        (base(kv_lora_rank=512), "without qk_rope_head_dim"),
        (base(attn_logit_softcapping=float("inf")), "attn_logit_softcapping must be a positive number"),
        (base(model_type="deepseek_v4", compress_ratios=[4]), "1 entries for 12 layers"),
        (base(per_layer_config={"99": {}}), "not an object of one of 12 layers"),
        ({}, "no layer count|no query-head count"),
        ({1: 2}, "keys of a configuration must be words"),
    ],
)
def test_refusals(config: dict[str, Any], message: str) -> None:
    """What cannot be planned is refused with the field or the reason."""
    with pytest.raises(ModelConfigError, match=message):
        load_model(config)


def test_deep_nesting_is_an_error_of_ours() -> None:
    """A configuration nested beyond Python's stack ends in a ModelConfigError."""
    config: dict[str, Any] = {}
    for _ in range(100_000):
        config = {"text_config": config}
    with pytest.raises(ModelConfigError):
        load_model(config)
    while config:  # unlink it by hand: freeing it at once would recurse in C
        config = config.pop("text_config", {})


def test_longcat_layers_attend_twice() -> None:
    """Its 28 layers hold 56 attentions."""
    model = load_model(base(model_type="longcat_flash", kv_lora_rank=512, qk_rope_head_dim=64))
    assert (model.total_layers, model.attention_layers) == (12, 24)


def test_a_class_default_is_a_warning() -> None:
    """A window that only the class states is used, and said."""
    model = load_model(base(model_type="mistral", max_position_embeddings=32768))
    assert shape(model) == [("sliding", 12, 8, 2, 64, 4096)]
    assert model.warnings == ("sliding_window is not in the configuration: used the class default 4096 of mistral",)


CORPUS: list[dict[str, Any]] = list(
    json.loads((Path(__file__).parent.parent / "data" / "configs" / "configs.json").read_text()).values()
)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.integers(-1, 9), max_size=5),
    st.dictionaries(
        st.sampled_from(["attention", "kv_n_heads", "full_attn_layers", "5"]), st.integers(-1, 9), max_size=2
    ),
    st.sampled_from(["mamba", "t5", "gemma4_text", "llama4_text", "deepseek_v4", "nemotron_h", "gpt_neo", "falcon"]),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_configurations_never_escape_as_another_error(data: st.DataObject) -> None:
    """Real configurations with junk in some fields give a sane model or a ModelConfigError."""
    config = copy.deepcopy(data.draw(st.sampled_from(CORPUS)))
    target = config["text_config"] if "text_config" in config and data.draw(st.booleans()) else config
    names = sorted({*target, *EXTRA})
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)):
        value = target.get(name)
        if isinstance(value, list) and value and data.draw(st.booleans()):
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(JUNK)
        else:
            target[name] = data.draw(JUNK)
    try:
        model = load_model(config)
    except ModelConfigError:
        return
    assert model.attention_layers >= 1
    indices = [index for group in model.layer_groups for index in group.layer_indices]
    assert len(indices) == model.attention_layers <= max(model.total_layers, len(indices))
    assert 1 in model.valid_tp()
    assert model.shard(model.valid_tp()[-1]).layer_groups
    assert json.dumps(model.to_dict())


EXTRA = [
    "attn_config",
    "attention_types",
    "block_configs",
    "compress_ratios",
    "global_head_dim",
    "head_dim",
    "hybrid_override_pattern",
    "index_topk",
    "kv_lora_rank",
    "layer_types",
    "linear_attn_config",
    "max_window_layers",
    "multi_query",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "per_layer_config",
    "sliding_window",
    "sliding_window_pattern",
    "sparse_attention_config",
    "swa_head_dim",
    "v_head_dim",
]

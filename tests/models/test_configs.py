"""Real Hugging Face configurations against expected facts.

`--configs-dir DIR` reads `configs.json` (repo id to config.json content) and `configs_expected.json` from
another folder. Every field of an expectation is compared; a field this file does not know fails.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from decodecalc.errors import ModelConfigError
from decodecalc.models import LayerGroup, Model, load_model


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per configuration of the folder."""
    if "expected" in metafunc.fixturenames:
        folder = Path(metafunc.config.getoption("--configs-dir"))
        configs = json.loads((folder / "configs.json").read_text())
        expected = json.loads((folder / "configs_expected.json").read_text())
        metafunc.parametrize(
            ("config", "expected"), [(configs[name], fact) for name, fact in expected.items()], ids=list(expected)
        )


def test_facts(config: dict[str, Any], expected: dict[str, Any]) -> None:
    """The model read from a configuration has every expected fact, or is refused for the expected reason."""
    if expected.get("reject"):
        with pytest.raises(ModelConfigError) as caught:
            load_model(config)
        for word in ("encoder-decoder", "softmax attention"):
            if word in expected.get("why", ""):
                assert word in str(caught.value)
        return
    model = load_model(config)
    wrong = {name: (found, want) for name, want in expected.items() if (found := _fact(model, name, want)) != want}
    assert not wrong, f"found, expected: {wrong}"


def _fact(model: Model, name: str, want: Any) -> Any:
    """Our value of an expected field, in the form in which the expectation states it."""
    main = model.layer_groups[0]
    geometry = main.geometry
    if name == "notes":
        return _matched_notes(model, want)
    if isinstance(want, list) and name in ("q_heads", "kv_heads", "group", "head_dim_k", "head_dim_v"):
        return [_scalar(group, name) for group in _per_layer(model)]
    if name == "layer_types":
        return dict(Counter(model.layer_types))
    if name == "window":
        return next((group.geometry.window for group in model.layer_groups if group.geometry.window), None)
    if name in ("full_layers", "sliding_layers", "swa_layers"):
        kind = "full" if name == "full_layers" else "sliding"
        group = next(group for group in model.layer_groups if group.name.startswith(kind))
        return {key: group.layers if key == "layers" else _scalar(group, key) for key in want}
    if name == "geometries":
        found = {(g.geometry.q_heads, g.geometry.kv_heads) for g in model.layer_groups}
        return sorted([q, kv] for q, kv in found)
    if name == "valid_tp":
        return model.valid_tp()
    facts = {
        "model_type": model.model_type,
        "kind": want if want == model.kind else _kind(model),
        "layers": model.total_layers,
        "attention_layers": model.attention_layers,
        "max_position": model.max_position,
        "kv_dtype": model.kv_dtype,
        "stored_layers": sum(model.stored_layers(group) for group in model.layer_groups),
        "sinks": geometry.sinks,
        "softcap": geometry.softcap,
        "chunk": next((group.chunk for group in model.layer_groups if group.chunk), None),
        "topk": next((group.topk for group in model.layer_groups if group.topk), None),
    }
    if name == "stored_bytes_per_token":  # in bf16, over all layers that store their own keys
        return sum(model.stored_layers(group) * group.geometry.kv_elements_per_key * 2 for group in model.layer_groups)
    return facts[name] if name in facts else _scalar(main, name)


def _scalar(group: LayerGroup, name: str) -> Any:
    geometry = group.geometry
    return {
        "q_heads": geometry.q_heads,
        "kv_heads": geometry.kv_heads,
        "group": geometry.group,
        "head_dim": geometry.head_dim,
        "head_dim_k": geometry.head_dim,
        "head_dim_v": geometry.head_dim_v,
        "window": geometry.window,
        "kv_elems_per_token_layer": geometry.kv_elements_per_key,
    }[name]


def _per_layer(model: Model) -> list[LayerGroup]:
    owner = {index: group for group in model.layer_groups for index in group.layer_indices}
    return [owner[index] for index in sorted(owner)]


def _kind(model: Model) -> str:
    """The expectations' words: GQA stands for every kind that caches keys and values per KV head."""
    if any(group.compress_ratio for group in model.layer_groups):
        return "compressed latent"
    if model.kind == "MLA":
        return "MLA"
    heads_of_full = {
        (group.geometry.q_heads, group.geometry.kv_heads)
        for group in model.layer_groups
        if group.geometry.window is None
    }
    return "per-layer GQA" if len(heads_of_full) > 1 else "GQA"


def _matched_notes(model: Model, want: list[str]) -> list[str]:
    """The expected notes that are ours, or whose numbers are all facts of the model: wording is free."""
    groups = [{**group.to_dict(), "layer_indices": None} for group in model.layer_groups]
    facts = json.dumps([groups, model.notes, model.warnings, model.total_layers, model.attention_layers])
    numbers = set(re.findall(r"\d+(?:\.\d+)?", facts))
    return [note for note in want if note in model.notes or set(re.findall(r"\d+(?:\.\d+)?", note)) <= numbers]

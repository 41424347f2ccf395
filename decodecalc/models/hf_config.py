"""A Hugging Face config.json to a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.errors import InputError, ModelConfigError
from decodecalc.geometry import Geometry, check_count
from decodecalc.models.model import LayerGroup, Model


def model_from_config(config: Mapping[str, Any], name: str | None = None, source: str = "config") -> Model:
    """The model that `config` (the content of a config.json) describes."""
    try:
        q = check_count("num_attention_heads", config.get("num_attention_heads"))
        kv = check_count("num_key_value_heads", config.get("num_key_value_heads") or q)
        layers = check_count("num_hidden_layers", config.get("num_hidden_layers"))
        dim = config.get("head_dim") or config["hidden_size"] // q
        types = tuple(config.get("layer_types") or ["full_attention"] * layers)
        groups = []
        for kind in dict.fromkeys(types):
            window = config.get("sliding_window") if kind == "sliding_attention" else None
            indices = tuple(i for i, t in enumerate(types) if t == kind)
            geometry = Geometry(q, kv, dim, window=window, sinks=config["model_type"] == "gpt_oss")
            label = kind.removesuffix("_attention") if len(set(types)) > 1 else "all"
            groups.append(LayerGroup(label, len(indices), geometry, layer_indices=indices))
    except (InputError, KeyError, TypeError) as error:
        raise ModelConfigError(f"{source}: {error}") from None
    return Model(
        name=name or str(config.get("_name_or_path") or config["model_type"]),
        model_type=config["model_type"],
        total_layers=layers,
        layer_groups=tuple(groups),
        kv_heads=kv,
        max_position=config.get("max_position_embeddings"),
        source=source,
        layer_types=types,
    )

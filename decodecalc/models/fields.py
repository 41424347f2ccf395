"""Reads one concept from a configuration under any of the names that it has had, with class defaults.

A field that is absent (a null field is not absent) takes the default of its transformers configuration class, as
`AutoConfig` does; each such use is recorded as a warning. The defaults come from `data/hf_model_types.json`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decodecalc.errors import ModelConfigError

MAX_LAYERS = 1 << 14

# The first name is the current one. The others belong to older classes and to models whose code lives on the Hub.
ALIASES: dict[str, tuple[str, ...]] = {
    "q_heads": (
        "num_attention_heads",
        "n_head",  # gpt2, gptj, bloom, phi-msft, falcon-40b
        "n_heads",  # mpt, dbrx, olmo, native Llama and Mistral params.json
        "num_heads",  # gpt_neo
        "num_query_heads",  # openelm: one per layer
        "attention_heads",  # xglm
    ),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",  # falcon, openelm
        "n_head_kv",  # RefinedWeb, phi-msft
        "n_kv_heads",  # olmo, native params.json
        "kv_n_heads",  # dbrx and mpt, in attn_config
        "num_attention_groups",  # step3
        "num_query_groups",  # Megatron exports
    ),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim", "dim"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "head_size", "hidden_size_per_head"),
    "max_position": (
        "max_position_embeddings",
        "n_positions",
        "max_context_length",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "n_ctx",
        "model_max_length",
    ),
    "window": ("sliding_window", "sliding_window_size", "attention_window_size"),
}


class Fields:
    """One configuration (its text part), read with type checks. Collects `warnings` on the way.

    `read` holds the names that were asked for. `nested` says that the text part sits inside a multimodal
    configuration: only there does transformers leave out fields that equal their class default when it saves.
    """

    def __init__(self, config: Mapping[str, Any], model_type: str, default_type: str, nested: bool = False) -> None:
        self.config, self.model_type, self.nested = config, model_type, nested
        self.warnings: list[str] = []
        self.read: set[str] = set()
        self._default_type = default_type

    def raw(self, name: str) -> Any:
        """The value as it stands: None when null or absent."""
        self.read.add(name)
        return self.config.get(name)

    def is_stated(self, concept: str) -> bool:
        """True if one of the concept's names is present and not null."""
        return any(self.config.get(name) is not None for name in _names(concept))

    def value(self, concept: str, quiet: bool = False) -> Any:
        """The first stated value of a concept; if none of its names is present, the class default; otherwise None.

        The use of a default is recorded as a warning unless `quiet`.
        """
        self.read.update(_names(concept))
        for name in _names(concept):
            if self.config.get(name) is not None:
                return self.config[name]
        if any(name in self.config for name in _names(concept)):
            return None
        return self.default(concept, quiet)

    def default(self, concept: str, quiet: bool = False) -> Any:
        """The class default of a concept, None when the class or the default is unknown."""
        known = class_defaults(self._default_type)
        for name in _names(concept):
            if known.get(name) is not None:
                if not quiet:
                    self.warnings.append(
                        f"{name} is not in the configuration: used the class default "
                        f"{str(known[name])[:60]} of {self._default_type}"
                    )
                return known[name]
        return None

    def count(self, concept: str, low: int = 1, high: int = 1 << 40, quiet: bool = False) -> int | None:
        """A concept that must be a whole number between low and high; None when not stated."""
        value = self.value(concept, quiet)
        return None if value is None else whole(_names(concept)[0], value, low, high)

    def flag(self, name: str) -> bool | None:
        """A boolean field; None when not stated and no class default is known."""
        value = self.value(name, quiet=True)
        if value is not None and not isinstance(value, bool):
            raise ModelConfigError(f"{name} must be true or false, not {value!r:.60}")
        return value

    def number(self, name: str) -> float | None:
        """A finite, positive real number; None when not stated."""
        value = self.value(name, quiet=True)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ModelConfigError(f"{name} must be a positive number, not {value!r:.60}")
        return float(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A nested object; empty when not stated."""
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ModelConfigError(f"{name} must be an object, not {value!r:.60}")
        return value

    def words(self, name: str) -> list[str] | None:
        """A list of words; None when not stated or empty."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise ModelConfigError(f"{name} must be a list of words, not {value!r:.60}")
        return list(value) or None

    def counts(self, name: str, low: int = 0, high: int = 1 << 40) -> list[int] | None:
        """A list of whole numbers; None when not stated or empty."""
        value = self.raw(name)
        return None if value is None else whole_list(name, value, low, high) or None


def whole(name: str, value: Any, low: int = 1, high: int = 1 << 40) -> int:
    """`value` as a whole number in range; ModelConfigError names the field and what is valid."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelConfigError(f"{name} must be a whole number, not {value!r:.60}")
    if not low <= value <= high:
        raise ModelConfigError(f"{name} must be between {low} and {high}, not {value}")
    return value


def whole_list(name: str, value: Any, low: int = 1, high: int = 1 << 40) -> list[int]:
    """`value` as a list of whole numbers in range."""
    if not isinstance(value, (list, tuple)):
        raise ModelConfigError(f"{name} must be a list of whole numbers, not {value!r:.60}")
    if len(value) > MAX_LAYERS:
        raise ModelConfigError(f"{name} has {len(value)} entries: more than {MAX_LAYERS} layers")
    return [whole(f"{name}[{index}]", item, low, high) for index, item in enumerate(value)]


@functools.cache
def type_data() -> Any:
    """What is known about the model types of transformers: roles, text sub-types and class defaults."""
    path = Path(__file__).parent.parent / "data" / "hf_model_types.json"
    return json.loads(path.read_text(encoding="utf-8"))


def class_defaults(model_type: str) -> dict[str, Any]:
    """Attention-related defaults of a model type's configuration class; empty when the type is unknown."""
    found: dict[str, Any] = type_data()["defaults"].get(model_type, {})
    return found


def _names(concept: str) -> tuple[str, ...]:
    return ALIASES.get(concept, (concept,))

"""Finds the part of a configuration that describes the decoder, and refuses configurations that have none.

Multimodal configurations nest it. The head counts of a vision tower must never be taken for those of the decoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from decodecalc.errors import ModelConfigError
from decodecalc.models.fields import ALIASES, Fields, class_defaults, type_data

# Nested decoders: transformers' name first, then those of models whose code lives on the Hub.
_TEXT_KEYS = (
    "text_config",
    "thinker_config",  # Qwen omni models
    "llm_config",  # InternVL, NVLM, MiniCPM-o
    "language_config",  # DeepSeek-VL2
    "language_model_config",
    "lm_config",
)
_MAX_NESTING = 4
_ATTENTION_FREE = r"rwkv[0-9_]*|.*mamba[0-9]?|retnet|hyena|xlstm|gla|hgrn[0-9]?|striped_hyena"


def text_fields(config: Mapping[str, Any]) -> Fields:
    """The decoder's fields of a configuration.

    ModelConfigError says why when the configuration describes an encoder-decoder, an encoder, or a model
    without softmax attention.
    """
    model_type = _model_type(config) or ""
    text, outer = config, model_type
    for _ in range(_MAX_NESTING):
        _refuse_encoder_decoder(text, model_type)
        inner = _nested(text)
        if inner is None:
            break
        outer, text = model_type, inner
        model_type = _model_type(inner) or model_type
    _refuse_other_kinds(text, model_type)
    if not model_type:
        model_type = "unknown"
    return Fields(text, model_type, _default_type(model_type, outer), nested=text is not config)


def _model_type(config: Mapping[str, Any]) -> str | None:
    value = config.get("model_type")
    if value is not None and not isinstance(value, str):
        raise ModelConfigError(f"model_type must be a word, not {value!r:.60}")
    return value[:100] if value else None


def _nested(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for key in _TEXT_KEYS:
        inner = config.get(key)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise ModelConfigError(f"{key} must be an object, not {inner!r:.60}")
        # Some old multimodal models keep the decoder's fields outside and an empty shell inside.
        if inner and (_has_decoder_fields(inner) or not _has_decoder_fields(config) or _nested(inner) is not None):
            return inner
    return None


def _has_decoder_fields(config: Mapping[str, Any]) -> bool:
    return any(config.get(name) is not None for concept in ("q_heads", "layers") for name in ALIASES[concept])


def _default_type(model_type: str, outer: str) -> str:
    """The type whose class defaults stand in: the text part's own, or the one its composite nests."""
    if class_defaults(model_type):
        return model_type
    data = type_data()["text_type"]
    nested = data.get(model_type, data.get(outer, model_type))
    return str(data.get(nested, nested))


def _refuse_encoder_decoder(config: Mapping[str, Any], model_type: str) -> None:
    if config.get("is_encoder_decoder") is True or model_type in type_data()["encoder_decoder"]:
        raise ModelConfigError(
            f"{model_type or 'this model'} is an encoder-decoder: its decoder also attends to the encoder's "
            f"output, which this tool does not plan"
        )


def _refuse_other_kinds(config: Mapping[str, Any], model_type: str) -> None:
    data = type_data()
    if model_type in data["attention_free"] or (
        re.fullmatch(_ATTENTION_FREE, model_type) and not any(config.get(name) for name in _HYBRID_MARKS)
    ):
        raise ModelConfigError(f"{model_type} has no decoder softmax attention: it is attention-free")
    if config.get("is_decoder") is not True:
        if model_type in data["encoder_only"]:
            raise ModelConfigError(f"{model_type} has no decoder softmax attention: it is an encoder")
        if model_type in data["not_language"]:
            raise ModelConfigError(f"{model_type} has no decoder softmax attention: it is not a language decoder")


# Fields by which a Mamba or linear-attention family says that some of its layers do run attention.
_HYBRID_MARKS = ("layers_block_type", "layer_types", "attn_layer_idx", "attn_layer_indices", "attn_cfg", "attn")

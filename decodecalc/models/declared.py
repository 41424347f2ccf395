"""What a checkpoint says about its KV cache: the element type that a server takes when its own setting is `auto`.

Sources: vLLM 0.33 (`model_executor/layers/quantization/compressed_tensors`, `modelopt.py`, `quark`: `kv_cache_scheme`,
`kv_cache_quant_algo`, `kv_cache_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.models.fields import Fields

_ALGORITHMS = {"fp8": "fp8", "int8": "int8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4"}
_FIELDS = ("kv_cache_quant_algo", "kv_cache_dtype", "kv_cache_quantization")


def declared_kv_dtype(fields: Fields, outer: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(element type, warning): the type that the configuration declares, or why it is not known; both None where it
    declares none. outer: the whole configuration, which may hold what the text part does not."""
    for config in (fields.config, outer):
        for name in ("quantization_config", "compression_config"):
            found = config.get(name)
            if isinstance(found, Mapping):
                kind, said = _of(found)
                if kind is not None or said is not None:
                    return kind, said
    return None, None


def _of(quantization: Mapping[str, Any]) -> tuple[str | None, str | None]:
    inner = quantization.get("quantization")  # modelopt nests what it says
    for part in (quantization, inner if isinstance(inner, Mapping) else {}):
        scheme = part.get("kv_cache_scheme")
        if isinstance(scheme, Mapping):
            bits, kind = scheme.get("num_bits"), scheme.get("type")
            known = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4", (4, "int"): "int4"}
            found = known.get((bits, kind)) if isinstance(bits, int) and isinstance(kind, str) else None
            return (found, None) if found else (None, _unknown(scheme))
        for name in _FIELDS:
            word = part.get(name)
            if isinstance(word, str) and word.lower() not in ("auto", "none", ""):
                key = next((key for key in _ALGORITHMS if word.lower().startswith(key)), None)
                return (_ALGORITHMS[key], None) if key else (None, _unknown(word))
    return None, None


def _unknown(value: Any) -> str:
    return f"the checkpoint declares a KV cache of a type that is not known here ({value!r:.80}): --kv-dtype decides"

"""Turns whatever a user calls a model into a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.models.model import Model
from decodecalc.models.zoo import find_entry, with_weights, zoo_names

MAX_SPEC_CHARACTERS = 4096


def load_model(spec: str | Path | Mapping[str, Any]) -> Model:
    """The model that `spec` names, tried in this order:

    1. a mapping: the content of a Hugging Face config.json;
    2. `-`: a config.json on standard input;
    3. a zoo name, alias or repo id (`decodecalc models` lists them), letter case ignored;
    4. an existing file, or a folder that holds a config.json;
    5. `org/name`: a repo id, read from the local Hugging Face cache (needs huggingface_hub; no network).

    Raises UnknownNameError (with the nearest names), ModelConfigError (why a configuration cannot be used) or
    MissingDependencyError.
    """
    from decodecalc.models.hf_config import model_from_config

    if isinstance(spec, Mapping):
        return model_from_config(spec)
    if not isinstance(spec, (str, Path)):
        raise InputError(f"a model must be a zoo name, a path or a config dictionary, not {type(spec).__name__}")
    text = str(spec)
    if not text.strip() or "\0" in text or len(text) > MAX_SPEC_CHARACTERS:
        raise InputError("a model name must not be empty, hold NUL characters or be longer than a path can be")
    if isinstance(spec, str):
        if text == "-":
            from decodecalc.models.config_input import read_stdin

            return model_from_config(read_stdin(), source="standard input")
        entry = find_entry(text)
        if entry is not None:
            return model_from_config(with_weights(entry), name=entry.name, source=entry.source)
    path = Path(text)
    if isinstance(spec, Path) or _exists(path) or _looks_like_path(text):
        from decodecalc.models.config_input import read_config

        label = path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")
        return model_from_config(read_config(path), name=label or None, source=text)
    if text.count("/") == 1 and not text.startswith("/"):
        from decodecalc.models.hub import read_cached_config

        return model_from_config(read_cached_config(text), name=text, source=f"Hugging Face cache: {text}")
    raise UnknownNameError("model", text, zoo_names(), "For any other model, give the path of its config.json.")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _looks_like_path(text: str) -> bool:
    return text.endswith(".json") or text.startswith((".", "/", "~")) or text.count("/") > 1

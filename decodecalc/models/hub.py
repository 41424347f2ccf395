"""Finds the config.json of a repository id in the local Hugging Face cache. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decodecalc.errors import MissingDependencyError, ModelConfigError
from decodecalc.models.config_input import read_config


def read_cached_config(repo_id: str) -> dict[str, Any]:
    """The newest cached config.json of `repo_id` ("org/name").

    MissingDependencyError without huggingface_hub, ModelConfigError when the cache lacks the file.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        raise MissingDependencyError(
            f"{repo_id!r} is neither in the zoo nor a path; reading it from the Hugging Face cache needs "
            f"huggingface_hub (pip install 'decodecalc[hub]')"
        ) from None
    try:
        found = try_to_load_from_cache(repo_id, "config.json")
    except HFValidationError:
        raise ModelConfigError(f"{repo_id!r} is neither in the zoo, a path nor a valid repo id") from None
    if not isinstance(found, str):
        raise ModelConfigError(
            f"{repo_id!r} is neither in the zoo nor a path, and the local Hugging Face cache has no "
            f"config.json of it (fetch it with: hf download {repo_id} config.json)"
        )
    return read_config(Path(found))

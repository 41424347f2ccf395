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
            f"{repo_id!r} is neither in the zoo nor a path{_nearest(repo_id)}. Save the config.json of its repository "
            f"and give that file's path as the model. A config.json in the local Hugging Face cache is found where "
            f"huggingface_hub is installed (pip install 'decodecalc[hub]')."
        ) from None
    try:
        found = try_to_load_from_cache(repo_id, "config.json")
    except HFValidationError:
        raise ModelConfigError(f"{repo_id!r} is neither in the zoo, a path nor a valid repo id") from None
    if not isinstance(found, str):
        raise ModelConfigError(
            f"{repo_id!r} is neither in the zoo nor a path{_nearest(repo_id)}, and the local Hugging Face cache has no "
            f"config.json of it. Fetch it with `hf download {repo_id} config.json`, or give the path of one."
        )
    return read_config(Path(found))


def _nearest(repo_id: str) -> str:
    """A clause that names the models of the zoo with the most similar ids; empty where none is similar."""
    import difflib  # here, because only an error needs it

    from decodecalc.models.zoo import zoo_entries

    known = {entry.repo.lower(): entry.repo for entry in zoo_entries()}
    near = difflib.get_close_matches(repo_id.lower()[:80], known, n=3, cutoff=0.75)
    return f" (similar ids that are known: {', '.join(known[name] for name in near)})" if near else ""

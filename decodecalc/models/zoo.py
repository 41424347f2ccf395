"""Well-known models under the short names people type.

`data/models.json` keeps, per model, the attention-relevant fields of its Hugging Face config.json, in that
form: the zoo has no parser of its own. Each entry says where its values were read.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple


class ZooEntry(NamedTuple):
    """One model of the zoo. `repo` is its Hugging Face id, `source` where the configuration was read, and
    `confidence` is `file` (a copy of the config.json was read) or `secondary` (other public text)."""

    name: str
    repo: str
    aliases: tuple[str, ...]
    source: str
    confidence: str
    config: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the configuration included."""
        return {
            "name": self.name,
            "repo": self.repo,
            "aliases": list(self.aliases),
            "source": self.source,
            "confidence": self.confidence,
            "config": self.config,
        }


def zoo_names() -> list[str]:
    """Every short name, in the zoo's order (by family, then size)."""
    return list(_data()["models"])


def zoo_entries() -> list[ZooEntry]:
    """Every entry, in the zoo's order."""
    return [_entry(name) for name in zoo_names()]


def find_entry(name: str) -> ZooEntry | None:
    """The entry with that name, alias or repo id, letter case ignored; None when there is none."""
    known = _index().get(name.strip().lower())
    return None if known is None else _entry(known)


def matching_entries(text: str) -> list[ZooEntry]:
    """The entries whose name, alias or repo id holds the text, letter case ignored, in the zoo's order."""
    wanted = text.strip().lower()
    return [e for e in zoo_entries() if any(wanted in key.lower() for key in (e.name, e.repo, *e.aliases))]


def _entry(name: str) -> ZooEntry:
    raw = _data()["models"][name]
    source = _data()["sources"][raw["source"]]
    return ZooEntry(
        name=name,
        repo=raw["repo"],
        aliases=tuple(raw.get("aliases", ())),
        source=source["text"].replace("{repo}", raw["repo"]) + (f" ({raw['at']})" if "at" in raw else ""),
        confidence=source["confidence"],
        config=dict(raw["config"]),
    )


def with_weights(entry: ZooEntry) -> dict[str, Any]:
    """The entry's configuration with the fields that decide the bytes of its weights and states."""
    extra = _weights()["models"].get(entry.name, {})
    config = dict(entry.config)
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), dict):
            return {**config, key: {**extra, **config[key]}}
    return {**extra, **config}


@functools.cache
def _weights() -> Any:
    path = Path(__file__).parent.parent / "data" / "model_weights.json"
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def _data() -> Any:
    path = Path(__file__).parent.parent / "data" / "models.json"
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def _index() -> dict[str, str]:
    index: dict[str, str] = {}
    for name, raw in _data()["models"].items():
        for key in (name, raw["repo"], *raw.get("aliases", ())):
            index.setdefault(key.lower(), name)
    return index

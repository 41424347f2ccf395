"""The zoo: short names, aliases and sources, read by the same loader as everyone's configurations."""

from __future__ import annotations

import subprocess
import sys

import pytest

from decodecalc.errors import UnknownNameError
from decodecalc.models import ZooEntry, load_model, zoo_entries, zoo_names


@pytest.mark.parametrize("entry", zoo_entries(), ids=lambda entry: entry.name)
def test_every_entry_loads_and_says_where_it_was_read(entry: ZooEntry) -> None:
    """Each entry makes a model that shards at tp 1, without guesses, and names its source."""
    model = load_model(entry.name)
    assert model.name == entry.name
    assert model.shard(1).attention_layers == model.attention_layers > 0
    assert entry.repo in entry.source
    assert entry.confidence in ("file", "secondary")
    assert model.source == entry.source
    assert not model.warnings
    assert entry.to_dict()["config"] == entry.config


def test_names_and_aliases_are_unique_and_resolve_in_any_letter_case() -> None:
    """A repo id or alias leads to its entry, and no two entries share one."""
    seen: dict[str, str] = {}
    for entry in zoo_entries():
        for key in (entry.name, entry.repo, *entry.aliases):
            assert seen.setdefault(key.lower(), entry.name) == entry.name
            assert load_model(key.upper()).name == entry.name
    assert len(zoo_names()) >= 60


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("llama3-8b", (32, 8, 128, 32)),
        ("llama3-70b", (64, 8, 128, 80)),
        ("llama3.1-405b", (128, 8, 128, 126)),
        ("llama2-7b", (32, 32, 128, 32)),
        ("qwen2.5-7b", (28, 4, 128, 28)),
        ("qwen3-8b", (32, 8, 128, 36)),
        ("mixtral-8x7b", (32, 8, 128, 32)),
        ("gemma2-9b", (16, 8, 256, 21)),
        ("gemma3-27b", (32, 16, 128, 52)),
        ("gpt-oss-120b", (64, 8, 64, 18)),
        ("deepseek-r1", (128, 1, 576, 61)),
        ("phi4-mini", (24, 8, 128, 32)),
        ("falcon-7b", (71, 1, 64, 32)),
        ("glm-4.5", (96, 8, 128, 92)),
        ("qwen3-next-80b-a3b", (16, 2, 256, 12)),
    ],
)
def test_well_known_numbers(name: str, heads: tuple[int, int, int, int]) -> None:
    """Query heads, KV heads, key width and layers of the first group are those of the model's own card."""
    group = load_model(name).layer_groups[0]
    assert (group.geometry.q_heads, group.geometry.kv_heads, group.geometry.head_dim, group.layers) == heads


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A typo is answered with names that exist."""
    with pytest.raises(UnknownNameError, match="llama3-8b"):
        load_model("lama3-8b")


def test_loading_a_zoo_model_imports_nothing_heavy() -> None:
    """The names that make start-up slow stay out of the process."""
    code = (
        "import sys; from decodecalc.models import load_model; load_model('llama3-8b'); "
        "print([m for m in ('torch', 'triton', 'pandas', 'matplotlib', 'huggingface_hub', 'transformers', "
        "'importlib.resources') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

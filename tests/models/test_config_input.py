"""Bytes, files, folders and streams that hold a configuration, or do not."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodecalc.errors import DecodecalcError, InputError, MissingDependencyError, ModelConfigError, UnknownNameError
from decodecalc.models import load_model
from decodecalc.models.config_input import MAX_CONFIG_BYTES, parse_config

LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
}


def test_a_file_a_folder_a_stream_and_a_dict_give_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a configuration comes from changes its name and source only."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(LLAMA).encode())))
    models = [load_model(LLAMA), load_model(str(file)), load_model(file), load_model(str(tmp_path)), load_model("-")]
    assert len({model.layer_groups for model in models}) == 1
    assert models[1].name == models[3].name == tmp_path.name
    assert models[4].source == "standard input"


def test_a_byte_order_mark_is_accepted() -> None:
    """Windows editors write one."""
    assert parse_config(b"\xef\xbb\xbf{}", "file") == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is not JSON.*\(empty or truncated\?\)"),
        (b'{"num_attention_heads": 32, "num_key', r"is not JSON.*truncated"),
        (b"\xff\xfe\x00", "is not text"),
        (b"[1, 2]", "holds a JSON array"),
        (b"null", "holds a JSON null"),
        (b"[" * 100_000, "nests too deeply"),
        (b'{"a": ' * 100_000, "nests too deeply"),
        (b'{"num_attention_heads": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger than 16 MiB"),
    ],
)
def test_bytes_that_are_no_configuration(data: bytes, message: str) -> None:
    """Each kind of damage has its own message."""
    with pytest.raises(ModelConfigError, match=message):
        parse_config(data, "config.json")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_never_escape_as_another_error(data: bytes) -> None:
    """Any bytes are a configuration or a ModelConfigError."""
    with contextlib.suppress(ModelConfigError):
        load_model(parse_config(data, "bytes"))


@settings(deadline=None)
@given(st.data())
def test_every_truncation_of_a_configuration_is_reported(data: st.DataObject) -> None:
    """A configuration cut anywhere is refused: no prefix of an object is an object."""
    text = json.dumps(LLAMA).encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ModelConfigError, match="is not JSON"):
        parse_config(text[:cut], "config.json")


def test_a_huge_file_is_refused_by_its_size(tmp_path: Path) -> None:
    """100 MB (sparse) are refused before they are read, with the limit in the message."""
    file = tmp_path / "config.json"
    with file.open("wb") as handle:
        handle.truncate(100_000_000)
    with pytest.raises(ModelConfigError, match="larger than 16 MiB"):
        load_model(file)


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    """A missing file, an empty folder and a device are named as such."""
    with pytest.raises(ModelConfigError, match="no such file"):
        load_model(tmp_path / "missing.json")
    with pytest.raises(ModelConfigError, match="no such file"):
        load_model(str(tmp_path))
    with pytest.raises(ModelConfigError, match="pipe or a device"):
        load_model(Path("/dev/zero"))


@pytest.mark.parametrize("spec", ["", "  ", "a\0b", "x" * 5000, 7, None, ["llama3-8b"]])
def test_specs_that_are_no_model(spec: object) -> None:
    """Empty, overlong and mistyped names are bad input."""
    with pytest.raises(InputError):
        load_model(spec)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.text(max_size=60))
def test_random_names_never_escape_as_another_error(name: str) -> None:
    """Whatever is typed ends in a model or one of our errors ('-' would wait for standard input)."""
    if name == "-":
        return
    with contextlib.suppress(DecodecalcError):
        load_model(name)


def test_a_repo_id_that_is_not_here_says_how_to_get_it() -> None:
    """Nothing is downloaded: the message names the missing package, or the command that fills the cache."""
    with pytest.raises((MissingDependencyError, ModelConfigError), match=r"decodecalc\[hub\]|hf download"):
        load_model("some-org/some-model-that-is-not-cached")


def test_a_plain_word_is_looked_up_in_the_zoo() -> None:
    """No file and no repo: the nearest names are the best help."""
    with pytest.raises(UnknownNameError, match="did you mean"):
        load_model("gemma3-28b")


def test_a_cached_repo_is_read_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hugging Face cache's own layout is followed to the config.json of the newest snapshot."""
    hub = pytest.importorskip("huggingface_hub")
    folder = tmp_path / "models--some-org--some-model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert load_model("some-org/some-model").layer_groups == load_model(LLAMA).layer_groups
    with pytest.raises(ModelConfigError, match="hf download"):
        load_model("some-org/another")
    with pytest.raises(ModelConfigError):
        load_model("some org/--..")

"""What surrounds a command cannot break it: closed streams, full devices, odd settings and odd names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decodecalc.errors import ModelConfigError
from decodecalc.models import load_model

GRID = (sys.executable, "-m", "decodecalc", "grid", "--engine", "vllm-triton")


def shell(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", text, "bash", *GRID], capture_output=True, text=True, check=False,
        env={**os.environ, **environment}, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('exec >&-; "$@"', 2, "standard output is closed"),
        ('"$@" > /dev/full', 2, "No space left"),
        ('"$@" -o /dev/full', 2, "No space left"),
        ('"$@" -o /no/such/folder/a.csv', 2, "there is no folder"),
        ('"$@" --batch 1:64:1 | head -1 > /dev/null; exit ${PIPESTATUS[0]}', 0, ""),
    ],
)
def test_streams_and_devices_that_take_nothing(text: str, code: int, said: str) -> None:
    """One line and exit code 2; a reader that has read enough is no failure."""
    result = shell(text)
    assert result.returncode == code, result.stderr
    assert said in result.stderr
    assert "internal" not in result.stderr
    assert "Traceback" not in result.stderr


def test_an_output_may_be_asked_for_where_standard_output_is_closed(tmp_path: Path) -> None:
    """The file is written."""
    assert shell(f'exec >&-; "$@" -o {tmp_path}/a.csv').returncode == 0
    assert "vllm-triton" in (tmp_path / "a.csv").read_text()


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    """What an encoding cannot show does not end the command."""
    result = shell('"$@" --context 2560', PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr


def test_a_figure_needs_no_backend_and_takes_names_as_they_are(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad MPLBACKEND and a dollar sign in a name change nothing."""
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    config = {"model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096, "num_hidden_layers": 4}
    path = tmp_path / "a$\\frac$b.json"
    path.write_text(json.dumps(config))
    result = call("plot", "occupancy", "--model", str(path), "-o", str(tmp_path / "o.svg"))
    assert result.code == 0, result.err
    assert "\\frac" in (tmp_path / "o.svg").read_text()
    assert os.environ["MPLBACKEND"] == "nonsense"


def test_the_figure_over_gpus_takes_a_list(call: Any, tmp_path: Path) -> None:
    """Those named are drawn, by the figure of all GPUs and by one of a single step."""
    data = tmp_path / "d.csv"
    assert call("plot", "gpus", "--gpu", "h100,a100", "--data", str(data), "-o", str(tmp_path / "o.png")).code == 0
    rows = data.read_text().splitlines()[1:]
    assert {row.split(",")[0] for row in rows} == {"h100-sxm", "a100-80gb"} or len(rows) == 2
    waves = tmp_path / "w.csv"
    assert call("plot", "waves", "--gpu", "h100,a100", "--data", str(waves), "-o", str(tmp_path / "w.png")).code == 0
    assert {row.split(",")[2] for row in waves.read_text().splitlines()[1:]} == {"h100-sxm", "a100-sxm"}


def test_a_later_file_that_cannot_be_written_leaves_the_earlier_one_unwritten(call: Any, tmp_path: Path) -> None:
    """Data and figure are written together or not at all."""
    result = call("plot", "occupancy", "--data", str(tmp_path / "d.csv"), "-o", str(tmp_path / "no" / "o.png"))
    assert result.code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_pattern_of_another_length_names_the_missing_field() -> None:
    """Layers that only hybrid_layer_ids can place are not guessed from the class's own pattern."""
    config = {"model_type": "zamba2", "num_attention_heads": 32, "hidden_size": 2560, "num_hidden_layers": 40}
    with pytest.raises(ModelConfigError, match="hybrid_layer_ids"):
        load_model(config)
    assert load_model({**config, "hybrid_layer_ids": [5, 11]}).attention_layers == 2

"""The command as a process of its own: output arrives whole, exit codes are kept, pipes may close early."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GRID = [sys.executable, "-m", "decodecalc", "grid", "--model", "llama3-8b", "--engine", "vllm-triton"]


def test_a_pipe_gets_everything_and_the_code_is_zero() -> None:
    """A long result through a pipe ends where it should."""
    out = subprocess.run([*GRID, "--batch", "1:200:1", "--format", "json"], capture_output=True, text=True, check=True)
    assert len(json.loads(out.stdout)["rows"]) == 200


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["grid", "--model", "nosuch"], 2), (["--version"], 0), (["nosuch"], 2), ([], 0), (["grid", "--help"], 0)],
)
def test_exit_codes_reach_the_shell(argv: list[str], code: int) -> None:
    """0 done, 2 bad input."""
    assert (
        subprocess.run([sys.executable, "-m", "decodecalc", *argv], capture_output=True, check=False).returncode == code
    )


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """`decodecalc … | head -1` says nothing on standard error."""
    command = " ".join([*GRID, "--batch", "1:2000:1"])
    out = subprocess.run(["sh", "-c", f"{command} | head -1"], capture_output=True, text=True, check=False)
    assert out.stdout.startswith("The share of the 132 SMs")
    assert out.stderr == ""


def test_exit_functions_still_run(tmp_path) -> None:
    """Leaving without the interpreter's teardown does not skip what others registered."""
    mark = tmp_path / "ran"
    code = (
        f"import atexit, pathlib; atexit.register(lambda: pathlib.Path({str(mark)!r}).write_text('x'))\n"
        "from decodecalc.cli import main; main(['--version'])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert mark.read_text() == "x"

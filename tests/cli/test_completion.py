"""Shell completion: commands, options, names in lists, option names and codes, as bash, zsh and fish ask for them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from decodecalc.cli.main import COMMANDS, cli


def offered(*words: str) -> list[str]:
    """What is offered for the last word."""
    *args, incomplete = words
    completer = ShellComplete(cli, {}, "decodecalc", "_DECODECALC_COMPLETE")
    return [item.value for item in completer.get_completions(args, incomplete)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("gr",), ["grid"]),
        (("grid", "--page"), ["--page-size"]),
        (("grid", "--model", "qwen3-3"), ["qwen3-30b-a3b", "qwen3-32b"]),
        (("grid", "-m", "llama3-8b,gpt-oss-1"), ["llama3-8b,gpt-oss-120b"]),
        (("kv", "--model", "gpt-oss-1"), ["gpt-oss-120b"]),
        (("predict", "--gpu", "h200-n"), ["h200-nvl"]),
        (("choose", "--engine", "vllm-triton,flashm"), ["vllm-triton,flashmla", "vllm-triton,flashmla-sparse"]),
        (("grid", "--engine", "vllm-triton", "--opt", "max_num_s"), ["max_num_seqs="]),
        (("grid", "--server", "vl"), ["vllm"]),
        (("grid", "--kv-dtype", "bf16,fp8"), ["bf16,fp8"]),
        (("engines", "flash-a"), ["flash-attention-2", "flash-attention-3", "flash-attention-4"]),
        (("gpus", "mi35"), ["mi350x", "mi355x"]),
        (("models", "falcon-"), ["falcon-40b", "falcon-7b"]),
        (("glossary", "scratch"), ["scratch_rows"]),
        (("glossary", "live"), ["live-blocks", "live-rows"]),
        (("plot", "occ"), ["occupancy"]),
    ],
)
def test_the_last_word_is_completed(words: tuple[str, ...], expected: list[str]) -> None:
    """Names begin like the word; of a list the last name is completed."""
    assert offered(*words) == expected


def test_a_part_of_a_name_is_enough_where_none_begins_with_it() -> None:
    """`scout` finds Llama 4 Scout; a path is left to the shell."""
    assert offered("grid", "--model", "scout") == ["llama4-scout"]
    completer = ShellComplete(cli, {}, "decodecalc", "_DECODECALC_COMPLETE")
    (item,) = completer.get_completions(["grid", "--model"], "./my")
    assert item.type == "file"


def test_every_command_is_offered_without_importing_any() -> None:
    """All names, in a process that loads no command's module for it."""
    code = (
        "import sys; from click.shell_completion import ShellComplete; from decodecalc.cli.main import cli; "
        "found = ShellComplete(cli, {}, 'd', 'D').get_completions([], ''); "
        "assert not any(m.startswith('decodecalc.cli.') and m != 'decodecalc.cli.main' for m in sys.modules); "
        "print(*(item.value for item in found))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(COMMANDS) <= set(out.split())


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", 'eval "$(_DECODECALC_COMPLETE=bash_source decodecalc)"'),
        ("zsh", 'eval "$(_DECODECALC_COMPLETE=zsh_source decodecalc)"'),
        ("fish", "_DECODECALC_COMPLETE=fish_source decodecalc | source"),
    ],
)
def test_the_line_for_each_shell(call: Any, shell: str, line: str) -> None:
    """A comment says where it belongs; the line is what click's completion takes."""
    comment, printed = call("completion", shell).out.splitlines()
    assert comment.startswith("# add this line to ~/")
    assert printed == line


def test_the_variable_makes_the_program_print_the_script(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    """The line works: with the variable set, the program prints a script that asks it back."""
    monkeypatch.setenv("_DECODECALC_COMPLETE", "zsh_source")
    result = call()
    assert result.code == 0
    assert "#compdef decodecalc" in result.out

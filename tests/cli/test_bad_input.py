"""Each wrong input gets its own message of one or two lines, exit code 2, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import junk_text

MODEL = ("--model", "llama3-8b")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("grid", *MODEL, "--batch", "0"), "--batch must be at least 1"),
        (("grid", *MODEL, "--batch", "-4"), "--batch"),
        (("grid", *MODEL, "--context", "0"), "--context must be at least 1"),
        (("grid", *MODEL, "--context", "2.5"), "whole number"),
        (("grid", *MODEL, "--batch", "9:1"), "ends before it starts"),
        (("grid", *MODEL, "--batch", "1:9999999:1"), "more than 100000"),
        (("grid", *MODEL, "--batch", "1:1000:1", "--context", "1:1000:1"), "use `decodecalc sweep`"),
        (("grid", *MODEL, "--tp", "3"), "valid: 1, 2, 4, 8, 16, 32"),
        (("grid", *MODEL, "--tp", "0"), "tp must be between 1"),
        (("grid", "--model", "lama3-8b"), "did you mean llama3-8b"),
        (("grid", *MODEL, "--gpu", "h10-sxm"), "did you mean h100-sxm"),
        (("grid", *MODEL, "--engine", "vllm-tritn"), "did you mean vllm-triton"),
        (("grid", *MODEL, "--engine", "vllm-triton@9.9"), "unknown version of vllm-triton"),
        (("grid", *MODEL, "--opt", "nonsense"), "NAME=VALUE"),
        (("grid", *MODEL, "--engine", "vllm-triton", "--opt", "max_num_sqs=1"), "did you mean max_num_seqs"),
        (("grid", *MODEL, "--engine", "vllm-triton", "--opt", "max_num_seqs=many"), "must be int"),
        (("grid", *MODEL, "--q-heads", "8"), "--model or --q-heads"),
        (("grid", *MODEL, "--kv-heads", "8"), "add --q-heads"),
        (("grid", "--q-heads", "30", "--kv-heads", "8"), "multiple of kv_heads"),
        (("grid", "--q-heads", "0"), "q_heads must be between 1"),
        (("grid", *MODEL, "--seq-lens", "1,2", "--batch", "2"), "whole batch"),
        (("grid", *MODEL, "--seq-lens", "1,x"), "whole number"),
        (("grid", *MODEL, "--kv-dtype", "bf17"), "did you mean bf16"),
        (("grid", *MODEL, "--engine", "vllm-triton", "--page-size", "8"), "multiple of 16"),
        (("paging", *MODEL, "--allocator-page-size", "24"), "not a multiple of the kernel page"),
        (("segments", *MODEL, "--request", "5"), "--request must be between 0 and 0"),
        (("plot", "occupancy", *MODEL, "-o", "x.bmp"), ".png, .svg, .pdf"),
        (("plot", "ocupancy"), "occupancy"),
        (("engines", "--path", "."), "--path needs --installed"),
        (("models", "nosuch"), "unknown model"),
        (("gpus", "nosuch"), "unknown GPU"),
        (("frobnicate",), "no command"),
        (("grid", "--nosuch"), "No such option"),
        (("grid", *MODEL, "--format", "xml"), "xml"),
    ],
)
def test_the_message_names_what_was_wrong_and_what_is_valid(
    call: Any, argv: tuple[str, ...], said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2, nothing on standard output, no traceback, no file left."""
    monkeypatch.chdir(tmp_path)
    result = call(*argv)
    assert result.code == 2
    assert said in result.err
    assert result.out == ""
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) <= 3
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["--batch", "--context", "--seq-lens", "--q-len", "--kv-dtype", "--gpu", "--engine", "--model"]),
    junk_text,
)
def test_junk_in_any_option_ends_in_a_message(call: Any, name: str, text: str) -> None:
    """No option's value can cause a traceback or an internal error."""
    other = () if name == "--engine" else ("--engine", "vllm-triton")
    result = call("grid", *other, f"{name}={text}")
    assert result.code in (0, 2, 3)
    assert "internal error" not in result.err


def test_escapes_in_names_do_not_reach_the_terminal(call: Any) -> None:
    """A name with a terminal escape is shown with the escape spelled out."""
    result = call("grid", "--model", "evil\x1b[2J")
    assert result.code == 2
    assert "\x1b" not in result.err


def test_debug_shows_the_traceback() -> None:
    """--debug lets the error through."""
    import decodecalc as dc
    from decodecalc.cli.main import run

    with pytest.raises(dc.UnknownNameError):
        run(["grid", "--model", "nosuch"], debug=True)

"""decodecalc audit: exit codes, formats, the HTML page, errors in words, hostile names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

LENS = "2048,902,1163,1263,1308,746,741,1668,1138,1593,1585,1608,835,715,890,1538,827"
LLAMA = ("--q-heads", "32", "--kv-heads", "8")


@pytest.fixture
def trace(data_dir: Path) -> str:
    """A real trace: 17 requests of Llama-3-8B's layer through three engines."""
    return str(data_dir / "traces" / "h200_d.json.gz")


def kernel(name: str, grid: list[int], ts: float = 0.0) -> dict[str, Any]:
    """One kernel event."""
    args = {"device": 0, "stream": 7, "grid": grid, "block": [128, 1, 1]}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": 5.0, "args": args}


def written(path: Path, events: list[dict[str, Any]]) -> str:
    """A trace file of these events on an H200."""
    gpu = {"id": 0, "name": "NVIDIA H200", "numSms": 132}
    path.write_text(json.dumps({"deviceProperties": [gpu], "traceEvents": events}))
    return str(path)


def test_a_right_trace_passes(call: Any, trace: str) -> None:
    """Exit code 0, all three engines matched, bandwidth and coverage known."""
    result = call("audit", trace, *LLAMA, "--seq-lens", LENS, "--format", "json")
    assert result.code == 0, result.out
    assert {r["engine"]: r["status"] for r in result.rows} == {
        "vllm-triton": "match", "sglang-triton": "match", "flash-attention-3": "match",
    }  # fmt: skip
    vllm = next(r for r in result.rows if r["engine"] == "vllm-triton")
    assert (vllm["path"], vllm["grid"], vllm["predicted_grid"]) == ("2d", [21, 8, 1], [21, 8, 1])
    assert vllm["stage1_median_s"] == pytest.approx(98.816e-6)
    assert vllm["kv_read_bytes"] == sum(map(int, LENS.split(","))) * 2 * 8 * 128 * 2
    assert vllm["achieved_kv_bytes_per_s"] == pytest.approx(vllm["kv_read_bytes"] / 98.816e-6)
    assert 0 < vllm["share_of_kernel_time"] < 1
    assert [w["code"] for w in vllm["warnings"]] == ["threshold_cliff"]
    payload = json.loads(result.out)
    assert payload["schema"] == "decodecalc/audit/2"
    assert payload["inputs"]["gpu"] == "h200-sxm"


def test_the_model_says_what_a_better_split_buys(call: Any, data_dir: Path) -> None:
    """One KV head, 32k keys: the fixed splits of both Triton kernels cost more than S_opt, over all layers."""
    trace = str(data_dir / "traces" / "h200_b.json.gz")
    result = call("audit", trace, "--model", "llama3-70b", "--tp", "8", "--seq-lens", "32768", "--format", "json")
    assert result.code == 0, result.out
    for row in result.rows:
        assert row["predicted_s"] > 0
        assert row["layers"] == 80
        if row["engine"] != "flash-attention-3":
            assert row["s_opt"] > row["splits_launched"]
            assert row["saving_s_per_token"] == pytest.approx((row["predicted_s"] - row["best_s"]) * 80)
            assert row["saving_s_per_token"] > 0


def test_wrong_inputs_fail(call: Any, trace: str) -> None:
    """Exit code 1, and the difference is spelled out."""
    result = call("audit", trace, *LLAMA, "--batch", "16", "--context", "2000")
    assert result.code == 1
    assert "FAILED: 3 of 3" in result.out
    assert "sglang-triton (17, 8, 8): stage-1 grid is (17, 8, 8), predicted (16, 8, 8)" in result.out
    assert "it would be right if the batch is 17" in result.out


def test_nothing_to_check_is_exit_code_1(call: Any, tmp_path: Path) -> None:
    """No attention in the trace: said, not passed."""
    result = call("audit", written(tmp_path / "t.json", [kernel("ampere_bf16_gemm", [8, 8, 1])]))
    assert result.code == 1
    assert "NOTHING CHECKED: none of the 1 kernels is an attention kernel" in result.out


def test_nothing_given_is_still_an_audit(call: Any, trace: str) -> None:
    """SGLang's grids show heads and batch; what else is needed is named."""
    result = call("audit", trace)
    assert result.code == 0
    assert "--model" in result.out
    assert "could not be checked" in result.out


def test_several_ranks(call: Any, trace: str) -> None:
    """Two files of one run are judged together."""
    result = call("audit", trace, trace, *LLAMA, "--seq-lens", LENS, "--format", "json")
    assert result.code == 0
    assert {(tuple(r["ranks"]), r["launches"]) for r in result.rows} == {((0, 1), 6)}


@pytest.mark.parametrize("form", ["csv", "markdown", "table"])
def test_formats(call: Any, trace: str, form: str) -> None:
    """Each form has a line for each launch group."""
    result = call("audit", trace, *LLAMA, "--seq-lens", LENS, "--format", form)
    lines = [line for line in result.out.splitlines() if "match" in line]
    for engine in ("vllm-triton", "sglang-triton", "flash-attention-3"):
        assert sum(engine in line for line in lines) == 1
    assert "\x1b" not in result.out


def test_html_page(call: Any, trace: str, tmp_path: Path) -> None:
    """Self-contained: no scripts, no addresses; every claim is in it."""
    page = tmp_path / "audit.html"
    result = call("audit", trace, *LLAMA, "--seq-lens", LENS, "--html", str(page))
    assert result.code == 0
    text = page.read_text()
    assert "viewport" in text
    assert "stage-1 grid: predicted (21, 8, 1), observed (21, 8, 1)" in text
    assert "<script" not in text
    assert "http" not in text
    assert text.count(": match</summary>") == 3


def test_hostile_names(call: Any, tmp_path: Path) -> None:
    """Terminal escapes are shown as escapes and markup is escaped, in every form and in the page."""
    evil = "evil_attention\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>|\u202e[red]"
    path = written(tmp_path / "evil\x1b[31m.json", [kernel(evil, [1, 1, 1])])
    page = tmp_path / "evil.html"
    for form in ("table", "csv", "markdown", "json"):
        result = call("audit", path, "--format", form, "--html", str(page))
        assert result.code == 1
        for text in (result.out, result.err, page.read_text()):
            assert "\x1b" not in text
            assert "\x07" not in text
            assert "\u202e" not in text
        assert "<script>" not in page.read_text()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--model", "llama3-9b"), "did you mean"),
        (("--engine", "vlm-triton"), "did you mean vllm-triton"),
        (("--engine", "vllm-triton@99"), "version"),
        (("--gpu", "h201"), "did you mean"),
        (("--seq-lens", "5", "--batch", "2"), "cannot be combined with"),
        (("--batch", "0"), "at least 1"),
        (("--context", "0"), "at least 1"),
        (("--kv-heads", "8"), "--q-heads"),
        (("--tp", "2"), "--model"),
        (("--opt", "nonsense"), "NAME=VALUE"),
        (("--q-len", "1,2"), "one number"),
        (("--model", "llama3-8b", "--tp", "3"), "valid"),
    ],
)
def test_bad_usage(call: Any, trace: str, argv: tuple[str, ...], words: str) -> None:
    """Exit code 2 and a sentence that helps, before any long file is read."""
    result = call("audit", trace, *argv)
    assert result.code == 2, result.out
    assert words in result.err
    assert "Traceback" not in result.err


def test_bad_files(call: Any, tmp_path: Path, trace: str) -> None:
    """Exit code 2 for what cannot be read; a truncated file can be audited on request."""
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(Path(trace).read_bytes()[:900])
    text = tmp_path / "cut.json"
    text.write_bytes(gzip.decompress(Path(trace).read_bytes())[:14_000])
    other = tmp_path / "notes.txt"
    other.write_text("not a trace\n")
    page = tmp_path / "never.html"
    for path in (cut, text, other, tmp_path / "missing.json", tmp_path):
        result = call("audit", str(path), "--html", str(page))
        assert result.code == 2
        assert result.err.startswith("error: ")
        assert len(result.err.splitlines()) <= 2
    assert not page.exists()
    allowed = call("audit", str(text), *LLAMA, "--seq-lens", LENS, "--allow-truncated")
    assert allowed.code == 0, allowed.out
    assert "cut off" in allowed.out


def test_help_has_an_example_and_fits(call: Any) -> None:
    """--help shows a real command within 100 columns."""
    result = call("audit", "--help")
    assert "decodecalc audit" in result.out
    assert max(map(len, result.out.splitlines())) <= 100

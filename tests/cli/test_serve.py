"""`decodecalc serve`, `kv` and `step`."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

LLAMA = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-num-seqs 64"


def test_a_serve_command_is_answered_on_one_screen(call: Any) -> None:
    """The answer is the first line; what it costs, what fits and what to change fit on one screen of 100 columns."""
    result = call("serve", LLAMA, "--gpu", "h100")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines[1:])) <= 100
    sentence = lines[0]
    assert "vLLM 0.33.0 on 8 x h100-sxm decodes with FLASH_ATTN (fa3)" in sentence
    assert "all 64 sequences fit" in sentence
    for word in ("model", "backend", "memory", "fits", "change", "time"):
        assert any(line.startswith(word) for line in lines), word


def test_json_holds_the_whole_answer(call: Any) -> None:
    """Schema decodecalc/serve/1: the launch that graphs cap, the memory, and advice that can be typed."""
    result = call("serve", LLAMA, "--gpu", "h100", "--context", "32k", "--batch", "1,64", "--format", "json")
    found = json.loads(result.out)
    assert found["schema"] == "decodecalc/serve/1"
    first, full = found["rows"]
    assert (first["batch"], first["splits_live"], first["engine"]) == (1, 32, "flash-attention-3")
    assert full["attention_s"] is None or full["fits"]
    inputs = found["inputs"]
    assert inputs["cache"]["token_bytes"] == 40960
    assert inputs["memory"]["weight_bytes"] == pytest.approx(17.6e9, rel=0.01)
    assert inputs["layers"][0]["backend"] == "FLASH_ATTN"
    assert all(advice["flag"].startswith("--") for advice in inputs["advice"])


def test_what_does_not_fit_gets_no_time(call: Any) -> None:
    """Weights that are larger than the GPU are named, with the degree that makes them fit, and nothing is timed."""
    result = call("serve", "vllm serve meta-llama/Llama-3.1-70B-Instruct", "--gpu", "h100")
    assert "the weights do not fit on this GPU" in result.out
    assert "--tensor-parallel-size 2" in result.out
    found = json.loads(call("serve", LLAMA, "--gpu", "h100", "-b", "4096", "-f", "json").out)
    assert found["rows"][0]["fits"] is False
    assert found["rows"][0]["attention_s"] is None


def test_a_refusal_is_an_answer(call: Any) -> None:
    """A page that no backend takes: the server does not start, and what to leave out is said."""
    words = "vllm serve deepseek-ai/DeepSeek-V3-0324 -tp 8 --block-size 1"
    result = call("serve", words, "--gpu", "b200")
    assert result.code == 0
    assert "does not start" in result.out
    assert "leave out --block-size 1: without the page size the server runs FLASHINFER_MLA" in result.out


def test_verbose_says_why(call: Any) -> None:
    """-v lists every candidate with the reasons against it, and the source of the rules."""
    plain, verbose = (call("serve", LLAMA, "--gpu", "h100", *more).out for more in ((), ("-v",)))
    assert "kv_cache_dtype not supported" not in plain
    assert "TURBOQUANT: kv_cache_dtype not supported" in verbose
    assert "selector.py" in verbose


def test_a_file_a_manifest_and_standard_input(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command may stand in a script, in a Kubernetes manifest, or come from a pipe."""
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/bash\nexport A=1\nvllm serve meta-llama/Llama-3.1-8B-Instruct \\\n  --max-num-seqs 16\n")
    manifest = tmp_path / "pod.yaml"
    manifest.write_text("containers:\n- image: vllm/vllm-openai:v0.24.0\n  args: [--model, meta-llama/Llama-3.1-8B]\n")
    assert "all 16 sequences fit" in " ".join(call("serve", str(script), "--gpu", "h100").out.split())
    assert "vLLM 0.24.0 on" in call("serve", str(manifest), "--gpu", "h100").out
    monkeypatch.setattr("sys.stdin", io.StringIO(script.read_text()))
    assert "FLASH_ATTN" in call("serve", "-", "--gpu", "h100").out


def test_html(call: Any, tmp_path: Path) -> None:
    """--html writes one page with the sentence and the command, escaped."""
    target = tmp_path / "serve.html"
    assert call("serve", LLAMA, "--gpu", "h100", "--html", str(target)).code == 0
    page = target.read_text()
    assert "decodes with FLASH_ATTN" in page
    assert "<script" not in page


def test_flags_of_the_attention_change_the_launch(call: Any) -> None:
    """Eager mode, the batch-invariant mode and a split bound change what one sequence launches."""
    splits = []
    for more in ("--enforce-eager", "", "--attention-config.flash_attn_max_num_splits_for_cuda_graph 16"):
        found = json.loads(call("serve", f"{LLAMA} {more}", "-g", "h100", "-c", "32k", "-b", "1", "-f", "json").out)
        splits.append(found["rows"][0]["splits_live"])
    invariant = call("serve", f"VLLM_BATCH_INVARIANT=1 {LLAMA}", "-g", "h100", "-c", "32k", "-b", "1", "-f", "json")
    splits.append(json.loads(invariant.out)["rows"][0]["splits_live"])
    assert splits == [86, 32, 16, 1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("ls -l",), "no serve command"),
        (("missing.yaml",), "no such file"),
        (("vllm serve /model",), "--model"),
        ((LLAMA, "--server-version", "9.9"), "0.20 to 0.33"),
        ((LLAMA, "--context", "1m"), "longer"),
        ((LLAMA, "--gpu", "h1000"), "h100"),
        ((LLAMA, "--reserve-gib", "-1"), "from 0 to 1048576, not -1"),
        (("vllm serve meta-llama/Llama-3.1-8B -tp 3",), "valid"),
    ],
)
def test_bad_input_is_exit_2(call: Any, argv: tuple[str, ...], message: str) -> None:
    """Each mistake gets its own line that says what was wrong."""
    result = call("serve", *argv)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_path_takes_its_model_from_an_option(call: Any) -> None:
    """A path that names no model is answered with --model."""
    assert call("serve", "vllm serve /model", "--model", "llama3-8b", "--gpu", "h100").code == 0


def test_kv(call: Any) -> None:
    """Bytes by layer group, copies of KV heads, and sequences against context."""
    result = call("kv", "--model", "qwen3-30b-a3b", "--tp", "8", "--available-gib", "12.22", "--context", "8k")
    assert result.out.startswith(
        "qwen3-30b-a3b stores 24.6 kB of KV for a token, over all layers of one GPU (197 kB over"
    )
    assert "a token stores 512 B in a layer and 24576 B in all of them" in result.out
    assert "2 ranks hold the same KV heads" in result.out
    found = json.loads(call("kv", "--model", "gemma3-27b", "--gpu", "h100", "--format", "json").out)
    assert found["schema"] == "decodecalc/kv/1"
    assert [row["sequences"] for row in found["rows"]] == sorted(
        (row["sequences"] for row in found["rows"]), reverse=True
    )


def test_step(call: Any) -> None:
    """Attention's share is a range, and the floor is named one."""
    result = call(
        "step", "--model", "llama3.1-70b", "--tp", "8", "--gpu", "h200", "--batch", "1,64", "--server", "vllm"
    )
    assert "least rest" in result.out
    found = json.loads(call("step", "--model", "gpt-oss-20b", "--gpu", "h200", "--format", "json").out)
    (row,) = found["rows"]
    assert 0 < row["attention_share_low"] < row["attention_share_high"] < 1
    assert row["step_least_s"] == pytest.approx(row["attention_low_s"] + row["rest_floor_s"])


def test_grid_marks_what_servers_run(call: Any) -> None:
    """Without --server the defaults are marked; with it the server's row comes first."""
    marked = json.loads(call("grid", "--model", "llama3.1-70b", "--tp", "8", "--format", "json").out)["rows"]
    own = [row["engine"] for row in marked if row.get("default_of")]
    assert own == ["flash-attention-3"]
    first = json.loads(call("grid", "--model", "llama3.1-70b", "--tp", "8", "--server", "vllm", "-f", "json").out)[
        "rows"
    ]
    assert (first[0]["engine"], first[0]["asked"]) == ("flash-attention-3", True)
    assert not any(row.get("asked") for row in first[1:])


def test_an_option_that_does_not_apply_is_named(call: Any) -> None:
    """An option of one engine among several is said not to apply to the others."""
    out = call("grid", "--engine", "vllm-triton,flash-attention-2", "--opt", "max_num_seqs=64").out
    assert "option max_num_seqs has no effect on flash-attention-2" in out


def test_the_page_says_the_answer_once_and_leaves_folding_to_the_browser(call: Any, tmp_path: Path) -> None:
    """Lines folded for a terminal would be paragraphs of half sentences on a page."""
    page = tmp_path / "serve.html"
    assert call("serve", LLAMA, "--gpu", "h100-sxm", "--html", str(page)).code == 0
    text = page.read_text()
    assert text.count("decodes with FLASH_ATTN") == 1
    assert re.search(r"<li>memory .* leave .* for the cache; .* per token and GPU</li>", text)

"""`decodecalc grid`: the values of the theory, through the command a user types."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from decodecalc.engines.registry import engine_names


def grid(call: Any, *argv: str) -> list[dict[str, Any]]:
    """Rows of a vllm-triton grid unless argv names an engine."""
    engine = () if "--engine" in argv else ("--engine", "vllm-triton")
    result = call("grid", *argv, *engine, "--format", "json")
    assert result.code == 0, result.err
    return result.rows


def test_llama3_8b_starves_unsplit_and_fills_split(call: Any) -> None:
    """8 unsplit blocks, S* 17; vLLM launches (1, 8, 16): 128 of 132 SMs."""
    (row,) = grid(call, "--model", "llama3-8b")
    assert row["unsplit_blocks"] == 8
    assert row["s_star"] == 17
    assert (row["path"], row["grid"], row["launched_blocks"], row["live_blocks"]) == ("3d", [1, 8, 16], 128, 128)
    assert row["sm_coverage"] == pytest.approx(128 / 132)
    assert row["merge_grid"] == [1, 32]


def test_a_70b_share_has_one_block_and_fixed_16_splits_leave_88_percent_idle(call: Any) -> None:
    """Llama-3-70B on TP 8: one block (0.76 % of the SMs), S* 132, vLLM's 16 segments give 16 blocks."""
    (row,) = grid(call, "--model", "llama3-70b", "--tp", "8", "--context", "128k")
    assert (row["unsplit_blocks"], row["s_star"], row["live_blocks"]) == (1, 132, 16)
    assert row["sm_coverage"] == pytest.approx(16 / 132)


def test_vllm_over_counts_query_blocks_and_flips_at_its_threshold(call: Any) -> None:
    """Query blocks 1, 5, 20, 21, 80 for batch 1, 4, 16, 17, 64; 3D up to batch 16, 2D from 17."""
    rows = grid(call, "--model", "llama3-8b", "--batch", "1,4,16,17,64", "--gpu", "h200")
    assert [row["grid"][0] for row in rows] == [1, 5, 20, 21, 80]
    assert [row["path"] for row in rows] == ["3d", "3d", "3d", "2d", "2d"]
    assert all(len(row["grid"]) == (3 if row["path"] == "3d" else 2) for row in rows)


@pytest.mark.parametrize(("context", "live"), [(128, 8), (256, 16), (257, 9), (500, 16), (4096, 16), (4097, 16)])
def test_rounding_to_tiles_kills_segments(call: Any, context: int, live: int) -> None:
    """L 257 launches 16 segments of which 9 have keys."""
    (row,) = grid(call, "--model", "llama3-8b", "--context", str(context))
    assert (row["splits_requested"], row["splits_launched"], row["splits_live"]) == (16, 16, live)


def test_the_three_split_counts_are_kept_apart(call: Any) -> None:
    """SGLang launches its cap, asks per request, and 32-key rounding decides what lives."""
    (row,) = grid(call, "--model", "llama3-8b", "--seq-lens", "128,8192", "--engine", "sglang-triton@0.5.10")
    assert row["splits_launched"] == 8
    assert row["splits_requested"] == [1, 8]
    assert row["splits_live"] == [1, 8]


def test_row_keys_that_other_tools_rely_on_are_there(call: Any) -> None:
    """The contract's keys, and lists where it says lists."""
    keys = [
        "engine", "version", "layer_group", "layers", "batch", "context", "path", "grid", "launched_blocks",
        "live_blocks", "sm_count", "sm_coverage", "waves", "splits_requested", "splits_launched", "splits_live",
        "s_star", "s_opt", "merge_grid", "gates",
    ]  # fmt: skip
    result = call("grid", "--model", "llama3-8b", "--engine", "all", "--format", "json")
    payload = json.loads(result.out)
    assert payload["schema"] == "decodecalc/grid/1"
    ran = [row for row in payload["rows"] if row["grid"] is not None]
    assert all(set(keys) <= set(row) and isinstance(row["grid"], list) for row in ran)
    assert {"vllm-triton", "sglang-triton", "flash-decoding"} <= {row["engine"] for row in ran}


def test_servers_defaults_come_first_then_best_coverage_with_refusals_explained(call: Any) -> None:
    """Engines that servers run by themselves stand on top; those that cannot run the layer are named with a reason."""
    result = call(
        "grid", "--model", "llama3-70b", "--tp", "8", "--context", "128k", "--engine", "all", "--format", "json"
    )
    planned = [row for row in result.rows if row["grid"] is not None]
    order = [(not row["default_of"], -row["sm_coverage"]) for row in planned]
    assert planned[0]["default_of"]
    assert order == sorted(order)
    refused = {row["engine"]: row["gates"][0]["reason"] for row in result.rows if row["grid"] is None}
    assert "MLA" in refused["flashmla"]


def test_without_engine_the_table_holds_what_servers_run_and_says_what_else_there_is(call: Any) -> None:
    """The default list is short; the note counts the engines that it leaves out."""
    rows = call("grid", "--model", "llama3-8b", "--format", "json").rows
    names = {row["engine"] for row in rows}
    assert {"flash-attention-3", "vllm-triton", "sglang-triton", "bundled"} <= names
    assert (
        f"--engine all lists {len(engine_names()) - len(names)} further engines" in call("grid", "-m", "llama3-8b").out
    )


def test_csv_has_the_columns_of_json(call: Any) -> None:
    """Same rows, same names; a grid is written 1x8x16."""
    argv = ("grid", "--model", "llama3-8b", "--engine", "vllm-triton")
    (plain,) = csv.DictReader(io.StringIO(call(*argv, "--format", "csv").out))
    (row,) = call(*argv, "--format", "json").rows
    assert list(plain) == list(row)
    assert plain["grid"] == "1x8x16"


def test_a_pipe_gets_no_colour_no_boxes_and_every_column(call: Any) -> None:
    """The table form outside a terminal is plain text."""
    out = call("grid", "--model", "llama3-8b", "--batch", "1:64:x2").out
    assert "\x1b" not in out
    assert not set("┃│━─┏╭|") & set(out)
    assert "…" not in out


def test_defaults_are_said(call: Any) -> None:
    """A newcomer sees which GPU, batch and context the numbers are for."""
    out = call("grid", "--model", "llama3-8b").out
    assert "defaults: gpu h100-sxm, batch 1, context 2560" in out


def test_layers_that_differ_are_rows_of_their_own(call: Any) -> None:
    """Gemma-3's sliding and global layers, with their counts."""
    rows = grid(call, "--model", "gemma3-27b")
    assert sorted(row["layers"] for row in rows) == [10, 52]
    assert {row["window"] for row in rows} == {None, 1024}


def test_output_to_a_file_is_whole_or_absent(call: Any, tmp_path: Any) -> None:
    """-o writes the result; a folder that does not exist leaves nothing and exits 2."""
    target = tmp_path / "grid.json"
    assert call("grid", "--model", "llama3-8b", "--format", "json", "-o", str(target)).code == 0
    assert json.loads(target.read_text())["schema"] == "decodecalc/grid/1"
    missing = call("grid", "--model", "llama3-8b", "-o", str(tmp_path / "no" / "grid.csv"))
    assert missing.code == 2
    assert "cannot write" in missing.err
    assert [p.name for p in tmp_path.iterdir()] == ["grid.json"]


def test_an_engine_that_cannot_run_a_step_does_not_stop_the_others(call: Any) -> None:
    """A padded row of 0 keys is no decode row to SGLang; the other engines are still listed."""
    result = call("grid", "--model", "llama3-8b", "--seq-lens", "0,5,7", "--engine", "all", "--format", "json")
    assert result.code == 0, result.err
    ran = {row["engine"]: row for row in result.rows if row["grid"] is not None}
    refused = {row["engine"] for row in result.rows if row["grid"] is None}
    assert ran["vllm-triton"]["splits_live"] == [0, 1, 1]
    assert "sglang-triton" in refused


def test_when_no_engine_runs_a_step_the_reasons_are_the_message(call: Any) -> None:
    """Exit 2, not an empty table."""
    result = call("grid", "--model", "llama3-8b", "--engine", "flashmla,rocm-paged")
    assert (result.code, result.out) == (2, "")
    assert "none of the chosen engines runs this: flashmla needs an MLA" in result.err

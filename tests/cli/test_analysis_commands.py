"""segments, merge, roofline, paging, explain, plot, models, gpus, engines: the values of the theory notes."""

from __future__ import annotations

from typing import Any

import pytest

from decodecalc.plot import FIGURES

LLAMA = ("--model", "llama3-8b", "--engine", "vllm-triton")


def rows(call: Any, *argv: str) -> list[dict[str, Any]]:
    """Rows of a command in JSON."""
    result = call(*argv, "--format", "json")
    assert result.code == 0, result.err
    return result.rows


def test_segments_of_2560_keys_are_ten_tiles_each(call: Any) -> None:
    """Split 0 walks keys 0-159, split 15 walks 2400-2559."""
    found = rows(call, "segments", *LLAMA)
    assert [(r["start"], r["end"], r["tiles"]) for r in (found[0], found[15])] == [(0, 160, 10), (2400, 2560, 10)]


@pytest.mark.parametrize(
    ("context", "live", "width", "last"),
    [
        (128, 8, 16, 16),
        (256, 16, 16, 16),
        (257, 9, 32, 1),
        (500, 16, 32, 20),
        (4096, 16, 256, 256),
        (4097, 16, 272, 17),
    ],
)
def test_segments_round_to_tiles(call: Any, context: int, live: int, width: int, last: int) -> None:
    """Live splits x their keys, and what is left for the last one."""
    found = [r for r in rows(call, "segments", *LLAMA, "--context", str(context)) if r["state"] == "live"]
    assert (len(found), found[0]["keys"], found[-1]["keys"]) == (live, width, last)


def test_segments_outside_a_window_are_told_apart(call: Any) -> None:
    """gpt-oss, window 128 at 8192 keys: 16 live segments, one of them touches the window."""
    found = rows(call, "segments", "--model", "gpt-oss-20b", "--engine", "vllm-triton", "--context", "8192")
    sliding = [r for r in found if r["layer_group"].startswith("sliding")]
    assert [r["state"] for r in sliding] == ["outside window"] * 15 + ["live"]


def test_merge_bytes_of_the_default_scenario(call: Any) -> None:
    """8320 B per (token, head), 266240 B written and as many read, against 10485760 B of KV; 335.5 MB per token."""
    (r,) = rows(call, "merge", *LLAMA)
    assert r["partial_state_bytes"] * 16 == 8320
    assert (r["partial_written_bytes"], r["partial_read_bytes"]) == (266240, 266240)
    assert r["kv_read_bytes"] == 10_485_760
    assert r["kv_read_step_bytes"] == 335_544_320
    assert r["launches_step"] == 64


def test_short_sequences_pay_for_splitting(call: Any) -> None:
    """At 128 keys live states move half the KV bytes; at 512 the allocated ones a quarter."""
    short, longer = rows(call, "merge", *LLAMA, "--context", "128,512")
    assert (short["partial_traffic_bytes"], short["kv_read_bytes"]) == (266_240, 524_288)
    assert (2 * longer["partial_allocated_bytes"], longer["kv_read_bytes"]) == (532_480 * 1, 2_097_152)
    assert not short["merge_worthwhile"]


def test_roofline_of_gqa_is_74_times_memory_bound(call: Any) -> None:
    """Intensity 4, ridge 295, tile 16 x 16 with 4 live rows: 8192 B and 32768 FLOP."""
    r = rows(call, "roofline", *LLAMA, "--compare")
    first = r[0]
    assert first["intensity_flop_per_byte"] == pytest.approx(4)
    assert first["ridge_flop_per_byte"] == pytest.approx(295, abs=1)
    assert first["memory_bound_factor"] == pytest.approx(74, abs=1)
    assert (first["tile_rows"], first["tile_live_rows"], first["tile_wasted_row_share"]) == (16, 4, 0.75)
    assert (first["tile_kv_bytes"], first["tile_flop"]) == (8192, 32768)
    assert {x["kind"] for x in r} == {"GQA", "MHA", "MQA", "MLA"}
    assert next(x for x in r if x["kind"] == "MHA")["intensity_flop_per_byte"] == pytest.approx(1)


def test_paging_of_2560_keys(call: Any) -> None:
    """160 entries, 640 B; a per-key index costs 4 B per 512 B of one head's K and V."""
    (r,) = rows(call, "paging", *LLAMA, "--allocator-page-size", "32", "--page-ids", "0,1,2")
    assert (r["table_entries"], r["table_bytes"]) == (160, 640)
    assert r["kernel_page_ids"] == [0, 1, 2, 3, 4, 5]
    (flat,) = rows(call, "paging", "--model", "llama3-8b", "--engine", "sglang-triton", "--page-size", "1")
    assert flat["table_share"] == pytest.approx(4 / 512)
    assert flat["layout"] == "per-token index list"


def test_explain_tells_the_default_scenario_to_the_byte(call: Any) -> None:
    """Every number of the theory's worked example appears, below the answer in lines of at most 100 columns."""
    out = call("explain", "--model", "llama3-8b", "--context", "2560").out
    answer, _, rest = out.partition("\n")
    assert answer.startswith("vllm-triton launches 128 blocks, which keep 128 of 132 SMs (97 %) busy")
    for said in (
        "8 / 132 = 6.06 %",
        "ceil(132 / 8) = 17",
        "(1 x 8 x 16) = 128 blocks",
        "keys 0-159",
        "keys 2400-2559",
        "160 ids x 4 B = 640 B",
        "= 8192 B",
        "= 32768",
        "8320 B",
        "266240 B are written and read back",
        "10485760 B",
        "335544320 B",
        "64 launches",
        "73.8 times the intensity: the layer is memory-bound",
    ):
        assert said in out, said
    assert max(map(len, rest.splitlines())) <= 100


@pytest.mark.parametrize(
    ("figure", "suffix"), [("occupancy", "svg"), ("splits", "pdf"), *((f, "png") for f in FIGURES)]
)
def test_figures_are_written_by_suffix(call: Any, tmp_path: Any, figure: str, suffix: str) -> None:
    """Every figure draws its default scenario; PNG, SVG and PDF start as such files do; the data comes along."""
    target = tmp_path / f"f.{suffix}"
    data = tmp_path / "f.csv"
    result = call("plot", figure, *LLAMA[:2], "-o", str(target), "--data", str(data))
    assert result.code == 0, result.err
    assert target.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    assert len(data.read_text().splitlines()) > 2


def test_lists_name_what_there_is(call: Any) -> None:
    """models, gpus and engines list their entries; naming one shows its details."""
    assert {"llama3-8b", "deepseek-v3", "gpt-oss-20b"} <= {r["name"] for r in rows(call, "models")}
    assert {"h100-sxm", "h200-sxm"} <= {r["name"] for r in rows(call, "gpus")}
    assert "vllm-triton" in {r["engine"] for r in rows(call, "engines")}
    assert any(r["field"] == "sm_count" and r["value"] == 132 for r in rows(call, "gpus", "h200-sxm"))
    assert any(r["option"] == "max_num_seqs" for r in rows(call, "engines", "vllm-triton"))
    (group,) = rows(call, "models", "llama3-70b", "--tp", "8")
    assert (group["q_heads"], group["kv_heads"]) == (8, 1)


def test_help_has_an_example_and_fits_100_columns(call: Any) -> None:
    """Every command's help shows a real example."""
    from decodecalc.cli.main import COMMANDS

    for name in COMMANDS:
        out = call(name, "--help").out
        assert f"decodecalc {name}" in out.split("Example", 1)[-1], name
        assert max(map(len, out.splitlines())) <= 100, name

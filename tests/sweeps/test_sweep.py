"""A sweep prints what grid prints, whatever the axes, in any number of shards, interrupted or not."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.analysis.occupancy import occupancy
from decodecalc.analysis.traffic import traffic
from decodecalc.sweeps import COLUMNS, Axes, sweep
from decodecalc.sweeps.columns import DEFAULT_COLUMNS, TRAFFIC

ENGINES = [name for name in dc.engine_names() if name != "bundled"]


def axes_of(models: list[str], **changes: Any) -> Axes:
    """Axes with defaults that keep a test small."""
    values: dict[str, Any] = {
        "models": tuple(dc.load_model(m) for m in models),
        "tps": (1,),
        "gpus": (dc.load_gpu("h100-sxm"),),
        "engines": ("vllm-triton", "sglang-triton"),
        "batches": (1, 3),
        "contexts": (257, 4096),
    }
    return Axes(**{**values, **changes})


def rows_of(axes: Axes, columns: tuple[str, ...] = DEFAULT_COLUMNS, **options: Any) -> list[dict[str, Any]]:
    """All rows of a sweep."""
    out: list[dict[str, Any]] = []
    for _, chunk in sweep(axes, **options):
        out += [dict(zip(columns, row)) for row in zip(*(chunk.values(name) for name in columns))]
    return out


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        ["llama3-8b", "llama3-70b", "gpt-oss-20b", "gemma3-27b", "falcon-7b", "deepseek-v3", "llama4-scout"]
    ),
    st.sampled_from(ENGINES),
    st.lists(st.integers(1, 300), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=3, unique=True),
    st.sampled_from([1, 2, 5]),
)
def test_every_row_is_what_a_plan_of_its_own_gives(
    model: str, engine: str, batches: list[int], contexts: list[int], q_len: int
) -> None:
    """Launch and traffic columns equal the scalar door's, for every engine."""
    contexts = [max(c, q_len) for c in contexts]
    axes = axes_of([model], engines=(engine,), batches=tuple(batches), contexts=tuple(contexts), q_lens=(q_len,))
    for position, chunk in sweep(axes, chunk_rows=4):
        family = chunk.family
        for i in range(chunk.size):
            batch = dc.Batch.uniform(chunk.values("batch")[i], chunk.values("context")[i], q_len)
            seen = family.layer_group.seen_batch(batch)
            plan = family.policy.plan(
                family.layer_group.geometry, seen, family.kv, family.gpu, family.options, family.version.name
            )
            o, t = occupancy(plan), traffic(plan)
            row = {name: chunk.values(name)[i] for name in DEFAULT_COLUMNS}
            assert row["path"] == plan.path
            assert row["grid"] == list(plan.stage1.grid)
            assert row["merge_grid"] == (list(plan.merge.grid) if plan.merge else None)
            assert row["splits_requested"] == plan.splits.requested[0]
            assert row["splits_launched"] == plan.splits.launched
            assert row["splits_live"] == plan.splits.live[0]
            assert row["splits_working"] == plan.splits.working[0]
            assert row["scratch_bytes"] == plan.scratch_bytes
            assert row["tile_keys"] == plan.tile_keys
            for name in ("launched_blocks", "live_blocks", "unsplit_blocks", "sm_coverage", "waves", "s_star"):
                assert row[name] == getattr(o, name), name
            for name in TRAFFIC:
                assert row[name] == getattr(t, name), name
        assert position


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 7))
def test_shards_in_order_are_the_whole(count: int, chunk_rows: int) -> None:
    """Shard 1/n, 2/n, … n/n concatenate to the unsharded result."""
    axes = axes_of(["llama3-8b", "gemma3-27b"])
    whole = rows_of(axes)
    parts = [row for i in range(count) for row in rows_of(axes, shard=(i + 1, count), chunk_rows=chunk_rows)]
    assert parts == whole


def test_a_filter_keeps_the_rows_for_which_it_holds() -> None:
    """`where` is evaluated on the columns that are written."""
    axes = axes_of(["llama3-8b"], batches=tuple(range(1, 40)))
    kept = rows_of(axes, where="path == '2d' and batch < 20 or engine in ('sglang-triton',) and batch % 7 == 0")
    expected = [
        r
        for r in rows_of(axes)
        if (r["path"] == "2d" and r["batch"] < 20) or (r["engine"] == "sglang-triton" and r["batch"] % 7 == 0)
    ]
    assert kept == expected
    assert kept


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('x')",
        "batch.real > 0",
        "[x for x in (1,)]",
        "lambda: 1",
        "batch",
        "batch +",
        "nosuch > 1",
        "batch > 'a' + 1",
        "(" * 500,
        "f'{batch}'",
        "1 if batch else 0",
        "batch << 2",
        "batch ** 9999",
    ],
)
def test_filters_that_are_not_plain_conditions_are_refused(text: str) -> None:
    """No calls, attributes, comprehensions or unknown names."""
    with pytest.raises(dc.InputError):
        rows_of(axes_of(["llama3-8b"]), where=text)


@given(st.text(max_size=60))
def test_junk_filters_never_crash(text: str) -> None:
    """A filter parses to a condition or raises InputError."""
    from decodecalc.sweeps.where import Filter

    try:
        Filter(text, COLUMNS).mask(lambda name: np.arange(3))
    except dc.InputError:
        return


def run_cli(call: Any, *argv: str) -> Any:
    """A sweep command that must succeed."""
    result = call("sweep", *argv)
    assert result.code == 0, result.err
    return result


BASE = (
    "--model",
    "llama3-8b,gpt-oss-20b",
    "--engine",
    "vllm-triton,sglang-triton",
    "--batch",
    "1:32:1",
    "--context",
    "1k,8k",
)


def test_csv_and_json_lines_hold_the_same_rows(call: Any, tmp_path: Path) -> None:
    """Two spellings of one table."""
    run_cli(call, *BASE, "-o", str(tmp_path / "a.csv"))
    run_cli(call, *BASE, "-o", str(tmp_path / "a.jsonl"))
    plain = list(csv.DictReader((tmp_path / "a.csv").open()))
    full = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(plain) == len(full) == 2 * 32 * 2 * (1 + 2)
    assert [r["grid"] for r in plain] == ["x".join(map(str, r["grid"])) for r in full]
    assert [float(r["sm_coverage"]) for r in plain] == [r["sm_coverage"] for r in full]
    assert [p.name for p in tmp_path.glob("*.resume")] == []


def test_csv_shards_concatenate_to_the_whole_file(call: Any, tmp_path: Path) -> None:
    """Only the first shard carries the header, so `cat` joins them."""
    run_cli(call, *BASE, "-o", str(tmp_path / "whole.csv"))
    parts = ""
    for i in (1, 2, 3):
        run_cli(call, *BASE, "--shard", f"{i}/3", "-o", str(tmp_path / f"{i}.csv"))
        parts += (tmp_path / f"{i}.csv").read_text()
    assert parts == (tmp_path / "whole.csv").read_text()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_interrupted_sweep_goes_on_where_it_stopped(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """After a Ctrl-C in the middle of a chunk, the same command gives the same file as one that was never stopped."""
    from decodecalc.sweeps import writers

    whole, cut = tmp_path / f"whole.{kind}", tmp_path / f"cut.{kind}"
    run_cli(call, *BASE, "-o", str(whole))
    real, count = writers.TextWriter.write, 0

    def stop_at_third(self: Any, chunk: Any, position: int) -> None:
        nonlocal count
        count += 1
        if count == 3:
            self._file.write("half a li")
            raise KeyboardInterrupt
        real(self, chunk, position)

    monkeypatch.setattr(writers.TextWriter, "write", stop_at_third)
    stopped = call("sweep", *BASE, "-o", str(cut))
    assert stopped.code == 130
    assert "goes on" in stopped.err
    monkeypatch.setattr(writers.TextWriter, "write", real)
    run_cli(call, *BASE, "-o", str(cut))
    assert cut.read_text() == whole.read_text()


def test_another_sweeps_half_file_is_not_continued(call: Any, tmp_path: Path) -> None:
    """A resume note of other axes is refused, not mixed in."""
    target = tmp_path / "a.csv"
    target.write_text("x")
    (tmp_path / "a.csv.resume").write_text(json.dumps({"key": "other", "bytes": 1, "position": 5}))
    result = call("sweep", *BASE, "-o", str(target))
    assert result.code == 2
    assert "another sweep" in result.err


def test_parquet_parts_read_as_one_table_and_resume(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of parts equals the CSV; a missing part is made again, the others are kept; shards share the folder."""
    pa = pytest.importorskip("pyarrow.parquet", reason="pyarrow is optional")
    from decodecalc.sweeps.writers import ParquetWriter

    monkeypatch.setattr(ParquetWriter, "ROWS_PER_PART", 60)
    folder = tmp_path / "t.parquet"
    run_cli(call, *BASE, "-o", str(folder))
    table = pa.read_table(folder).to_pylist()
    run_cli(call, *BASE, "-o", str(tmp_path / "a.jsonl"))
    assert table == [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    parts = sorted(folder.iterdir())
    assert len(parts) > 2
    kept = parts[0].stat().st_mtime_ns
    parts[-1].unlink()
    run_cli(call, *BASE, "-o", str(folder))
    assert pa.read_table(folder).to_pylist() == table
    assert parts[0].stat().st_mtime_ns == kept
    shards = tmp_path / "s.parquet"
    for i in (2, 1):
        run_cli(call, *BASE, "--shard", f"{i}/2", "-o", str(shards))
    assert pa.read_table(shards).to_pylist() == table


def test_top_keeps_the_best_rows(call: Any) -> None:
    """The N smallest or largest by a column, best first."""
    out = run_cli(call, *BASE, "--top", "5 by -sm_coverage", "--select", "engine,batch,context,sm_coverage").out
    best = [float(r["sm_coverage"]) for r in csv.DictReader(io.StringIO(out))]
    everything = [float(r["sm_coverage"]) for r in csv.DictReader(io.StringIO(run_cli(call, *BASE).out))]
    assert best == sorted(everything)[:5]


def test_degrees_and_engines_that_do_not_fit_are_left_out_and_said(call: Any) -> None:
    """A sweep goes on where single commands refuse."""
    result = run_cli(call, "--model", "llama3-8b", "--tp", "1,3", "--engine", "vllm-triton,flashmla")
    assert "tp 3 does not fit" in result.err
    assert "flashmla does not run" in result.err
    assert len(result.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--shard", "3/2"), "I/N"),
        (("--shard", "x"), "I/N"),
        (("--top", "5"), "N by COLUMN"),
        (("--top", "5 by path"), "numeric column"),
        (("--select", "nosuch"), "unknown column"),
        (("--where", "nosuch > 1"), "unknown column"),
        (("-o", "x.xlsx"), ".csv, .jsonl or .parquet"),
        (("--batch", "0"), "at least 1"),
        (("--tp", "3"), "does not fit"),
        (("--engine", ","), "empty"),
    ],
)
def test_bad_sweeps_say_what_is_wrong(call: Any, argv: tuple[str, ...], said: str) -> None:
    """Exit 2 and a message."""
    result = call("sweep", "--model", "llama3-8b", *argv)
    assert (result.code, said in result.err) == (2, True), result.err

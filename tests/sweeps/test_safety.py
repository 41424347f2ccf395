"""A sweep destroys nothing, mixes nothing and leaves nothing half done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decodecalc.errors import InputError
from decodecalc.sweeps import writers
from decodecalc.sweeps.columns import COLUMNS
from decodecalc.sweeps.where import Filter

BASE = ("--model", "llama3-8b", "--engine", "vllm-triton,flash-decoding", "--batch", "1:64:1", "--context", "1k,2k")


@pytest.fixture
def stopped(call: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """stopped(*argv) runs a sweep that is interrupted after its first chunk."""
    real = writers.TextWriter.write

    def once(self: Any, chunk: Any, position: int) -> None:
        real(self, chunk, position)
        raise KeyboardInterrupt

    def invoke(*argv: str) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(writers.TextWriter, "write", once)
            return call("sweep", *BASE, *argv)

    return invoke


def test_a_sweep_that_fails_leaves_an_earlier_result_as_it_was(call: Any, stopped: Any, tmp_path: Path) -> None:
    """An interrupted, refused or mistaken sweep does not touch the file that it would replace."""
    out = tmp_path / "a.csv"
    out.write_text("finished\n")
    assert stopped("-o", str(out)).code == 130
    assert out.read_text() == "finished\n"
    (tmp_path / "a.csv.resume").unlink()
    for extra in (("--where", "batch / 'x' > 1"), ("--engine", "flashmla"), ("--where", "model * batch == 1")):
        assert call("sweep", *BASE, *extra, "-o", str(out)).code == 2
        assert out.read_text() == "finished\n"


def test_a_sweep_that_nothing_runs_prints_no_header(call: Any, tmp_path: Path) -> None:
    """Standard output stays empty, a file is not made, and the reason is said."""
    result = call("sweep", *BASE, "--engine", "flashmla")
    assert (result.code, result.out) == (2, "")
    assert "flashmla does not run" in result.err
    call("sweep", *BASE, "--engine", "flashmla", "-o", str(tmp_path / "a.csv"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", [("--shard", "2/2"), ("--batch", "1:65:1"), ("--opt", "max_num_seqs=8")])
def test_a_resume_of_another_sweep_or_shard_is_refused(
    call: Any, stopped: Any, tmp_path: Path, other: tuple[str, ...]
) -> None:
    """The note's key holds the shard and every option."""
    out = str(tmp_path / "a.csv")
    stopped("-o", out)
    result = call("sweep", *BASE, *other, "-o", out)
    assert result.code == 2
    assert "another sweep" in result.err
    assert call("sweep", *BASE, "-o", out).code == 0


def test_a_model_file_that_changed_is_another_sweep(call: Any, stopped: Any, tmp_path: Path) -> None:
    """The key holds what files say, not only their names."""
    config = {"model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096, "num_hidden_layers": 4}
    path, out = tmp_path / "m.json", str(tmp_path / "a.csv")
    path.write_text(json.dumps(config))
    assert stopped("--model", str(path), "-o", out).code == 130
    path.write_text(json.dumps({**config, "num_key_value_heads": 8}))
    assert "another sweep" in call("sweep", *BASE, "--model", str(path), "-o", out).err


@pytest.mark.parametrize(
    "junk", ["", "garbage", "[]", '{"bytes": -1}', '{"bytes": 1e400}', '{"bytes": 5, "position": "x"}']
)
def test_a_damaged_note_is_named(call: Any, tmp_path: Path, junk: str) -> None:
    """One line, exit code 2, whatever is in it."""
    (tmp_path / "a.csv.resume").write_text(junk)
    result = call("sweep", *BASE, "-o", str(tmp_path / "a.csv"))
    assert result.code == 2
    assert "a.csv.resume" in result.err
    assert "internal" not in result.err


def test_rows_that_became_fewer_are_not_continued(call: Any, stopped: Any, tmp_path: Path) -> None:
    """A file that shrank would be filled up with null bytes."""
    out = tmp_path / "a.csv"
    stopped("-o", str(out))
    (tmp_path / "a.csv.partial").write_text("x")
    assert "fewer than it says" in call("sweep", *BASE, "-o", str(out)).err


def test_two_sweeps_do_not_write_one_file_at_a_time(call: Any, tmp_path: Path) -> None:
    """The second is told that the first is writing, and the first goes on."""
    pytest.importorskip("fcntl", reason="locks need a system that has them")
    out = tmp_path / "a.csv"
    with open(tmp_path / "a.csv.partial", "w") as held:
        writers.hold(held, out)
        result = call("sweep", *BASE, "-o", str(out))
    assert result.code == 2
    assert "another sweep is writing" in result.err
    assert call("sweep", *BASE, "-o", str(out)).code == 0


def test_parquet_parts_of_a_shard_and_the_whole_do_not_meet_in_one_folder(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are there already are never written a second time under another part's name."""
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is optional")
    monkeypatch.setattr(writers.ParquetWriter, "ROWS_PER_PART", 100)
    folder = str(tmp_path / "p.parquet")
    assert call("sweep", *BASE, "--shard", "2/3", "-o", folder).code == 0
    result = call("sweep", *BASE, "-o", folder)
    assert result.code == 2
    assert "another shard" in result.err
    for shard in ("1/3", "3/3"):
        assert call("sweep", *BASE, "--shard", shard, "-o", folder).code == 0


def test_an_interrupted_parquet_sweep_has_what_was_finished(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows held in memory reach the folder before the command ends, and the sweep goes on behind them."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is optional")
    real, folder = writers.ParquetWriter.write, tmp_path / "p.parquet"

    def once(self: Any, chunk: Any, position: int) -> None:
        real(self, chunk, position)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writers.ParquetWriter, "write", once)
        assert call("sweep", *BASE, "-o", str(folder)).code == 130
    assert parquet.read_table(folder).num_rows > 0
    assert call("sweep", *BASE, "-o", str(folder)).code == 0
    assert parquet.read_table(folder).num_rows == 2 * 64 * 2


def test_a_link_stays_a_link_and_a_device_a_device(call: Any, tmp_path: Path) -> None:
    """A sweep writes through what its output points at."""
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    assert call("sweep", *BASE, "-o", str(tmp_path / "link.csv")).code == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("model,")
    (tmp_path / "null.csv").symlink_to("/dev/null")
    assert call("sweep", *BASE, "-o", str(tmp_path / "null.csv")).code == 0
    assert (tmp_path / "null.csv").is_symlink()


@pytest.mark.parametrize(
    "text",
    [
        "batch == 99999999999999999999999999", "batch == [1, 2]", "batch in [[1]]", "'a' * 9999999999 == 'b'",
        "grid == 3", "model * batch == 1", "batch + 'x' > 1", "batch == ...", "batch == 1j", "batch == b'x'",
    ],
)  # fmt: skip
def test_a_filter_that_cannot_be_is_refused(text: str) -> None:
    """Before any row, or with the first; never as another exception."""
    with pytest.raises(InputError, match="--where"):
        Filter(text, COLUMNS).mask(lambda name: __import__("numpy").arange(3) if name != "model" else "llama")


@pytest.mark.parametrize("text", ["window < 5", "window > 5", "batch / 0 < -1", "batch % 0 == 1", "window * 2 > 1"])
def test_no_comparison_with_a_missing_value_holds(text: str) -> None:
    """Also not with what a division by zero gives."""
    import numpy as np

    mask = Filter(text, COLUMNS).mask(lambda name: None if name == "window" else np.arange(3))
    assert not np.any(mask)


def test_missing_values_can_be_asked_for() -> None:
    """`== None` and `!= None` tell layers without a window from those with one."""
    assert Filter("window == None", COLUMNS).mask(lambda _: None)
    assert Filter("window != None", COLUMNS).mask(lambda _: 128)


@pytest.mark.parametrize("names", ["batch", "time,batch,time", "engine,batch,engine", "batch,time", "time"])
def test_every_column_is_written_once(call: Any, names: str) -> None:
    """However often it is asked for, and beside `time`."""
    header = call("sweep", "--select", names).out.splitlines()[0].split(",")
    assert len(header) == len(set(header))
    assert names != "batch,time" or header == ["batch", "total_s"]

"""`calibrate --collectives`, as far as it goes without GPUs: over gloo between two processes, by the host's clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decodecalc.cost.collectives import COLLECTIVES, load_collectives

SCRIPT = """
import sys
from decodecalc.calibrate.collectives import file_content, measure_collectives
from decodecalc.cost.collectives import save_collectives
from decodecalc.gpus import load_gpu
from decodecalc.verify.dcp.group import ProcessRanks
from decodecalc.verify.run.device import open_device
from decodecalc.verify.session.ranks import Ranks

ranks, device = Ranks.from_environment(), open_device("interpreter")
group = ProcessRanks(ranks, device)
rows = measure_collectives(group, device, sizes=(512, 8192), calls=3)
if ranks.is_first:
    save_collectives(sys.argv[1], file_content(rows, [], device, load_gpu("h200")))
group.close()
"""


@pytest.mark.slow
@pytest.mark.interpreter
def test_two_processes_write_a_file_that_predictions_read(tmp_path: Path) -> None:
    """Every kind and size has a time, and the file loads."""
    script, out = tmp_path / "measure.py", tmp_path / "times.json"
    script.write_text(SCRIPT, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        [*torchrun, str(script), str(out)], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert found.returncode == 0, found.stderr[-4000:]
    times = load_collectives(out)
    assert times.ranks == 2
    assert {kind: len(points) for kind, points in times.points.items()} == dict.fromkeys(COLLECTIVES, 2)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert all(row["seconds"] > 0 for row in rows)
    assert {row["buffer_bytes"] for row in rows} == {512, 8192}


def test_one_process_is_told_how_to_start(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be measured between one GPU and itself."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    result = call("calibrate", "--collectives", "--output", str(tmp_path / "x.json"))
    assert result.code == 2
    assert "torchrun" in result.err

"""`verify` from the command line: what is missing, what would run, what is written, what goes on after Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

HAS_KERNELS = find_spec("torch") is not None and find_spec("triton") is not None
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="needs torch and triton (pip install 'decodecalc[verify]')")
TINY = ("verify", "--device", "interpreter", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "16",
        "--seq-lens", "40,9", "--engine", "flash-decoding", "--opt", "num_splits=3",
        "--opt", "tile_keys=16")  # fmt: skip


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Triton must not be loaded as a compiler before a test asks for the interpreter."""
    if "triton" not in sys.modules:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def has_gpu() -> bool:
    if not HAS_KERNELS:
        return False
    import torch

    return torch.cuda.is_available()


def test_without_a_gpu_it_says_what_is_missing_and_exits_3(call, monkeypatch):
    if has_gpu():
        pytest.skip("there is a GPU here")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    result = call("verify", "--model", "llama3-8b")
    assert result.code == 3
    assert result.out == ""
    assert "--dry-run" in result.err


def test_dry_run_shows_every_case_with_its_launch(call):
    result = call("verify", "--suite", "quick", "--gpu", "h200", "--dry-run")
    assert result.code == 0
    assert "would check 18 cases of 6 scenarios" in result.out
    assert "(20, 8, 16)" in result.out
    rows = call("verify", "--suite", "quick", "--gpu", "h200", "--dry-run", "--format", "json").rows
    assert {r["engine"] for r in rows} == {"bundled", "vllm-triton", "sglang-triton", "vllm-triton-mla"}


def test_dry_run_of_all_shards_is_the_whole(call):
    def ids(*more):
        rows = call("verify", "--suite", "standard", "--gpu", "h200", "--dry-run", "--format", "json", *more).rows
        return [(r["scenario"], r["engine"]) for r in rows]

    parts = [ids("--shard", f"{i}/3") for i in (1, 2, 3)]
    assert sorted(item for part in parts for item in part) == sorted(ids())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--suite", "quick", "--model", "llama3-8b"), "leave --model or --suite out"),
        (("--claims", "14"), "--claims"),
        (("--shard", "3/2"), "--shard"),
        (("--resume",), "--report"),
        (("--engine", "vllm-tritn"), "vllm-triton"),
        (("--against", "nowhere.json"), "cannot be read"),
        (("--suite", "quik"), "quik"),
        (("--opt", "bogus=1", "--dry-run"), "bogus"),
        (("--dry-run", "--format", "html"), "no HTML page"),
        (("--batch", "0"), "--batch"),
    ],
)
def test_bad_usage_exits_2_with_a_reason(call, arguments, message):
    result = call("verify", *arguments)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Files of one tiny run, made once."""
    if not HAS_KERNELS:
        pytest.skip("needs torch and triton")
    from decodecalc.cli.main import run

    folder = tmp_path_factory.mktemp("tiny")
    assert run([*TINY, "--report", str(folder / "v"), "-o", str(folder / "v.txt")]) == 0
    return folder


def test_a_run_in_the_interpreter_holds_and_writes_all_its_files(tiny):
    assert sorted(p.name for p in tiny.iterdir()) == ["v.html", "v.json", "v.md", "v.txt"]
    data = json.loads((tiny / "v.json").read_text())
    assert data["schema"] == "decodecalc/verify/1"
    assert data["summary"]["passed"]
    verdicts = {r["claim"]: r["verdict"] for r in data["rows"]}
    assert {n for n, v in verdicts.items() if v == "pass"} == {1, 3, 4, 7, 12, 13}
    assert {n for n, v in verdicts.items() if v == "skip"} == {2, 5, 6, 8, 9, 10, 11}
    for row in data["rows"]:
        assert {"predicted", "observed", "difference", "verdict", "how", "unit"} <= set(row)


def test_people_see_predicted_observed_difference_verdict_of_a_single_case(tiny):
    text = (tiny / "v.txt").read_text()
    assert "predicted" in text
    assert "key ranges that differ" in text
    assert "nothing failed" in text
    assert "## Claims" in (tiny / "v.md").read_text()


def test_the_page_is_self_contained_and_escapes_what_it_shows(tiny):
    page = (tiny / "v.html").read_text()
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert 'name="viewport"' in page
    assert "4 keys: pass" in page


@needs_kernels
def test_ctrl_c_keeps_what_was_finished_and_resume_goes_on(call, tmp_path, monkeypatch):
    from decodecalc.verify.run.runner import Runner

    base = str(tmp_path / "r")
    command = [*TINY, "--engine", "flash-decoding,flash-attention-2", "--claims", "3,4", "--report", base]
    real = Runner._case
    ran = []

    def stop_at_the_second(self, case, *more):
        ran.append(case.policy.name)
        if len(ran) == 2:
            raise KeyboardInterrupt
        real(self, case, *more)

    monkeypatch.setattr(Runner, "_case", stop_at_the_second)
    result = call(*command)
    assert result.code == 130
    assert f"{base} holds what was finished" in result.err
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["inputs"]["interrupted"]
    assert {r["engine"] for r in kept["rows"]} == {"flash-decoding"}
    result = call(*command, "--resume")
    assert result.code == 0
    assert ran == ["flash-decoding", "flash-attention-2", "flash-attention-2"]  # the first was not run again
    whole = json.loads((tmp_path / "r.json").read_text())
    assert {r["engine"] for r in whole["rows"]} == {"flash-decoding", "flash-attention-2"}
    assert not list(tmp_path.glob("*.partial.jsonl"))


@needs_kernels
def test_a_failed_check_exits_1_and_is_shown(call, monkeypatch):
    from decodecalc.verify.claims import exact as exact_claims
    from decodecalc.verify.claims.claim import Quantity, exact

    monkeypatch.setattr(exact_claims, "keys", lambda trial: exact(4, [Quantity("n", 1, 2)], "seen"))
    result = call(*TINY, "--claims", "4")
    assert result.code == 1
    assert "n: predicted 1, observed 2" in result.out
    assert "fail" in result.out


@needs_kernels
def test_against_shows_what_held_before_and_does_not_now(call, tiny, monkeypatch):
    from decodecalc.verify.claims import exact as exact_claims
    from decodecalc.verify.claims.claim import Quantity, exact

    same = call(*TINY, "--claims", "4", "--against", tiny / "v.json")
    assert same.code == 0
    assert "0 regressions" in same.out
    monkeypatch.setattr(exact_claims, "keys", lambda trial: exact(4, [Quantity("n", 1, 2)], "seen"))
    worse = call(*TINY, "--claims", "4", "--against", tiny / "v.json")
    assert worse.code == 1
    assert "1 regressions" in worse.out


@needs_kernels
@pytest.mark.slow
@pytest.mark.interpreter
def test_torchrun_deals_scenarios_over_ranks_and_rank_0_writes_one_report(tmp_path):
    base = tmp_path / "r"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python",
        sys.executable, "-m", "decodecalc", "verify", "--device", "interpreter", "--q-heads", "2", "--kv-heads", "1",
        "--head-dim", "16", "--batch", "1,2", "--context", "20", "--engine", "flash-decoding", "--claims", "3,4",
        "--report", str(base),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["inputs"]["ranks"] == 2
    assert [r["batch"] for r in data["rows"]] == [1, 1, 2, 2]
    assert data["summary"]["passed"]
    assert not list(tmp_path.glob("*.partial.jsonl"))

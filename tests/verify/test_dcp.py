"""Context parallelism proved in the interpreter: ranks in one process, and two processes of torchrun over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import decodecalc as dc
from benchmarks import context_parallel
from decodecalc.errors import InputError
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.verify.claims.claim import FAIL, PASS, SKIP
from decodecalc.verify.session.suites import cases, dcp_scenarios, tiny_dcp

pytestmark = pytest.mark.interpreter

SMALL = Gpu(name="four-sms", sm_count=4, hbm_bytes_per_s=1e12)


def _run(made: list[Any], claims: tuple[int, ...], group: Any = None) -> list[Any]:
    import torch

    from decodecalc.verify.dcp.group import SimulatedGroup
    from decodecalc.verify.dcp.loop import DcpRunner
    from decodecalc.verify.run.device import open_device

    device = open_device("cuda" if torch.cuda.is_available() else "interpreter")
    return list(DcpRunner(device, claims, group or SimulatedGroup).run(made, lambda case, finding: None))


@pytest.mark.parametrize("index", range(4))
def test_every_tiny_case_passes(index: int) -> None:
    """Merged outputs, live blocks and keys of every rank, and bits; the time is skipped with its reason."""
    (result,) = _run(cases([tiny_dcp(None)[index]], SMALL), (1, 3, 4, 10, 13))
    found = {finding.claim: finding for finding in result.findings}
    assert {n: f.verdict for n, f in found.items()} == {1: PASS, 3: PASS, 4: PASS, 10: SKIP, 13: PASS}, found
    assert len([q for q in found[1].quantities if q.predicted is not None]) == 3  # ways of merging
    assert found[4].quantities[0].observed == list(result.case.scenario.batch.seq_lens)


def test_a_wrong_weight_is_caught() -> None:
    """Outputs that are averaged instead of weighted are no attention."""
    from decodecalc.verify.dcp.group import SimulatedGroup

    class Averaging(SimulatedGroup):
        def merge(self, outs: Any, lses: Any, way: str) -> Any:
            return sum(outs) / len(outs)

    (result,) = _run(cases(tiny_dcp(None)[:1], SMALL), (1, 13), Averaging)
    assert [finding.verdict for finding in result.findings] == [FAIL, FAIL]


def test_a_key_on_the_wrong_rank_is_caught() -> None:
    """A rank that holds a key less than the plan says fails the claim on keys."""
    from decodecalc.verify.dcp import loop
    from decodecalc.verify.dcp.group import SimulatedGroup
    from decodecalc.verify.dcp.trial import DcpTrial
    from decodecalc.verify.run.device import open_device

    (case,) = cases(tiny_dcp(None)[:1], SMALL)
    trial = DcpTrial(case, SimulatedGroup(2), open_device("interpreter"), None, 0)
    inputs = trial.trials[1].inputs
    object.__setattr__(inputs, "batch", dc.Batch([inputs.batch.seq_lens[0] - 1, inputs.batch.seq_lens[1]]))
    assert loop.keys(trial).verdict == FAIL


def test_a_rank_has_its_keys_and_only_them() -> None:
    """Every key of the step is in the cache of its owner, at its place, and unowned slots are NaN."""
    import torch

    from decodecalc.keyshare import KeyShare
    from decodecalc.verify.dcp.local import local_inputs, slots_of
    from decodecalc.verify.run.inputs import make_inputs

    share, batch = KeyShare(3, 5), dc.Batch([37, 8])
    geo = dc.Geometry(6, 1, 16, share=share)
    whole = make_inputs(dc.Geometry(6, 1, 16), batch, dc.KvCache(page_size=4), "cpu")
    keys = whole.keys.flatten(1, 2)[0]
    for rank in range(3):
        mine = local_inputs(whole, geo, share, rank)
        local = mine.keys.flatten(1, 2)[0]
        for r, length in enumerate(batch.seq_lens):
            owned = [k for k in range(length) if share.owner(k) == rank]
            assert mine.batch.seq_lens[r] == len(owned)
            for key in owned:
                at = slots_of(mine, r, torch.tensor([share.place(key)]))
                assert torch.equal(local[at], keys[slots_of(whole, r, torch.tensor([key]))])
        assert int(local.isnan().any(-1).sum()) == len(local) - sum(mine.batch.seq_lens)


def test_the_suite_for_gpus_has_plans() -> None:
    """Every case divides its keys over the ranks that there are, for two and for eight."""
    for ranks in (2, 4, 8):
        made = cases(dcp_scenarios(None, ranks), dc.load_gpu("h200"))
        assert all(case.plan is not None for case in made), [case.refusal for case in made]
        assert {case.scenario.geometry.share.ranks for case in made} == {ranks}
        assert len({case.id for case in made}) == len(made)


def test_other_claims_are_refused() -> None:
    """Claims about one launch's residency say nothing here."""
    from decodecalc.verify.dcp.loop import dcp_claims

    assert dcp_claims("1,13") == (1, 13)
    with pytest.raises(InputError, match="divided"):
        dcp_claims("6")


@pytest.mark.slow
def test_two_processes_agree_with_one_gpu(tmp_path: Path) -> None:
    """torchrun starts two ranks; rank 0 reports that all claims hold."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("for CPUs: on GPUs the suite itself runs under torchrun")
    out = tmp_path / "report.json"
    words = ["verify", "--suite", "dcp", "--device", "interpreter", "--claims", "1,4,13", "-f", "json", "-o", str(out)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run(
        [*torchrun, "-m", "decodecalc", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 12
    assert {row["verdict"] for row in rows} == {PASS}
    assert "gloo between 2 processes" in rows[0]["how"]


def test_the_benchmark_asks_all_questions() -> None:
    """Contexts on both sides of every predicted break-even, and random steps that a seed fixes, each with a plan."""
    gpu = load_gpu("h200")
    found = context_parallel.all_cases(gpu, 3, 40, 2)
    assert found == context_parallel.all_cases(gpu, 3, 40, 2)
    assert [case.question for case in found].count(context_parallel.RANDOM) == 40
    even = [case for case in found if case.question == context_parallel.EVEN]
    assert {case.model for case in even} == {model for model, _ in context_parallel.MODELS}
    for case in even:
        assert case.plan(gpu).geometry.share == case.share
    rows = [{**case.to_dict(), "predicted": context_parallel.predicted(case, gpu)} for case in even[:5]]
    crossed = context_parallel.crossing(rows, "predicted")
    assert crossed == pytest.approx(even[2].context, rel=0.05)


def test_a_break_even_is_where_the_lines_cross() -> None:
    """Straight lines over the logarithm of the context; nothing outside of the contexts."""
    rows = [
        {"context": context, "measured": {"undivided": gain, "layer": 0.0}}
        for context, gain in ((1000, -2.0), (4000, 2.0), (16000, 5.0))
    ]
    assert context_parallel.crossing(rows, "measured") == pytest.approx(2000)
    assert context_parallel.crossing(rows[1:], "measured") is None


def test_the_benchmark_says_which_bars_are_met() -> None:
    """Times that agree meet the bars, and doubled ones miss them."""
    gpu = load_gpu("h200")
    for factor, word in ((1.0, "met"), (2.0, "missed")):
        rows: list[dict[str, Any]] = []
        for case in context_parallel.all_cases(gpu, 1, 8, 2):
            said = context_parallel.predicted(case, gpu)
            seen = {**said, "layer": factor * said["layer"], "kernel": said["layer"] - said["exchange"]}
            seen["one_shot"] = said["exchange"] / (3 / factor)
            rows.append({**case.to_dict(), "predicted": said, "measured": seen, "correct": True})
        lines = context_parallel.summary(rows)
        assert f"the bar is 10%: {word}" in lines[0]
        assert f"the bar is 2: {word}" in next(line for line in lines if line.startswith("One-shot"))
    assert "needs a GPU" in context_parallel.summary([{"correct": True}])[0]

"""The loop over engines' own kernels: what is not here is skipped with its reason, and traces are kept."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
from own_engine import CpuAsGpu, FakeEngine

from decodecalc import Batch, Geometry
from decodecalc.engines.registry import engine_names, load_policy
from decodecalc.errors import InputError
from decodecalc.verify.own.loop import OwnRunner, at_installed_versions, own_claims
from decodecalc.verify.own.runner import CannotRunError, FoundEngine, Here, KernelRunner, all_runners
from decodecalc.verify.report.summary import summarise
from decodecalc.verify.session.suites import Scenario, suite_scenarios


def findings(case, here):
    """What the loop says of one case on a machine with these runners."""
    runner = OwnRunner(CpuAsGpu("cuda", "cpu", "CPU as GPU"), (1, 2), here=here)
    (result,) = runner.run([case], lambda case, finding: None)
    return result.findings


def absent(found=None, prepare=None):
    """A runner whose engine may not be here."""
    runner = KernelRunner(engine="vllm-triton", calls="x", find=lambda: found, prepare=prepare)
    return {"vllm-triton": Here(runner=runner, found=found, reason="" if found else "not installed")}


def test_an_engine_that_is_not_here_is_skipped_with_the_reason(own_case):
    """So is one without a runner, and one of a version that the policy does not know."""
    case = own_case(load_policy("vllm-triton"))
    assert [f.verdict for f in findings(case, {})] == ["skip", "skip"]
    assert "no runner" in findings(case, {})[0].reason
    assert findings(case, absent())[0].reason == "not installed"
    unknown = FoundEngine(package="vllm", version="99.0", policy_version=None)
    assert "no version of our policy belongs to vllm 99.0" in findings(case, absent(unknown))[0].reason


@pytest.mark.interpreter
def test_a_step_that_the_runner_cannot_make_is_skipped_and_not_failed(own_case):
    """The reason stands in every claim of the case."""

    def prepare(step):
        raise CannotRunError("no drafts")

    found = FoundEngine(package="vllm", version="0.33.0", policy_version="0.33.0")
    got = findings(own_case(load_policy("vllm-triton")), absent(found, prepare))
    assert [(f.verdict, f.reason) for f in got] == [("skip", "no drafts")] * 2


@pytest.mark.interpreter
def test_traces_hold_the_kernels_and_what_the_step_was(own_case, own_check, tmp_path):
    """NAME.json.gz has the kernels' events alone; NAME.inputs.json the geometry, lengths, cache and changed options."""
    case = own_case(load_policy("flash-attention-3"), Geometry(8, 1, 64, window=64), Batch([300]), num_splits_arg=2)
    own_check(case, FakeEngine(case.plan), claims=(2,), trace_folder=str(tmp_path))
    (trace,) = tmp_path.glob("*.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {e["cat"] for e in events} == {"kernel"}
    inputs = json.loads(next(tmp_path.glob("*.inputs.json")).read_text())
    assert inputs["lens"] == [300]
    assert (inputs["h"], inputs["window"], inputs["options"]) == (8, 64, {"num_splits_arg": 2})
    assert inputs["policy"] == "flash-attention-3@vllm-0.33"


def test_claims_that_need_the_bundled_kernel_are_refused_in_words():
    """Only four claims can be held against an engine's own kernel."""
    assert own_claims(None) == (1, 2, 10, 11)
    assert own_claims("grid") == (2,)
    with pytest.raises(InputError, match="claim 4 needs the bundled kernel"):
        own_claims("1,4")


def test_engines_are_planned_at_the_version_that_is_installed():
    """An asked version stays; an engine that is not here stays at its newest."""
    (scenario,) = suite_scenarios("engines", ["vllm-triton"])[:1]
    here = absent(FoundEngine(package="vllm", version="0.32.0", policy_version="0.32.0"))
    asked = replace(scenario, engines=("vllm-triton", "vllm-triton@0.31.0", "sglang-triton"))
    (found,) = at_installed_versions([asked], here)
    assert found.engines == ("vllm-triton@0.32.0", "vllm-triton@0.31.0", "sglang-triton")


def test_every_runner_is_of_a_registered_engine_and_has_steps():
    """The suite of own kernels has scenarios for each, whose names differ."""
    names = [runner.engine for runner in all_runners()]
    assert set(names) <= set(engine_names())
    assert len(set(names)) == len(names)
    scenarios: list[Scenario] = suite_scenarios("engines")
    assert {name for s in scenarios for name in s.engines} == set(names)
    ids = [f"{s.id}/{s.engines}" for s in scenarios]
    assert len(set(ids)) == len(ids)


def test_times_outside_their_intervals_fail_the_run():
    """Of twenty times, three outside are within what 90 % intervals allow, six are not."""

    def rows(outside):
        base = {"claim": 10, "scenario": "s", "engine": "e", "kv_read_bytes": 1, "observed": 1.0, "quantities": []}
        total = {"quantities": [{"name": "total", "predicted": 1.0, "observed": 1.0}]}
        return [
            {
                **base,
                **total,
                "case": str(i),
                "verdict": "off" if i < outside else "pass",
                "inside_interval": i >= outside,
            }
            for i in range(20)
        ]

    assert summarise(rows(3)).passed
    assert "70% of 20 times inside" in summarise(rows(6)).why


@pytest.mark.interpreter
def test_the_report_of_own_kernels_has_rows_and_pages_like_any_other(own_case, own_check, tmp_path):
    """The command's own writer takes the rows: JSON, a page in Markdown and HTML, and pictures."""
    from decodecalc.cli.verify import write_report
    from decodecalc.verify.report.files import make_report, read_report
    from decodecalc.verify.report.summary import rows_of
    from decodecalc.verify.run.runner import Result

    case = own_case(load_policy("flash-attention-3"), Geometry(8, 1, 64), Batch([2048]))
    engine = FakeEngine(case.plan, setting="num_splits_arg")
    found = own_check(case, engine)
    rows = rows_of(Result(case, tuple(found.values()), "own kernel"))
    report = make_report({"device": "fake", "kernel": "own", "claims": [1, 2, 10, 11]}, rows)
    base = str(tmp_path / "own")
    write_report(report, base, "table", str(tmp_path / "out.txt"))
    assert [r["claim"] for r in read_report(f"{base}.json").rows] == [1, 2, 10, 11]
    assert "flash-attention-3" in (tmp_path / "own.md").read_text()
    assert (tmp_path / "own.html").exists()

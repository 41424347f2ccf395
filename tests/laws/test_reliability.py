"""One law for every attack on reliability that got through, by its number (1 to 19)."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import decodecalc as dc
from decodecalc.engines import load_policy
from decodecalc.launch.arrays import Launches
from decodecalc.models import LayerGroup
from decodecalc.verify.session.suites import Scenario, cases

TESTS = Path(__file__).parents[1]
ELSEWHERE = {
    1: [
        "verify/test_summary.py::test_nothing_checked_is_no_success",
        "verify/test_summary.py::test_a_run_of_skipped_checks_proves_nothing_and_fails",
        "verify/test_summary.py::test_all_hold_is_not_said_beside_what_is_off_or_skipped",
    ],
    2: [
        "verify/test_summary.py::test_a_check_that_held_and_does_not_any_more_is_a_regression",
        "verify/test_summary.py::test_a_case_that_is_gone_is_a_regression_unless_this_is_a_shard",
        "verify/test_summary.py::test_a_choice_of_splits_that_is_off_everywhere_fails",
    ],
    4: [
        "sweeps/test_safety.py::test_a_resume_of_another_sweep_or_shard_is_refused",
        "sweeps/test_safety.py::test_a_model_file_that_changed_is_another_sweep",
        "sweeps/test_safety.py::test_rows_that_became_fewer_are_not_continued",
        "sweeps/test_safety.py::test_parquet_parts_of_a_shard_and_the_whole_do_not_meet_in_one_folder",
    ],
    5: [
        "sweeps/test_safety.py::test_two_sweeps_do_not_write_one_file_at_a_time",
        "verify/test_reports.py::test_two_runs_do_not_keep_one_journal_at_a_time",
    ],
    7: ["golden/test_flashinfer.py::", "verify/own/", "verify/test_reports.py::test_a_report_says_what_it_proves"],
    8: [
        "trace/test_limits.py::test_what_no_profile_holds_is_refused_before_it_is_built",
        "trace/test_limits.py::test_verdicts_on_names_are_bounded_by_bytes",
        "trace/test_limits.py::test_a_view_is_no_table",
    ],
    9: [
        "core/test_files.py::test_a_pipe_that_nobody_writes_is_refused_at_once",
        "verify/test_report_rows.py::test_a_shard_of_absurd_size_is_refused",
    ],
    10: ["core/test_files.py::test_half_characters_of_a_name_are_written_as_escapes", "cli/test_surroundings.py::"],
    11: ["cost/test_calibration.py::"],
    12: ["core/test_sizes.py::test_too_much_is_refused_with_the_number_at_once"],
    13: [
        "sweeps/test_safety.py::test_a_filter_that_cannot_be_is_refused",
        "sweeps/test_safety.py::test_no_comparison_with_a_missing_value_holds",
    ],
    14: [
        "core/test_files.py::test_a_full_device_is_named_as_full",
        "sweeps/test_safety.py::test_a_damaged_note_is_named",
    ],
    16: [
        "core/test_files.py::test_a_symbolic_link_stays_a_link_and_its_target_is_written",
        "core/test_files.py::test_a_device_is_written_and_stays_a_device",
        "core/test_files.py::test_a_mode_is_kept_and_a_new_file_follows_the_umask",
    ],
    17: [
        "sweeps/test_safety.py::test_a_sweep_that_fails_leaves_an_earlier_result_as_it_was",
        "sweeps/test_safety.py::test_a_sweep_that_nothing_runs_prints_no_header",
    ],
    18: [
        "sweeps/test_safety.py::test_an_interrupted_parquet_sweep_has_what_was_finished",
        "cli/test_surroundings.py::test_a_later_file_that_cannot_be_written_leaves_the_earlier_one_unwritten",
    ],
    19: [
        "core/test_safetext.py::test_no_form_of_a_table_hands_on_what_a_name_carries",
        "core/test_safetext.py::test_a_formula_is_a_word_in_csv",
    ],
}


def test_every_number_has_a_law() -> None:
    """Every number is in `ELSEWHERE`, whose tests exist, or in the name of a test here."""
    here = {int(number) for number in re.findall(r"def test_(\d+)_", Path(__file__).read_text("utf-8"))}
    assert here | set(ELSEWHERE) == set(range(1, 20))
    for places in ELSEWHERE.values():
        for place in places:
            file, _, name = place.partition("::")
            assert (TESTS / file).exists(), place
            assert not name or f"def {name}" in (TESTS / file).read_text("utf-8"), place


@pytest.mark.interpreter
@pytest.mark.parametrize(
    "arguments",
    [
        ("--kv-dtype", "fp16", "--seq-lens", "20,70", "--claims", "1"),
        ("--kv-dtype", "fp32", "--seq-lens", "20,70", "--claims", "1"),
        ("--engine", "flex-decoding", "--seq-lens", "17,65,200", "--claims", "3"),
        ("--engine", "paged-attention-v1", "--window", "32", "--seq-lens", "20,70", "--claims", "4"),
    ],
)
def test_3_what_is_right_does_not_fail(call: Any, arguments: tuple[str, ...]) -> None:
    """3. The bound follows the output's type too, and blocks that mask whole blocks of keys are no early exits."""
    layer = ("--q-heads", "2", "--kv-heads", "1", "--head-dim", "16", "--page-size", "16")
    assert call("verify", "--device", "interpreter", *layer, *arguments).code == 0


@pytest.mark.interpreter
def test_7_a_merge_that_stops_after_its_first_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """7. A merge takes several steps in the interpreter, small as its cases are: losing the later ones shows."""
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("the kernels are compiled where there is a GPU, and the interpreter is not used")
    from decodecalc.verify.run.device import open_device
    from decodecalc.verify.run.runner import INTERPRETER_MERGE_SPLITS, Runner

    step = Scenario("s", LayerGroup("all", 1, dc.Geometry(2, 1, 32)), dc.Batch([75]), dc.KvCache(), ("vllm-triton",))
    (case,) = cases([step], dc.load_gpu("h100"))
    assert case.plan is not None
    assert max(case.plan.splits.live) > 2 * INTERPRETER_MERGE_SPLITS

    def verdicts() -> list[str]:
        runner = Runner(open_device("interpreter", 0, ""), (1,))
        return [f.verdict for result in runner.run([case], lambda *_: None) for f in result.findings]

    assert verdicts() == ["pass"]
    merge = importlib.import_module("decodecalc_kernels.merge")
    monkeypatch.setattr(merge, "live_splits", lambda keys, split_keys: INTERPRETER_MERGE_SPLITS)
    assert verdicts() == ["fail"]


@pytest.mark.parametrize("version", [version.name for version in load_policy("flashmla").versions])
@pytest.mark.parametrize("heads", [1, 4, 16, 100, 128])
@pytest.mark.parametrize("q_len", [1, 2, 3])
def test_6_a_merge_has_no_more_blocks_at_work_than_it_launches(version: str, heads: int, q_len: int) -> None:
    """6. Whatever axes a version's combine grid has."""
    layer, kv = dc.Geometry(heads, 1, 576, 512, mla=True), dc.KvCache(page_size=64)
    for lens in ([4000, 70], [100], [131072], [64] * 40):
        plan = dc.plan(f"flashmla@{version}", layer, dc.Batch([max(n, q_len) for n in lens], q_len), kv=kv, gpu="h100")
        for kernel in plan.kernels:
            assert 0 <= kernel.live_blocks <= kernel.launched_blocks


def test_15_one_inconsistent_plan_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """15. The case is an error of its own; the other engines of the scenario are still planned."""
    real = Launches.check

    def check(self: Launches, batches: Any) -> None:
        if self.kernels[0].name == "kernel_unified_attention":
            raise AssertionError("planted")
        real(self, batches)

    monkeypatch.setattr(Launches, "check", check)
    layers = dc.load_model("llama3-8b").shard(tp=1).layer_groups[0]
    scenario = Scenario("s", layers, dc.Batch([100]), dc.KvCache(), ("vllm-triton", "flash-decoding"))
    broken, good = cases([scenario], dc.load_gpu("h100"))
    assert broken.plan is None
    assert broken.is_broken
    assert "planted" in broken.refusal
    assert good.plan is not None


@pytest.mark.parametrize(
    "argv",
    [("grid", "-o"), ("grid", "--html"), ("sweep", "-o"), ("plot", "waves", "-o"), ("verify", "--dry-run", "-o")],
)
def test_19_the_name_of_a_written_file_does_not_steer_the_terminal(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    """19. What is said of an output shows its escapes and direction marks as text."""
    monkeypatch.chdir(tmp_path)
    ending = "html" if "--html" in argv else "png" if "plot" in argv else "csv"
    name = f"a\x1b[2J\u202e.{ending}"
    result = call(*argv, name)
    assert result.code == 0, result.err
    assert (tmp_path / name).exists()
    assert "\x1b" not in result.out + result.err
    assert "\u202e" not in result.out + result.err
    assert r"a\x1b[2J" in result.err


@pytest.mark.parametrize("command", [("verify", "--device", "interpreter"), ("report", "merge", "r.json")])
def test_16_a_report_is_not_written_under_no_name(call: Any, tmp_path: Path, command: tuple[str, ...]) -> None:
    """16. A folder is no beginning of file names: hidden files would lie in it."""
    from decodecalc.verify.report.files import make_report

    row = {"case": "c", "claim": 3, "verdict": "pass", "scenario": "s", "engine": "e", "reason": "", "quantities": []}
    (tmp_path / "r.json").write_text(make_report({"device": "x"}, [row]).to_json(), "utf-8")
    result = call(*(str(tmp_path / word) if word == "r.json" else word for word in command), "--report", f"{tmp_path}/")
    assert result.code == 2
    assert "beginning of the files' names" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("command", ["grid", "predict", "choose", "step", "explain"])
def test_12_a_table_that_takes_minutes_is_refused_before_it_is_planned(call: Any, command: str) -> None:
    """Thousands of plans are the work of `sweep`; how many were asked for is counted without one."""
    result = call(command, "--model", "llama3-8b", "--context", "1:9999:1", "--engine", "turbomind")
    assert result.code == 2
    assert "9999 plans" in result.err
    assert "decodecalc sweep" in result.err


def test_10_digits_without_end_are_a_version_like_any_other() -> None:
    """A version is ordered by its numbers, however many digits they have and whatever script they are written in."""
    options = {"backend": "auto", "cudnn_frontend": "9" * 5000 + ".1\u00b2"}
    plan = dc.plan("flashinfer", dc.Geometry(32, 8, 128), dc.Batch.uniform(4, 4096), gpu="h200", **options)
    assert plan.engine == "flashinfer"

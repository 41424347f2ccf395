"""Whole cases, on the GPU where there is one, else in Triton's interpreter. A wrong policy is caught by its claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decodecalc import Batch, Geometry, KvCache, load_gpu
from decodecalc.engines.textbook.flash_decoding import FlashDecoding
from decodecalc.gpus import Gpu
from decodecalc.launch.arrays import Launches

pytestmark = pytest.mark.interpreter

GEO = Geometry(2, 1, 16)
BATCH = Batch([45, 20])
SMALL = Gpu(name="four-sms", sm_count=4, hbm_bytes_per_s=1e12)
SPLIT = {"tile_keys": 16, "num_splits": 3}


def test_a_right_policy_passes_every_claim(make_case, check):
    found = check(make_case(FlashDecoding(), GEO, BATCH, SMALL, **SPLIT), (1, 3, 4, 7, 12, 13))
    assert {n: f.verdict for n, f in found.items()} == dict.fromkeys((1, 3, 4, 7, 12, 13), "pass")
    assert found[4].quantities[1].observed == 5  # 45 keys in 3 splits of 16, 20 in 2
    assert found[7].quantities[0].observed == 5 * 2


def test_a_ragged_step_of_the_bundled_kernel_has_the_blocks_of_its_list(make_case, check):
    """Every launched block works, and each walks the keys that the plan gives it."""
    from decodecalc.cost.bundled import POLICY

    found = check(make_case(POLICY, GEO, Batch([90, 33, 70]), SMALL, split_keys=32, tile_keys=16), (1, 3, 4, 7, 12, 13))
    assert {n: f.verdict for n, f in found.items()} == dict.fromkeys((1, 3, 4, 7, 12, 13), "pass")
    assert [q.observed for q in found[3].quantities[:3]] == [3 + 2 + 3, 0, 3 + 2 + 3]


def test_claims_that_need_a_gpu_are_skipped_with_the_reason_off_one(make_case, check):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    found = check(make_case(FlashDecoding(), GEO, BATCH, SMALL, **SPLIT), (2, 5, 10))
    assert all(f.verdict == "skip" and "CUDA" in f.reason for f in found.values())


class Altered(FlashDecoding):
    """FlashDecoding with something changed in what it says it launches."""

    def __init__(self, **changes):
        self._changes = changes

    def launches(self, geo, batches, kv, gpu, options, version):
        found = super().launches(geo, batches, kv, gpu, options, version)
        return replace(found, **{name: change(found) for name, change in self._changes.items()})


def test_splits_of_the_wrong_length_are_caught_by_the_key_ranges(make_case, check):
    wrong = Altered(split_keys=lambda f: f.split_keys + 1)
    found = check(make_case(wrong, GEO, BATCH, SMALL, **SPLIT), (1, 4))
    assert found[1].verdict == "pass"  # the kernel is right, the policy is not
    assert found[4].verdict == "fail"
    assert "predicted (0, 17), observed (0, 16)" in found[4].reason


def test_a_split_too_many_is_caught_by_live_blocks_and_partial_states(make_case, check, monkeypatch):
    """Live blocks, keys and partial states each show a split that has nothing to read."""
    monkeypatch.setattr(Launches, "check", lambda self, batches: None)  # planning would refuse this plan itself
    wrong = Altered(live=lambda f: np.full_like(f.live, 3))
    found = check(make_case(wrong, GEO, BATCH, SMALL, **SPLIT), (3, 4, 7))
    assert [found[n].verdict for n in (3, 4, 7)] == ["fail", "fail", "fail"]
    assert found[3].reason.startswith("live splits") or "live" in found[3].reason
    assert "rows written: predicted 12, observed 10" in found[7].reason


def test_a_promise_of_reproducibility_that_does_not_hold_is_caught_by_the_bits(make_case, check):
    geometry, batch = Geometry(2, 1, 16), Batch([256, 256, 256, 256])  # alone: 4 splits of 64; together: 1
    honest = make_case(FlashDecoding(), geometry, batch, SMALL)
    assert check(honest, (13,))[13].verdict == "pass"
    liar = make_case(Altered(determinism=lambda f: "invariant"), geometry, batch, SMALL)
    found = check(liar, (13,))[13]
    assert found.verdict == "fail"
    assert "alike" in found.reason or "bits differ" in found.reason


def test_what_breaks_in_one_claim_leaves_the_others_running(make_case, check, monkeypatch):
    torch = pytest.importorskip("torch")
    from decodecalc.verify.claims import exact as exact_claims

    def broken(trial):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(exact_claims, "live", broken)
    found = check(make_case(FlashDecoding(), GEO, BATCH, SMALL, **SPLIT), (3, 4))
    assert found[3].verdict == "error"
    assert "out of memory" in found[3].reason
    assert found[4].verdict == "pass"


def test_tensors_that_do_not_fit_leave_a_row_each_and_the_next_case_runs(make_case, monkeypatch):
    from decodecalc.verify.run import inputs
    from decodecalc.verify.run.device import open_device
    from decodecalc.verify.run.runner import Runner

    real = inputs.make_inputs

    def picky(geo, batch, *more):
        if batch.size > 2:
            raise MemoryError("no room")
        return real(geo, batch, *more)

    monkeypatch.setattr(inputs, "make_inputs", picky)
    cases = [make_case(FlashDecoding(), GEO, Batch([9] * n), SMALL) for n in (3, 1)]
    import torch

    device = open_device("cuda" if torch.cuda.is_available() else "interpreter")
    first, second = Runner(device, (3, 4)).run(cases, lambda case, finding: None)
    assert [f.verdict for f in first.findings] == ["error", "error"]
    assert [f.verdict for f in second.findings] == ["pass", "pass"]


def test_a_lost_device_ends_the_checks_but_not_the_report(make_case, monkeypatch):
    import torch

    from decodecalc.verify.claims import exact as exact_claims
    from decodecalc.verify.run.device import Device, open_device
    from decodecalc.verify.run.runner import Runner

    def gone(trial):
        raise RuntimeError("CUDA error: unspecified launch failure\nmore")

    monkeypatch.setattr(exact_claims, "live", gone)
    monkeypatch.setattr(Device, "alive", lambda self: False)
    device = open_device("cuda" if torch.cuda.is_available() else "interpreter")
    cases = [make_case(FlashDecoding(), GEO, Batch([9] * n), SMALL) for n in (1, 2)]
    results = list(Runner(device, (3, 4)).run(cases, lambda case, finding: None))
    assert [[f.verdict for f in r.findings] for r in results] == [["error", "error"], ["error", "error"]]
    assert "stopped answering after RuntimeError: CUDA error" in results[1].findings[0].reason


def test_a_wrong_output_keeps_later_measurements_from_meaning_anything(make_case, check, monkeypatch):
    from decodecalc.verify.claims import exact as exact_claims
    from decodecalc.verify.claims.claim import Finding

    monkeypatch.setattr(exact_claims, "correct", lambda trial: Finding(1, "fail", reason="off"))
    found = check(make_case(FlashDecoding(), GEO, BATCH, SMALL, **SPLIT), (1, 4, 12))
    assert found[4].verdict == "pass"
    assert found[12].verdict == "skip"


def test_what_the_interpreter_cannot_finish_in_time_is_skipped(make_case, check):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    big = make_case(FlashDecoding(), Geometry(32, 8, 128), Batch.uniform(64, 8192), load_gpu("h200"), KvCache())
    assert "too large for the interpreter" in check(big, (1,))[1].reason


def test_a_kernel_that_forgets_a_state_is_caught(make_case, check, monkeypatch):
    """The observation is not an echo of the plan: break the launch and the same plan fails."""
    from decodecalc.verify.run.trial import Trial

    real = Trial.launch

    def forgetful(self, config=None, layer=0, **more):
        out = real(self, config, layer, **more)
        if more.get("run") == "stage1":
            more["workspace"].max[0, 0, 1] = float("nan")
            more["workspace"].sum[0, 0, 1] = float("nan")
            more["workspace"].out[0, 0, 1] = float("nan")
        return out

    monkeypatch.setattr(Trial, "launch", forgetful)
    found = check(make_case(FlashDecoding(), GEO, BATCH, SMALL, **SPLIT), (7,))[7]
    assert found.verdict == "fail"
    assert "rows written: predicted 10, observed 9" in found.reason

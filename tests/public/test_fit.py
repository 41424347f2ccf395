"""The fit of public timings: it finds known numbers again, keeps to its bounds, and never sees what is held out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.public.calibrations import calibration_of
from benchmarks.public.fit import fit
from benchmarks.public.judge import Judged, moved, summary
from benchmarks.public.physics import OF_TABLE, OF_VARIANT, bounds, operation_s, operation_times
from benchmarks.public.rows import HELD_OUT_CONTEXTS, HELD_OUT_FAMILIES, Rows, plan_table
from benchmarks.public.table_fit import Kernel, TableFit, fit_table, kernels_of, sampled, with_known_start
from benchmarks.public.tables import TABLES, Table
from decodecalc.cost.calibration import parse_calibration
from decodecalc.cost.rates import make_rates
from decodecalc.cost.variants import Resolved
from decodecalc.gpus import Gpu, load_gpu

GPU = "l40s"
FA2 = next(table for table in TABLES if table.policy == "flash-attention-2")
HBM = 0.75e12
TRUE = {
    "operation_s": 3e-6, "copy_s": 1e-6, "gather_s": 3e-6, "moved_bytes_per_s": 2e12, "merge_s": 3e-6,
    "merge_state_s": 1e-7, "merge_row_s": 2e-10, "merge_each_s": 1e-10, "exponent": 3.0,
    "l2_bytes_per_s": 5e12, "l2_share": 0.8, "hbm_bytes_per_s": HBM,
    "start_s": 2.5e-6, "start_full_s": 1.5e-6, "refill_s": 2e-6, "row_s": 2e-8, "tile_s": 3e-7, "miss_s": 4e-7,
    "block_bytes_per_s": 25e9, "sm_bytes_per_s": 40e9,
}  # fmt: skip


def published(heads: tuple[tuple[int, int], ...] = ((8, 1), (16, 2), (32, 8), (12, 12))) -> dict[str, Any]:
    """Columns of a table as the package publishes it, without times."""
    cells = [
        (q, k, batch, 2**e - 1) for q, k in heads for batch in (1, 2, 4, 16, 64, 256) for e in range(1, 15)
    ]  # fmt: skip
    q, k, batch, step = (np.array(x, dtype=np.int64) for x in zip(*cells))
    return {
        "num_heads": q,
        "num_key_value_heads": k,
        "batch_size": batch,
        "step": step,
        "head_dim": np.full_like(q, 128),
        "window_size": np.zeros_like(q),
        "kv_cache_dtype": np.array(["bfloat16"] * len(q), dtype=object),
        "latency": np.ones(len(q)),
    }


def timed(gpu: Gpu, table: Table = FA2, values: dict[str, float] = TRUE) -> Rows:
    """Rows whose measured time is what the physics says for known numbers."""
    ((_, rows, _),) = plan_table(published(), table, gpu)
    assert rows is not None
    for _, at in kernels_of(rows):
        rows.measured_s[at] = operation_times(rows.take(at), gpu, 1, values)
    return rows


def test_a_fit_finds_the_numbers_that_made_the_times() -> None:
    """Times made from known numbers are predicted to 2 %, held-out ones included, from rows that are not held out."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    found = fit_table(rows, gpu, FA2, HBM)
    judged = Judged.of(found, rows, gpu)
    assert summary(judged.error)["mean"] < 0.02
    assert judged.held_out()["mean"] < 0.02


def test_held_out_rows_are_never_looked_at() -> None:
    """Nonsense in every held-out row leaves the fit as it is."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    first = fit_table(rows, gpu, FA2, HBM)
    rows.measured_s[rows.held_out] *= 1000
    assert fit_table(rows, gpu, FA2, HBM) == first
    assert 0 < rows.held_out.sum() < len(rows.held_out)


def test_families_and_contexts_are_held_out_whole() -> None:
    """A row is held out exactly when its family or its context is."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    c = rows.columns
    family = [(k, d) in HELD_OUT_FAMILIES for k, d in zip(c["kv_heads"].tolist(), c["head_dim"].tolist())]
    assert (rows.held_out == np.array(family) | np.isin(c["context"], HELD_OUT_CONTEXTS)).all()
    assert not sampled(rows, np.arange(len(rows.measured_s)), 50).held_out.any()


def test_a_fit_stays_within_its_bounds() -> None:
    """Times that no physics explains push numbers to their bounds and not beyond them."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    rows.measured_s[:] = rows.measured_s / 50
    found = fit_table(rows, gpu, FA2, HBM)
    of_table, of_variant = (np.exp(x) for x in bounds(gpu))
    for names, limits, values in (
        (OF_TABLE, of_table, [found.shared]),
        (OF_VARIANT, of_variant, [k.values for k in found.kernels.values()]),
    ):
        for name, (_, low, high) in zip(names, limits):
            assert all(low * (1 - 1e-9) <= v[name] <= high * (1 + 1e-9) for v in values), name
    assert of_variant[OF_VARIANT.index("sm_bytes_per_s"), 2] <= 64 * gpu.need("boost_clock_hz") * (1 + 1e-9)


def test_the_optimiser_solves_a_line() -> None:
    """Two groups that share a factor and have one each: y = a b_i x."""
    x = np.linspace(1, 2, 20)

    def predict(shared: Any, own: Any) -> Any:
        return np.exp(shared[0] + own[0]) * x

    start = np.log([[1.0, 0.01, 100.0]])
    _, own, cost = fit([(predict, np.log(6 * x)), (predict, np.log(2 * x))], start, [start, start])
    assert np.exp(own[0][0] - own[1][0]) == pytest.approx(3, rel=0.01)
    assert cost < 0.02


def test_a_calibration_file_holds_the_latencies_that_were_fitted() -> None:
    """The time model gets back from the file's tile times what the physics put in, cold, without the operation."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    found = fit_table(rows, gpu, FA2, HBM)
    known = parse_calibration(calibration_of(gpu, [(found, 0.05)]).to_dict())
    for variant, values in known.variants.items():
        kernel = found.kernels[0, variant.head_dim, variant.head_dim_v, variant.tile_keys, variant.rows]
        rates, _ = make_rates(known, gpu, Resolved(variant, variant, values, True))
        size = variant.tile_keys * (variant.head_dim + variant.head_dim_v) * 2
        own = kernel.values
        alone = own["tile_s"] + own["miss_s"] + size / own["block_bytes_per_s"]
        assert rates.latency_s[0] == pytest.approx(max(alone, size / own["sm_bytes_per_s"]), rel=0.01)
        assert rates.half_width == 0.05
        assert {p.provenance for p in values.values()} == {"fitted to public timings"}


def test_the_operation_constant_is_no_part_of_the_kernel() -> None:
    """The same kernel in an operation that takes 10 µs longer: only the operation's part grows."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    slow = {**TRUE, "operation_s": TRUE["operation_s"] + 1e-5}
    kernels = [timed(gpu, values=v).measured_s - operation_s(rows, v) for v in (TRUE, slow)]
    assert kernels[0] == pytest.approx(kernels[1], rel=1e-9)


def test_a_known_start_is_taken_from_the_operation_s_constant() -> None:
    """The operation takes as long as before, the kernel alone longer, and the constant never falls to nothing."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    table = replace(FA2, policy="flash-attention-3")
    values = {name: TRUE[name] for name in OF_VARIANT}
    kernels = {key: Kernel(slots_per_sm=1, values=values, rows=len(at)) for key, at in kernels_of(rows)}
    for constant, more in ((9e-6, 4e-6), (1e-6, 5e-7), (3e-7, 0.0)):
        shared = {**TRUE, "operation_s": constant}
        before = TableFit(gpu=GPU, table=table, dtype="bf16", shared=shared, kernels=kernels)
        after = with_known_start(before)
        assert after.predict(rows, gpu) == pytest.approx(before.predict(rows, gpu))
        assert after.shared["operation_s"] == pytest.approx(constant - more)
        for kernel in after.kernels.values():
            assert kernel.values["start_s"] == pytest.approx(TRUE["start_s"] + more)


def test_a_sample_meets_every_batch_and_length() -> None:
    """Rows are scattered: of a regular grid every batch and context that is not held out is sampled."""
    rows = timed(load_gpu(GPU))
    kept = sampled(rows, np.arange(len(rows.measured_s)), 100)
    free = ~rows.held_out
    assert len(kept.measured_s) == 100
    for name in ("batch", "context", "q_heads"):
        assert set(kept.columns[name].tolist()) == set(rows.columns[name][free].tolist())


def test_only_small_groups_go_to_trtllm_gen() -> None:
    """TensorRT-LLM's rows on Blackwell are shared out between trtllm-gen and MMHA by query heads of a KV head, none
    twice."""
    gpu = load_gpu("b200-sxm")
    tables = [t for t in TABLES if t.framework == "trtllm" and t.kind == "attention" and gpu.sm in t.sms]
    groups = {}
    for table in tables:
        ((_, rows, _),) = plan_table(published(((8, 1), (32, 1), (64, 1), (96, 2), (8, 8))), table, gpu)
        assert rows is not None
        groups[table.policy] = set((rows.columns["q_heads"] // rows.columns["kv_heads"]).tolist())
    assert groups == {"trtllm-gen": {8, 32, 1}, "tensorrt-llm-mmha": {64, 48}}


def test_moving_a_fit_to_its_own_gpu_changes_nothing() -> None:
    """All ratios are one."""
    gpu = load_gpu(GPU)
    rows = timed(gpu)
    found = fit_table(rows, gpu, FA2, HBM)
    assert moved(found, gpu).predict(rows, gpu) == pytest.approx(found.predict(rows, gpu))

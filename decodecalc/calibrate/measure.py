"""`calibrate`: measures every parameter of the time model by its own microbenchmark on the GPU of this machine.

The measured variants are the tunings that the bundled launcher uses, for each element type and head width of `SHAPES`.
Finished parts are kept in a journal next to the output, so that an interrupted run continues where it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodecalc.cost.calibration import SCHEMA, Calibration, parse_calibration
from decodecalc.cost.own_launch import WARP_GROUP_CAPABILITY, in_warp_groups
from decodecalc.cost.parameters import VARIANT, Variant
from decodecalc.cost.variants import BUNDLED, SPLIT, UNSPLIT, tile_bytes
from decodecalc.errors import InputError
from decodecalc.files import read_json, write_whole
from decodecalc.intmath import next_power_of_2

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.verify.run.device import Device

JOURNAL_SCHEMA = "decodecalc/calibration-journal/1"
MAX_JOURNAL_BYTES = 64 << 20
PROTOCOL = (
    "CUDA graphs of 12 to 512 calls, each a layer with its own KV of a pool of 3 GiB and all on one page table, "
    "replayed back to back, median of 5 groups; four KV heads (MLA: one), pages of 16 keys (MLA: 64) in random "
    "order, random data; decodecalc/calibrate/microbench.py, derive.py"
)
# Where no calibration measured it better, 90 % of unseen cells stay within this relative error: see
# `reports/h200/accuracy.md`.
DEFAULT_RESIDUAL = 0.12
MLA_VALUE_DIM = 512
KV_HEADS = 4  # of the probes
MOST_SLOTS = 8  # blocks an SM that are compiled for


@dataclass(frozen=True)
class Shape:
    """Tunings (tile, warps, stages) of one element type and width. rows: query rows that a block computes on."""

    dtype: str
    head_dim: int
    head_dim_v: int
    rows: int
    tunings: tuple[tuple[int, int, int], ...]

    def variants(self) -> Iterator[Variant]:
        """One variant per tuning and path."""
        for tile, warps, stages in self.tunings:
            for path in (SPLIT, UNSPLIT):
                shape = (self.dtype, self.head_dim, self.head_dim_v, tile, self.rows, warps, stages)
                yield Variant(BUNDLED, *shape, "paged", path)


# What kernels/heuristic.py launches for these shapes (and the nearest alternatives), and NOTES.md found worth it.
SHAPES = (
    Shape("bf16", 128, 128, 8, ((64, 4, 2), (32, 4, 3), (64, 2, 3))),
    Shape("bf16", 128, 128, 16, ((64, 4, 2), (32, 4, 3), (64, 2, 3))),
    Shape("bf16", 64, 64, 8, ((128, 4, 2), (64, 4, 3), (128, 2, 3))),
    Shape("bf16", 80, 80, 8, ((64, 4, 2), (32, 4, 3), (64, 2, 3))),
    Shape("bf16", 256, 256, 8, ((32, 4, 2), (32, 4, 3), (16, 4, 3))),
    Shape("fp8", 128, 128, 8, ((64, 2, 3), (64, 4, 2))),
    Shape("bf16", 128, 128, 32, ((64, 4, 2),)),
    Shape("bf16", 128, 128, 64, ((64, 4, 2),)),
    Shape("bf16", 64, 64, 64, ((64, 4, 3), (64, 4, 2))),
    Shape("bf16", 576, 0, 16, ((32, 4, 3), (32, 4, 2))),
    Shape("bf16", 576, 0, 64, ((64, 8, 2),)),
    Shape("bf16", 576, 0, 64, ((64, 12, 2),)),  # the kernel for latents on warp groups
)
# Value widths whose merges are measured, each with the pool that serves it: (key width, value width).
MERGES = {64: (64, 64), 128: (128, 128), 256: (256, 256), 512: (576, 0)}
# The variant on which the overlap of latency and bandwidth is measured, with these counts of blocks per SM.
OVERLAP_VARIANT, OVERLAP_BLOCKS_PER_SM = Variant(BUNDLED, "bf16", 128, 128, 64, 8, 4, 2, "paged", UNSPLIT), 2


def heads_of(variant: Variant) -> int:
    """KV heads of the probes: one for a latent; otherwise the number whose blocks fill GPUs with 4 n SMs exactly."""
    return KV_HEADS if variant.head_dim_v else 1


def all_variants(gpu: Gpu | None = None) -> tuple[Variant, ...]:
    """Every variant that is measured, on this GPU or on any."""
    grouped = gpu is None or gpu.compute_capability == WARP_GROUP_CAPABILITY
    return tuple(v for shape in SHAPES for v in shape.variants() if grouped or not in_warp_groups(v.warps))


class MeasurementJournal:
    """Finished parts by name, written to disk after each. A journal of another GPU or of other parts is not used."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = path, dict(identity)
        self.parts: dict[str, Any] = {}
        try:
            data = read_json(path, MAX_JOURNAL_BYTES, f"journal {path}", rewritten=True)
        except InputError:
            return
        if isinstance(data, dict) and data.get("schema") == JOURNAL_SCHEMA and data.get("identity") == self.identity:
            self.parts = data.get("parts", {})

    def run(self, name: str, measure: Callable[[], Any]) -> Any:
        """The part's result, from the journal or by measuring it now."""
        if name not in self.parts:
            self.parts[name] = measure()
            self._write()
        return self.parts[name]

    def _write(self) -> None:
        text = json.dumps({"schema": JOURNAL_SCHEMA, "identity": self.identity, "parts": self.parts})
        write_whole(self.path, text)

    def remove(self) -> None:
        """Removes the journal, because the calibration now holds everything."""
        self.path.unlink(missing_ok=True)


def identity_of(device: Device, gpu: Gpu) -> dict[str, Any]:
    """The GPU as a calibration names it."""
    return {
        "name": device.name,
        "table_name": gpu.table_name,
        "sm_count": gpu.sm_count,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
    }


def calibrate(
    device: Device,
    gpu: Gpu,
    journal_path: Path,
    tick: Callable[[str, int, int], None] | None = None,
    keep_journal: bool = False,
) -> Calibration:
    """Measures everything. tick(part, done, total) is called before each part.

    The journal, which also holds the raw times, stays when the run is interrupted, or when asked for.
    """
    from decodecalc.verify.run.device import provenance

    variants = all_variants(gpu)
    journal = MeasurementJournal(journal_path, {**identity_of(device, gpu), "variants": [list(v) for v in variants]})
    total = 4 + len(variants)

    def step(done: int, name: str, measure: Callable[[], Any]) -> Any:
        if tick:
            tick(name, done, total)
        return journal.run(name, measure)

    before = journal.run("state before", lambda: device.state().to_dict())
    step(0, "compiling", lambda: _compile_all(variants))
    launches = step(1, "launches", lambda: _samples(_microbench().launch_probes(gpu.sm_count)))
    memory = step(2, "memory", lambda: _samples(_microbench().memory_probes(gpu.sm_count, device.l2_bytes or 50 << 20)))
    device_values = {**launches, **memory}
    merges = step(3, "merges", lambda: _merges(device))
    pools = _Pools(device)
    measured: list[tuple[Variant, dict[str, Any]]] = []
    for i, variant in enumerate(variants):

        def measure(variant: Variant = variant) -> dict[str, Any]:
            return measure_variant(pools.of(variant), variant, gpu, device_values, merges)

        measured.append((variant, step(4 + i, variant.label(), measure)))
    device_values["overlap_exponent"] = journal.run(
        "overlap", lambda: _overlap(pools.of(OVERLAP_VARIANT), gpu, device_values)
    )
    info = provenance(device)
    state = device.state().to_dict()
    environment = {**info, "before": before, "after": state, "driver": state.get("driver")}
    found = assemble(identity_of(device, gpu), device_values, measured, environment)
    if not keep_journal:
        journal.remove()
    return found


def assemble(
    identity: Mapping[str, Any],
    device_values: Mapping[str, Any],
    measured: list[tuple[Variant, dict[str, Any]]],
    environment: Mapping[str, Any],
) -> Calibration:
    """A calibration from measured values, which are checked like those of a file."""

    def entry(value: Any, spread: float = 0.0) -> dict[str, Any]:
        return {"value": value, "spread": spread, "provenance": "measured"}

    parameters = {name: entry(v["value"], v["spread"]) for name, v in device_values.items()}
    parameters["dependent_launch_gap_s"] = parameters["launch_graph_s"]
    parameters["residual_p90"] = {"value": DEFAULT_RESIDUAL, "provenance": "spec", "note": "of the shipped H200 report"}
    return parse_calibration(
        {
            "schema": SCHEMA,
            "gpu": dict(identity),
            "date": str(environment.get("date_utc", ""))[:10],
            "protocol": PROTOCOL,
            "environment": dict(environment),
            "parameters": parameters,
            "variants": [
                {**v._asdict(), "values": {n: entry(x, values["spread"]) for n, x in values.items() if n in VARIANT}}
                for v, values in measured
            ],
        }
    )


class _Pools:
    """The pool of the current variant. Only one exists at a time, to save memory."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._key: tuple[Any, ...] = ()
        self._pool: Any = None

    def of(self, variant: Variant) -> Any:
        """The variant's pool: the last one where it fits, otherwise a new one."""
        key = (variant.dtype, variant.head_dim, variant.head_dim_v, heads_of(variant))
        if key != self._key:
            self._pool = None
            self._device.free_memory()
            self._key, self._pool = key, _microbench().Pool(*key)
        return self._pool


def _merges(device: Device) -> dict[str, dict[str, list[float]]]:
    """The merge's table by value width."""
    from decodecalc.calibrate.derive import derive_merge

    bench, out = _microbench(), {}
    for v_dim, widths in MERGES.items():
        device.free_memory()
        out[str(v_dim)] = derive_merge(bench.merge_probes(bench.Pool("bf16", *widths, pool_bytes=256 << 20)))
    return out


def merge_values(variant: Variant, merges: Mapping[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    """The merge's table for a variant: that of its padded value width."""
    width = next_power_of_2(variant.head_dim_v) if variant.head_dim_v else MLA_VALUE_DIM
    return merges[str(min(MERGES, key=lambda v: abs(v - width)))]


def _overlap(pool: Any, gpu: Gpu, device_values: Mapping[str, Any]) -> dict[str, float]:
    """The overlap exponent, from the times of blocks that read the same keys and of blocks that read their own, at some
    counts of blocks per SM."""
    from decodecalc.calibrate.derive import derive_exponent

    blocks = OVERLAP_BLOCKS_PER_SM * gpu.sm_count
    transfer = blocks * tile_bytes(OVERLAP_VARIANT) / device_values["hbm_sustained_bytes_per_s"]["value"]
    own, shared = _microbench().shared_tile(pool, OVERLAP_VARIANT, blocks)
    return {"value": derive_exponent(own, shared, transfer), "spread": 0.0}


def measure_variant(
    pool: Any,
    variant: Variant,
    gpu: Gpu,
    device_values: Mapping[str, Any],
    merges: Mapping[str, dict[str, list[float]]],
) -> dict[str, Any]:
    """Parameters of one variant by name, with the largest spread of its samples and the raw times."""
    from decodecalc.calibrate.derive import derive_stage

    bench = _microbench()
    merge = merge_values(variant, merges)
    slots = bench.resident_slots(pool, variant, gpu)
    times, spread = bench.stage_probes(pool, variant, gpu.sm_count, slots, _lookup(merge))
    raw = {f"{n}x{t}": s for (n, t), s in {**times.by_blocks, **times.waves}.items()}
    stage = derive_stage(times, device_values["launch_graph_s"]["value"])
    return {"slots_per_sm": slots, **stage, **merge, "spread": spread, "raw": raw}


def _lookup(merge: Mapping[str, list[float]]) -> Callable[[int, int], float]:
    """Seconds of a merge by rows and splits, as the time model reads the table."""
    from decodecalc.cost.model import in_table

    return lambda r, s: float(in_table(r, s, merge["merge_rows"], merge["merge_splits"], merge["merge_s"]))


def _samples(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"value": s.seconds, "spread": s.spread} for name, s in found.items()}


def _microbench() -> Any:
    from decodecalc.calibrate import microbench

    return microbench


def _compile_all(variants: tuple[Variant, ...]) -> bool:
    """Compiles every kernel once, in several processes. One after the other would take minutes."""
    import multiprocessing

    workers = max(1, min(len(variants), (os.cpu_count() or 2) - 1))
    if workers > 1:
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            merges = [pool.apply_async(compile_merges, (v_dim,)) for v_dim in MERGES]
            pool.map(compile_variant, variants, chunksize=1)
            for waiting in merges:
                waiting.get()
    return True


def compile_variant(variant: Variant) -> None:
    """Compiles the kernels that the probes of one variant launch; Triton keeps them in its cache on disk."""
    import torch

    bench = _microbench()
    pool = bench.Pool(variant.dtype, variant.head_dim, variant.head_dim_v, heads_of(variant), pool_bytes=256 << 20)
    probe = bench.Probe(pool, variant)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    # The shape of the merge depends on the split count, and crowded launches are compiled separately: compile every
    # count once.
    for blocks in probe.counts(sms, MOST_SLOTS):
        for cut in probe.cuts(blocks, bench.FULL_CUTS):
            probe.calls(cut, 1, count=1)[0]()
    torch.cuda.synchronize()


def compile_merges(v_dim: int) -> None:
    """Compiles the merges of one value width."""
    from decodecalc.calibrate import microbench as bench

    bench.merge_probes(bench.Pool("bf16", *MERGES[v_dim], pool_bytes=64 << 20))

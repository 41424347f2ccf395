"""`calibrate`: every parameter of the time model by its own microbenchmark on the GPU at hand.

Variants that are measured: the tunings that the bundled launcher uses, for each element type and head width of
`SHAPES`. Finished parts are kept in a journal beside the output, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodecalc.cost.calibration import SCHEMA, Calibration, parse_calibration
from decodecalc.cost.parameters import PER_KERNEL, VARIANT, Variant
from decodecalc.cost.variants import BUNDLED, tile_bytes
from decodecalc.errors import InputError

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.verify.device import Device

JOURNAL_SCHEMA = "decodecalc/calibration-journal/1"
PROTOCOL = (
    "CUDA graphs of 12 to 512 calls on a page pool of 3 GiB, replayed back to back, median of 5 groups; eight KV heads "
    "(layout run: one), pages of 16 keys in random order, random data; decodecalc/verify/microbench.py, derive.py"
)
# Relative error that 90 % of unseen cells stay within where nothing better was measured: `reports/h200/accuracy.md`.
DEFAULT_RESIDUAL = 0.15


@dataclass(frozen=True)
class Shape:
    """Tunings (tile, warps, stages) of one element type and width. rows: query rows of a block."""

    dtype: str
    head_dim: int
    head_dim_v: int
    rows: int
    tunings: tuple[tuple[int, int, int], ...]
    layouts: tuple[str, ...] = ("paged",)

    def variants(self) -> Iterator[Variant]:
        """One variant per tuning."""
        for layout in self.layouts:
            for tile, warps, stages in self.tunings:
                shape = (self.dtype, self.head_dim, self.head_dim_v, tile, self.rows, warps, stages)
                yield Variant(BUNDLED, *shape, layout)


# What kernels/heuristic.py launches for these shapes (and the nearest alternatives), and NOTES.md found worth it.
SHAPES = (
    Shape("bf16", 128, 128, 16, ((64, 4, 2), (32, 4, 3), (64, 2, 3)), ("paged", "run")),
    Shape("bf16", 64, 64, 16, ((128, 4, 2), (64, 4, 3), (128, 2, 3))),
    Shape("bf16", 256, 256, 16, ((32, 4, 2), (32, 4, 3), (16, 4, 3))),
    Shape("fp8", 128, 128, 16, ((64, 2, 3), (64, 4, 2))),
    Shape("bf16", 128, 128, 64, ((64, 4, 2),)),
    Shape("bf16", 576, 0, 16, ((32, 4, 2),), ("run",)),
)


def heads_of(variant: Variant) -> int:
    """KV heads of the probes: one where a page is one run, eight where its heads lie side by side."""
    return 1 if variant.layout == "run" else 8


def all_variants() -> tuple[Variant, ...]:
    """Every variant that is measured."""
    return tuple(v for shape in SHAPES for v in shape.variants())


class Journal:
    """Finished parts by name, on disk after each. A journal of another GPU or of other parts is not taken up."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = path, dict(identity)
        self.parts: dict[str, Any] = {}
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
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
        part = self.path.with_suffix(".tmp")
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from None

    def remove(self) -> None:
        """Done: the calibration holds everything."""
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
    """Measure everything. tick(part, done, total) is called before each part.

    The journal, which holds the raw times too, is left when interrupted, or when asked to be kept.
    """
    from decodecalc.verify.device import provenance

    variants = all_variants()
    journal = Journal(journal_path, {**identity_of(device, gpu), "variants": [list(v) for v in variants]})
    total = 3 + len(variants)

    def step(done: int, name: str, measure: Callable[[], Any]) -> Any:
        if tick:
            tick(name, done, total)
        return journal.run(name, measure)

    before = journal.run("state before", lambda: device.state().to_dict())
    step(0, "compiling", lambda: _compile_all(variants))
    launches = step(1, "launches", lambda: _samples(_microbench().launch_probes(gpu.sm_count)))
    memory = step(2, "memory", lambda: _samples(_microbench().memory_probes(gpu.sm_count, device.l2_bytes or 50 << 20)))
    device_values = {**launches, **memory}
    pools: dict[tuple[str, int, int, int], Any] = {}
    measured: list[tuple[Variant, dict[str, Any]]] = []
    for i, variant in enumerate(variants):

        def measure(variant: Variant = variant) -> dict[str, Any]:
            key = (variant.dtype, variant.head_dim, variant.head_dim_v, heads_of(variant))
            if key not in pools:
                pools.clear()
                device.free_memory()
                pools[key] = _microbench().Pool(*key)
            return measure_variant(pools[key], variant, gpu, device_values)

        measured.append((variant, step(3 + i, variant.label(), measure)))
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
    """A calibration from measured values, checked like a file."""
    first = measured[0][1]

    def entry(value: float, spread: float = 0.0) -> dict[str, Any]:
        return {"value": value, "spread": spread, "provenance": "measured"}

    parameters = {name: entry(v["value"], v["spread"]) for name, v in device_values.items()}
    for name in PER_KERNEL:
        if name != "residual_p90":
            parameters[name] = entry(first[name], first["spread"])
    parameters["residual_p90"] = {"value": DEFAULT_RESIDUAL, "provenance": "spec", "note": "of the shipped H200 report"}
    known = {*VARIANT, *PER_KERNEL}
    return parse_calibration(
        {
            "schema": SCHEMA,
            "gpu": dict(identity),
            "date": str(environment.get("date_utc", ""))[:10],
            "protocol": PROTOCOL,
            "environment": dict(environment),
            "parameters": parameters,
            "variants": [
                {**v._asdict(), "values": {n: entry(x, values["spread"]) for n, x in values.items() if n in known}}
                for v, values in measured
            ],
        }
    )


def measure_variant(pool: Any, variant: Variant, gpu: Gpu, device_values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of one variant by name, with the largest spread of its samples and the raw times."""
    from decodecalc.verify.derive import Surroundings, derive_merge, derive_stage

    bench = _microbench()
    slots = bench.resident_slots(pool, bench.unsplit_config(variant), 4 if variant.rows == 16 else variant.rows, gpu)
    at = Surroundings(
        sm_count=gpu.sm_count,
        slots=slots,
        launch_s=device_values["launch_graph_s"]["value"],
        hbm_bytes_per_s=device_values["hbm_sustained_bytes_per_s"]["value"],
        l2_bytes_per_s=device_values["l2_bytes_per_s"]["value"],
        tile_bytes=tile_bytes(variant),
    )
    times, spread = bench.stage_probes(pool, variant, gpu.sm_count, slots)
    both, stage1, merge = bench.merge_probes(pool, variant)
    raw = {
        "by_blocks": {f"{n}x{t}": s for (n, t), s in times.by_blocks.items()},
        "few": times.few, "one": times.one, "two": times.two, "full": times.full, "waves": times.waves,
        "narrow_s": times.narrow_s, "wide_s": times.wide_s, "shared_s": times.shared_s,
        "both_s": both, "stage1_s": stage1, "merge_s": merge,
    }  # fmt: skip
    stage = derive_stage(times, at)
    if variant.head_dim_v == 0:
        stage["t_row_s"] = 0.0  # a latent's rows change the arithmetic of its tiles, not what a block costs once
    return {
        "slots_per_sm": slots,
        **stage,
        **derive_merge(both, stage1, merge, at.launch_s),
        "spread": spread,
        "raw": raw,
    }


def _samples(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"value": s.seconds, "spread": s.spread} for name, s in found.items()}


def _microbench() -> Any:
    from decodecalc.verify import microbench

    return microbench


def _compile_all(variants: tuple[Variant, ...]) -> bool:
    """Compile every kernel once, side by side in processes: compiling one after the other would take minutes."""
    import multiprocessing

    workers = max(1, min(len(variants), (os.cpu_count() or 2) - 1))
    if workers > 1:
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            pool.map(compile_variant, variants, chunksize=1)
    return True


def compile_variant(variant: Variant) -> None:
    """Compile the kernels that the probes of one variant launch (they land in Triton's cache on disk)."""
    import torch

    bench = _microbench()
    pool = bench.Pool(variant.dtype, variant.head_dim, variant.head_dim_v, heads_of(variant), pool_bytes=64 << 20)
    lens = [variant.tile_keys] * 2
    heads = {4, bench.NARROW, bench.WIDE} if variant.rows == 16 else {variant.rows, variant.rows // 2 + 1}
    for group in sorted(heads):
        bench.kernel_calls(pool, bench.unsplit_config(variant), lens, group * pool.kv_heads, 1)[0]()
    for splits in bench.MERGE_SPLITS:
        config = bench.split_config(variant, splits, variant.tile_keys, 32, pool.v_dim)
        bench.kernel_calls(pool, config, lens, 4 * pool.kv_heads, 1)[0]()
    torch.cuda.synchronize()

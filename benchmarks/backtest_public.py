"""Back-test of the time model against published decode-attention timings, on rows that were not used to fit it.

    pip download --no-deps aiconfigurator-core && unzip -d aicc aiconfigurator_core-*.whl
    python -m benchmarks.backtest_public aicc --output reports/public-backtest.md

The tables are NVIDIA's (Apache-2.0, package aiconfigurator-core); nothing of them is shipped here. FlashAttention-3
rows of vLLM (pages of 64) and SGLang (pages of 1) on H200 and H100: one CUDA graph replayed with no L2 flush, so that
KV below the L2's size is warm (the model runs in its warm mode), and vLLM's rows may include the KV write.

Split, fixed before fitting: whole families are held out, `HELD_OUT_BATCHES` and `HELD_OUT_Q_HEADS`; a row of either is
a test row. Per (GPU, framework, KV type, head width) the same physical parameters that `decodecalc calibrate` measures
are fitted to the remaining rows (no such GPU is at hand to calibrate); launches, splits and work come from the policy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decodecalc._version import __version__
from decodecalc.cost.cuts import cuts_of
from decodecalc.cost.model import Work, step_terms, uniform_bodies
from decodecalc.cost.parameters import START_TILES
from decodecalc.cost.rates import Rates
from decodecalc.cost.work import work_of
from decodecalc.engines import load_policy
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches

HELD_OUT_BATCHES = (2, 8, 32, 128, 512, 2048)
HELD_OUT_Q_HEADS = (5, 6, 12, 20, 40, 48)
GPUS = {"h200_sxm": "h200-sxm", "h100_sxm": "h100-sxm"}
# framework -> (folder, kernel_source, page size, version of our flash-attention-3 policy)
SOURCES = {
    "vllm": ("vllm/0.24.0", "vllm_flash_attn_fa3", 64, "vllm-0.33"),
    "sglang": ("sglang/0.5.14", "fa3", 1, "3.0.0"),
}
REGIONS = ("launch-bound: KV < 4 MB", "L2: 4-50 MB", "edge: 50-100 MB", "memory: >= 100 MB")
# What is fitted, with where the search starts. The exponent is one plus the fitted number, so never below one.
START = {
    "fixed_s": 8e-6, "refill_s": 3e-6, "row_s": 1e-8, "tau_s": 0.4e-6, "exponent": 0.4, "hbm_bytes_per_s": 4.2e12,
    "l2_bytes_per_s": 6e12, "merge_fixed_s": 1.5e-6, "merge_per_split_s": 5e-8,
}  # fmt: skip


@dataclass
class Cells:
    """Rows of one (GPU, framework, KV type, head width): work, measured seconds, and which are held out."""

    gpu: str
    framework: str
    dtype: str
    head_dim: int
    work: Work
    measured_s: Any
    held_out: Any

    @property
    def label(self) -> tuple[str, str, str, int]:
        """What the parameters belong to."""
        return self.gpu, self.framework, self.dtype, self.head_dim


def read_rows(root: Path, gpu: str, framework: str) -> dict[str, Any]:
    """Columns of one published table as arrays, full attention and this framework's FlashAttention-3 only."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        sys.exit("pyarrow is needed: pip install pyarrow")
    folder, source, _, _ = SOURCES[framework]
    data = root / "aiconfigurator_core" / "systems" / "data"
    path = data / gpu / "attention" / folder / "generation_attention_perf.parquet"
    if not path.exists():
        sys.exit(f"{path} not found: unzip the aiconfigurator-core wheel (0.12.0) and give its folder")
    table = parquet.read_table(path)
    columns = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    keep = (columns["kernel_source"] == source) & (columns["window_size"] == 0)
    return {name: values[keep] for name, values in columns.items()}


def cells_of(root: Path, gpu_folder: str, framework: str) -> Iterator[Cells]:
    """The table's rows as planned work, one group per KV type and head width."""
    rows = read_rows(root, gpu_folder, framework)
    gpu = load_gpu(GPUS[gpu_folder])
    for dtype, name in (("bfloat16", "bf16"), ("fp8", "fp8")):
        for head_dim in np.unique(rows["head_dim"]).tolist():
            mine = {k: v[(rows["kv_cache_dtype"] == dtype) & (rows["head_dim"] == head_dim)] for k, v in rows.items()}
            if len(mine["latency"]):
                yield plan_rows(gpu, framework, name, head_dim, mine)


def plan_rows(gpu: Gpu, framework: str, dtype: str, head_dim: int, rows: dict[str, Any]) -> Cells:
    """What FlashAttention-3 launches for each row. Rows with K 192 have V 128."""
    _, _, page, version = SOURCES[framework]
    policy = load_policy("flash-attention-3")
    kv = KvCache(dtype, page, None, dtype)
    parts: list[Work] = []
    measured, held = [], []
    kv_heads = np.where(rows["num_key_value_heads"] == 0, rows["num_heads"], rows["num_key_value_heads"])
    for q, k in np.unique(np.stack([rows["num_heads"], kv_heads]), axis=1).T.tolist():
        at = (rows["num_heads"] == q) & (kv_heads == k)
        geo = Geometry(q, k, head_dim, 128 if head_dim == 192 else None)
        steps = Batches.uniform(rows["batch_size"][at], rows["step"][at] + 1)
        options = policy.options_type.from_mapping(policy.name, {"paged": True})
        found = policy.launches(geo, steps, kv, gpu, options, policy.version(version))
        parts.append(
            spread(work_of(policy.name, geo, steps, kv, found, cuts_of(steps, found, found.tile_keys)), steps.n)
        )
        measured.append(rows["latency"][at] * 1e-3)
        held.append(np.isin(rows["batch_size"][at], HELD_OUT_BATCHES) | (q in HELD_OUT_Q_HEADS))
    joined = Work._make(np.concatenate(column) for column in zip(*parts))
    return Cells(gpu.name, framework, dtype, head_dim, joined, np.concatenate(measured), np.concatenate(held))


def spread(work: Work, n: int) -> Work:
    """Every field as an [n] array."""
    return Work._make(np.broadcast_to(np.asarray(value), (n,)) for value in work)


def take(work: Work, where: Any) -> Work:
    """Some of the rows."""
    return Work._make(value[where] for value in work)


def rates_from(gpu: Gpu, values: dict[str, float]) -> Rates:
    """Model rates for FlashAttention-3 (persistent: one block per SM) with these fitted values."""
    fixed, merge = (values["fixed_s"],) * 2, values["merge_fixed_s"]
    most = merge + 1024 * values["merge_per_split_s"]
    return Rates(
        sm_count=gpu.sm_count,
        slots=gpu.sm_count,
        launch_s=0.5e-6,
        launch_block_s=0.0,
        gap_s=0.0,
        hbm_bytes_per_s=values["hbm_bytes_per_s"],
        l2_bytes_per_s=values["l2_bytes_per_s"],
        l2_capacity_bytes=50e6,
        peak_flop_per_s=gpu.need("tensor_bf16_flop_per_s"),
        exponent=1.0 + values["exponent"],
        refill_s=values["refill_s"],
        row_s=values["row_s"],
        blocks=(1.0, float(gpu.sm_count)),
        latency_s=(values["tau_s"],) * 2,
        starts_s=(fixed,) * len(START_TILES),
        merge_rows=(1.0, 2.0),
        merge_splits=(1.0, 1025.0),
        merge_s=(merge, most) * 2,
        warm=True,
        half_width=0.0,
        half_width_ragged=0.0,
    )


def predicted(work: Work, rates: Rates) -> Any:
    """Seconds of every row."""
    return step_terms(work, uniform_bodies(work, rates), rates).total_s


def fit(gpu: Gpu, work: Work, measured_s: Any, rounds: int = 60) -> dict[str, float]:
    """Parameters of least robust relative error: Levenberg-Marquardt on log parameters, soft-L1 weights."""
    names, x = list(START), np.log(np.array(list(START.values())))
    low, high = x - np.log(30), x + np.log(30)

    def residual(at: Any) -> Any:
        return np.log(predicted(work, rates_from(gpu, dict(zip(names, np.exp(at))))) / measured_s)

    def cost(r: Any) -> float:
        return float((np.sqrt(1 + (r / 0.05) ** 2) - 1).sum())

    damping, r = 1e-2, residual(x)
    for _ in range(rounds):
        jacobian = np.stack([(residual(x + 1e-4 * unit) - r) / 1e-4 for unit in np.eye(len(x))], axis=1)
        weight = 1 / np.sqrt(1 + (r / 0.05) ** 2)
        normal, slope = jacobian.T @ (weight[:, None] * jacobian), jacobian.T @ (weight * r)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), slope)
        tried = np.clip(x - step, low, high)
        new = residual(tried)
        if cost(new) < cost(r):
            x, r, damping = tried, new, max(damping / 4, 1e-9)
        else:
            damping *= 8
        if damping > 1e8:
            break
    return dict(zip(names, np.exp(x).tolist()))


def baselines(gpu: Gpu, cells: Cells) -> tuple[Any, Any]:
    """Data-sheet roofline, and overhead + bytes over bandwidth with both fitted to the fit rows."""
    moved = cells.work.hbm_bytes
    roofline = np.maximum(moved / gpu.need("hbm_bytes_per_s"), cells.work.flop / gpu.need("tensor_bf16_flop_per_s"))
    fit_rows = ~cells.held_out
    best: tuple[float, Any] = (np.inf, roofline)
    for overhead in np.geomspace(2e-6, 60e-6, 60):
        for rate in np.geomspace(0.5e12, 8e12, 60):
            time = overhead + moved / rate
            error = float(np.abs(time / cells.measured_s - 1)[fit_rows].mean())
            if error < best[0]:
                best = error, time
    return roofline, best[1]


def region_of(work: Work) -> Any:
    """Index into REGIONS."""
    return np.digitize(work.hbm_bytes, [4e6, 50e6, 100e6])


@dataclass
class Outcome:
    """Relative errors of the held-out rows of one group."""

    cells: Cells
    error: Any
    roofline_error: Any
    bytes_error: Any
    region: Any
    values: dict[str, float]


def run(root: Path) -> list[Outcome]:
    """Fit and test every group."""
    out = []
    for folder in GPUS:
        for framework in SOURCES:
            for cells in cells_of(root, folder, framework):
                out.append(
                    judge(
                        cells,
                        fit(load_gpu(cells.gpu), take(cells.work, ~cells.held_out), cells.measured_s[~cells.held_out]),
                    )
                )
                print(*cells.label, f"{100 * np.abs(out[-1].error).mean():.2f} %", file=sys.stderr)
    return out


def judge(cells: Cells, values: dict[str, float]) -> Outcome:
    """Errors on the held-out rows."""
    gpu, test = load_gpu(cells.gpu), cells.held_out
    roofline, overhead = baselines(gpu, cells)
    time = predicted(cells.work, rates_from(gpu, values))

    def error(t: Any) -> Any:
        return (t / cells.measured_s - 1)[test]

    return Outcome(cells, error(time), error(roofline), error(overhead), region_of(cells.work)[test], values)


def carried_over(outcomes: list[Outcome]) -> list[tuple[Cells, Any]]:
    """H100 rows predicted with the H200's parameters, memory scaled by the data sheets: nothing of the H100 fitted."""
    ratio = load_gpu("h100-sxm").need("hbm_bytes_per_s") / load_gpu("h200-sxm").need("hbm_bytes_per_s")
    known = {o.cells.label[1:]: o.values for o in outcomes if o.cells.gpu == "h200-sxm"}
    out = []
    for o in outcomes:
        if o.cells.gpu == "h100-sxm":
            base = rates_from(load_gpu("h100-sxm"), known[o.cells.label[1:]])
            moved = base._replace(hbm_bytes_per_s=base.hbm_bytes_per_s * ratio)
            out.append((o.cells, (predicted(o.cells.work, moved) / o.cells.measured_s - 1)[o.cells.held_out]))
    return out


def percent(errors: Any) -> str:
    """Mean absolute percentage error."""
    return f"{100 * np.abs(errors).mean():.1f} %" if len(errors) else "-"


def quantile(errors: Any, q: float) -> str:
    """A quantile of the absolute error."""
    return f"{100 * np.quantile(np.abs(errors), q):.1f} %"


def report(outcomes: list[Outcome]) -> str:
    """The report as Markdown."""
    every = np.concatenate([o.error for o in outcomes])
    lines = [
        "# Back-test on published timings",
        "",
        f"decodecalc {__version__} against the decode-attention tables of the `aiconfigurator-core` 0.12.0 wheel "
        "(NVIDIA, Apache-2.0): FlashAttention-3 of vLLM 0.24.0 and SGLang 0.5.14, full attention. Regenerate with",
        "",
        "```",
        "pip download --no-deps aiconfigurator-core==0.12.0 && unzip -d aicc aiconfigurator_core-*.whl",
        "python -m benchmarks.backtest_public aicc --output reports/public-backtest.md",
        "```",
        "",
        f"Held out, whole families: batch {', '.join(map(str, HELD_OUT_BATCHES))} and query heads "
        f"{', '.join(map(str, HELD_OUT_Q_HEADS))}. {len(every)} test rows, none used to fit. Splits and work come from "
        "the policy, exact; the nine physical parameters of a kernel (block start, refill, per query row, tile time, "
        "overlap, memory and L2 rate, merge) are fitted to the other rows of the same GPU, framework, KV type and head "
        "width, since these GPUs cannot be calibrated from here. One graph is replayed without flushing the L2, so the "
        "model runs warm.",
        "",
        f"**All test rows: MAPE {percent(every)}, median {quantile(every, 0.5)}, p90 {quantile(every, 0.9)}.** "
        f"Overhead + bytes/bandwidth, fitted: {percent(np.concatenate([o.bytes_error for o in outcomes]))}. Roofline: "
        f"{percent(np.concatenate([o.roofline_error for o in outcomes]))}.",
        "",
        "| GPU | framework | KV | head | rows | MAPE | p50 | p90 | overhead + bytes | roofline |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for o in outcomes:
        lines.append(
            f"| {o.cells.gpu} | {o.cells.framework} | {o.cells.dtype} | {o.cells.head_dim} | {len(o.error)} | "
            f"{percent(o.error)} | {quantile(o.error, 0.5)} | {quantile(o.error, 0.9)} | {percent(o.bytes_error)} | "
            f"{percent(o.roofline_error)} |"
        )
    lines += ["", "By region (KV bytes of the layer):", "", "| GPU | framework | KV | " + " | ".join(REGIONS) + " |"]
    lines.append("|---|---|---|" + "---:|" * len(REGIONS))
    for key in dict.fromkeys((o.cells.gpu, o.cells.framework, o.cells.dtype) for o in outcomes):
        mine = [o for o in outcomes if (o.cells.gpu, o.cells.framework, o.cells.dtype) == key]
        by_region = [np.concatenate([o.error[o.region == i] for o in mine]) for i in range(len(REGIONS))]
        lines.append("| " + " | ".join([*key, *map(percent, by_region)]) + " |")
    lines += [
        "",
        "H100 with the H200's parameters, memory rate scaled by the data sheets (nothing of the H100 fitted):",
        "",
    ]
    moved = carried_over(outcomes)
    lines += ["| framework | KV | head | MAPE | p90 |", "|---|---|---:|---:|---:|"]
    for cells, error in moved:
        lines.append(
            f"| {cells.framework} | {cells.dtype} | {cells.head_dim} | {percent(error)} | {quantile(error, 0.9)} |"
        )
    lines.append(f"| all | | | {percent(np.concatenate([e for _, e in moved]))} | |")
    return "\n".join([*lines, "", *worst(outcomes)]) + "\n"


_WORST = (
    "Worst rows. Those of a few blocks of one tile that took tens of microseconds are single outliers of the tables; "
    "their neighbours of the same launch took 10-12 µs. Thousands of one-tile blocks measure block start-up alone."
)


def worst(outcomes: list[Outcome], count: int = 10) -> list[str]:
    """The worst rows, to look at."""
    found = []
    for o in outcomes:
        at = np.flatnonzero(o.cells.held_out)
        for i in np.argsort(-np.abs(o.error))[:count].tolist():
            found.append((abs(float(o.error[i])), float(o.error[i]), o.cells, int(at[i])))
    lines = [_WORST, "", "| GPU | framework | KV | head | blocks | tiles | KV bytes | measured | error |"]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|---:|")
    for _, error, c, i in sorted(found, key=lambda f: -f[0])[:count]:
        w = c.work
        lines.append(
            f"| {c.gpu} | {c.framework} | {c.dtype} | {c.head_dim} | {int(w.blocks[i])} | {int(w.tiles[i])} | "
            f"{int(w.hbm_bytes[i])} | {c.measured_s[i] * 1e6:.1f} µs | {100 * error:+.0f} % |"
        )
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that the aiconfigurator-core wheel was unzipped into")
    parser.add_argument("--output", type=Path, help="write the report here")
    args = parser.parse_args()
    text = report(run(args.data))
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

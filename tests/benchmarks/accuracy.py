"""How far predictions are from measured times on an H200: the report, from raw times; needs no GPU.

    python tests/benchmarks/accuracy.py --recorded reports/h200/kernels-vs-peers.json --output reports/h200/accuracy
    python tests/benchmarks/accuracy.py --raw RAW.json --output reports/h200/accuracy

--raw: what `accuracy_measure.py` wrote on the GPU (families held out before fitting: accuracy_cells.py). --recorded:
the launches of the kernel benchmark beside the peers. The bundled kernel is calibrated by microbenchmarks alone: none
of its launches took part in a fit; the peers' parameters come from their launches with 1 and 32 KV heads, the family
with HELD_OUT_KV_HEADS is held out. The benchmark's graphs are replayed one at a time: LAUNCH_OF_A_GRAPH_S, the host's
way to a graph's first kernel, is taken off once per graph. Writes OUTPUT.md, OUTPUT.json and figures (.svg).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from accuracy_cells import Cell

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration, load_calibration
from decodecalc.cost.choice import choose
from decodecalc.cost.prediction import Prediction, predict
from decodecalc.engines import plan
from decodecalc.geometry import Geometry
from decodecalc.gpus import load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch import LaunchPlan

# A graph replayed alone pays the host's way to its first kernel: 10 to 18 µs by joint fits of the sweeps of that day.
LAUNCH_OF_A_GRAPH_S = 10e-6
RECORDED_NOTE = (
    "Recorded launches under the kernels' own rules, equal requests only. Cells of less than 2 MB of KV fit the L2 "
    "over all their layers there, and every layer shares one block table: they run warmer than the calibration's cold "
    "probes. Not in here: the bundled kernel under vLLM's and SGLang's rules, ragged batches and swept split counts on "
    "the device; `accuracy_measure.py` measures those."
)
LARGE_BYTES = 64e6
HELD_OUT_KV_HEADS = 8
GPU = "h200-sxm"
PEERS = {
    "vllm_triton_us": ("vllm-triton", {}),
    "sglang_triton_us": ("sglang-triton", {}),
    "flash_attention_3_us": ("flash-attention-3", {}),
}


@dataclass(frozen=True)
class Point:
    """One measured launch and what was said about it, in seconds. part: which table it belongs to."""

    part: str
    cell: str
    splits: int
    kv_bytes: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    roofline_s: float
    overhead_plus_bytes_s: float
    bound: str
    tail_s: float
    latency_s: float

    @property
    def error(self) -> float:
        """Relative: positive when predicted too slow."""
        return self.predicted_s / self.measured_s - 1


def point(part: str, cell: Cell, measured_s: float, launch: LaunchPlan, said: Prediction) -> Point:
    """A point from a plan and its prediction."""
    kv_bytes = sum(cell.lens) * launch.kv.bytes_per_key(launch.geometry)
    return Point(
        part, cell.label, max(launch.splits.live), int(kv_bytes), measured_s, said.total_s, said.low_s, said.high_s,
        said.roofline_s or 0.0, said.overhead_plus_bytes_s, said.bound, said.terms["tail_s"], said.terms["latency_s"],
    )  # fmt: skip


def planned(engine: str, cell: Cell, **options: Any) -> LaunchPlan:
    """A plan on the H200, bf16 pages of 16 keys unless the cell says otherwise."""
    geo = Geometry(cell.q_heads, cell.kv_heads, cell.head_dim)
    return plan(engine, geo, Batch(cell.lens), kv=KvCache(cell.dtype, 16), gpu=GPU, **options)


def tuning(config: dict[str, Any]) -> dict[str, int]:
    """Options of the bundled policy that fix a launch's tuning."""
    return {name: config[name] for name in ("tile_keys", "warps", "stages")}


def recorded_points(path: Path, calibration: Calibration) -> Iterator[Point]:
    """Our kernel and the peers' in the cells of `kernels_vs_peers.py`."""
    for row in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        cell = Cell(row["q_heads"], row["kv_heads"], row["head_dim"], (row["context"],) * row["batch"], row["dtype"])
        once = LAUNCH_OF_A_GRAPH_S / row["layers"]
        held_out = cell.kv_heads == HELD_OUT_KV_HEADS
        family = "held out: 8 KV heads" if held_out else "fit: 1 and 32 KV heads"
        config = row["launch"]
        if config["split_rule"] in ("size", "count"):
            splits = {"split_keys": config["split_value"]} if config["split_rule"] == "size" else {"num_splits": 1}
            ours = planned("bundled", cell, **splits, **tuning(config))
            yield point(
                "bundled (none used to calibrate)",
                cell,
                row["ours_us"] * 1e-6 - once,
                ours,
                predict(ours, calibration=calibration),
            )
        for column, (engine, options) in PEERS.items():
            if row.get(column) and cell.dtype == "bf16" and cell.head_dim == 128:
                theirs = planned(engine, cell, **options)
                said = predict(theirs, calibration=calibration)
                yield point(f"{engine}, its own kernel ({family})", cell, row[column] * 1e-6 - once, theirs, said)


def raw_points(raw: dict[str, Any], calibration: Calibration) -> Iterator[Point]:
    """The bundled kernel under three rules, and the peers' kernels on their held-out cells."""
    for row in raw["cells"]:
        cell, config = Cell(**{**row["cell"], "lens": tuple(row["cell"]["lens"])}), row["config"]
        if row["rule"] == "bundled":
            splits = {"split_keys": config["split_value"]} if config["split_rule"] == "size" else {"num_splits": 1}
            launch = planned("bundled", cell, **splits, **tuning(config))
        else:
            launch = planned("bundled", cell, split_policy=row["rule"], **tuning(config))
        yield point(
            f"bundled under {row['rule']}", cell, row["seconds"], launch, predict(launch, calibration=calibration)
        )
    for row in raw["peers"]:
        if row["part"] == "test":
            cell = Cell(**{**row["cell"], "lens": tuple(row["cell"]["lens"])})
            engine = "vllm-triton" if row["kernel"].startswith("vllm") else row["kernel"]
            options = {"batch_invariant": True} if row["kernel"].endswith("-2d") else {}
            launch = planned(engine, cell, **options)
            said = predict(launch, calibration=calibration)
            yield point(f"{row['kernel']}, its own kernel", cell, row["seconds"], launch, said)


@dataclass(frozen=True)
class Sweep:
    """One cell's best measured launch, and the measured launch nearest to what the model chooses."""

    cell: str
    best_s: float
    best_splits: int
    chosen_splits: int
    chosen_s: float
    s_star: int

    @property
    def regret(self) -> float:
        """Chosen over best."""
        return self.chosen_s / self.best_s


def sweeps_of(raw: dict[str, Any], calibration: Calibration) -> Iterator[Sweep]:
    """S_opt against the exhaustive best of each swept cell."""
    by_cell: dict[Cell, list[dict[str, Any]]] = {}
    for row in raw["sweeps"]:
        cell = Cell(**{**row["cell"], "lens": tuple(row["cell"]["lens"])})
        by_cell.setdefault(cell, []).append(row)
    own = {
        Cell(**{**row["cell"], "lens": tuple(row["cell"]["lens"])}): row["seconds"]
        for row in raw["cells"]
        if row["rule"] == "bundled"
    }
    for cell, rows in by_cell.items():
        geo = Geometry(cell.q_heads, cell.kv_heads, cell.head_dim)
        found = choose(geo, Batch(cell.lens), kv=KvCache(cell.dtype, 16), gpu=GPU, calibration=calibration, engines=[])
        best = min(rows, key=lambda r: r["seconds"])
        tuned = [r for r in rows if tuning(r["config"]) == {
            "tile_keys": found.tile_keys, "warps": found.warps, "stages": found.stages}]  # fmt: skip
        near = min(tuned or rows, key=lambda r: abs(np.log(r["config"]["num_splits"] / found.s_opt)))
        exact = near["config"]["num_splits"] == found.s_opt
        chosen = near["seconds"] if exact or cell not in own else min(near["seconds"], own[cell])
        yield Sweep(cell.label, min(best["seconds"], own.get(cell, 1.0)), best["config"]["num_splits"], found.s_opt,
                    chosen, found.s_star)  # fmt: skip


def share(values: Sequence[float], q: float | None = None) -> str:
    """Mean or quantile of absolute values, in per cent."""
    if not len(values):
        return "-"
    absolute = np.abs(values)
    return f"{100 * (absolute.mean() if q is None else np.quantile(absolute, q)):.1f} %"


def explanation(p: Point) -> str:
    """Why such a cell may be off, from its own terms."""
    if p.measured_s < 8e-6:
        return "a few microseconds of launches and first loads: a tenth of one is 2 %"
    if p.tail_s > 0.1 * p.predicted_s:
        return "a last wave that does not fill the device"
    if p.latency_s > 0.5 * p.predicted_s:
        return "lone blocks: every tile's latency counts in full"
    if p.kv_bytes > LARGE_BYTES:
        return "bandwidth: how near the kernel gets to the sustained rate"
    return "between latency and bandwidth, where the overlap exponent decides"


def report(points: list[Point], sweeps: list[Sweep], calibration: Calibration, source: str, figures: list[str]) -> str:
    """The report as Markdown."""
    lines = ["# Predicted against measured on an H200", "", f"Made by `{source}`.", ""]
    lines += [f"- calibration: {calibration.label}"]
    lines += [f"- {k}: {v}" for k, v in calibration.environment.items() if isinstance(v, (str, int, float))]
    lines += ["- cold L2, bf16 and pages of 16 keys unless a cell says otherwise, CUDA graphs; times per layer", ""]
    lines += ["| what | cells | MAPE | p50 | p90 | KV >= 64 MB | in the interval | overhead + bytes | roofline |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for part in dict.fromkeys(p.part for p in points):
        mine = [p for p in points if p.part == part]
        inside = np.mean([p.low_s <= p.measured_s <= p.high_s for p in mine])
        columns: list[Callable[[Point], float]] = [
            lambda p: p.overhead_plus_bytes_s / p.measured_s - 1,
            lambda p: p.roofline_s / p.measured_s - 1,
        ]
        errors = [p.error for p in mine]
        large = [p.error for p in mine if p.kv_bytes >= LARGE_BYTES]
        lines.append(
            f"| {part} | {len(mine)} | {share(errors)} | {share(errors, 0.5)} | {share(errors, 0.9)} | "
            f"{share(large)} | {100 * inside:.0f} % | "
            + " | ".join(share([f(p) for p in mine]) for f in columns)
            + " |"
        )
    if not sweeps:
        lines += ["", RECORDED_NOTE]
    if sweeps:
        regrets = np.array([s.regret for s in sweeps])
        within = [f"within {b} % in {100 * np.mean(regrets <= 1 + b / 100):.0f} %" for b in (3, 5)]
        lines += ["", f"S_opt, chosen without running anything, against the best of a sweep ({len(sweeps)} cells): "]
        lines[-1] += f"{', '.join(within)}, worst {100 * (regrets.max() - 1):.0f} %."
        lines += ["", "| cell | S* | S_opt | best S | regret |", "|---|---:|---:|---:|---:|"]
        lines += [f"| {s.cell} | {s.s_star} | {s.chosen_splits} | {s.best_splits} | {s.regret:.3f} |" for s in sweeps]
    lines += ["", *(f"![{name}]({name})" for name in figures), "", "Worst ten:", ""]
    lines += ["| what | cell | S | measured | predicted | error | why |", "|---|---|---:|---:|---:|---:|---|"]
    for p in sorted(points, key=lambda p: -abs(p.error))[:10]:
        lines.append(
            f"| {p.part} | {p.cell} | {p.splits} | {p.measured_s * 1e6:.2f} µs | {p.predicted_s * 1e6:.2f} µs | "
            f"{100 * p.error:+.0f} % | {explanation(p)} |"
        )
    return "\n".join(lines) + "\n"


def draw(points: list[Point], output: Path) -> list[str]:
    """Predicted against measured, and error against KV bytes."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    names = []
    for name, x_of, y_of, x_label, y_label in (
        ("time", lambda p: p.measured_s * 1e6, lambda p: p.predicted_s * 1e6, "measured, µs", "predicted, µs"),
        ("error", lambda p: p.kv_bytes, lambda p: 100 * p.error, "KV bytes of the layer", "error, %"),
    ):
        figure, axes = plt.subplots(figsize=(6.4, 4.4))
        for part in dict.fromkeys(p.part for p in points):
            mine = [p for p in points if p.part == part]
            axes.plot([x_of(p) for p in mine], [y_of(p) for p in mine], "o", markersize=4, alpha=0.7, label=part)
        axes.set_xscale("log")
        if name == "time":
            axes.set_yscale("log")
            ends = axes.get_xlim()
            axes.plot(ends, ends, color="grey", linewidth=0.8)
        else:
            axes.axhline(0, color="grey", linewidth=0.8)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.legend(fontsize=7, frameon=False)
        figure.tight_layout()
        path = output.with_name(f"{output.name}-{name}.svg")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        names.append(path.name)
    return names


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, help="from accuracy_measure.py")
    parser.add_argument("--recorded", type=Path, help="from kernels_vs_peers.py")
    parser.add_argument("--calibration", type=Path, help="default: the shipped one")
    parser.add_argument("--output", type=Path, required=True, help="path without ending")
    args = parser.parse_args()
    if (args.raw is None) == (args.recorded is None):
        parser.error("give --raw or --recorded")
    calibration = load_calibration(args.calibration, load_gpu(GPU))
    sweeps: list[Sweep] = []
    if args.raw:
        raw = json.loads(args.raw.read_text(encoding="utf-8"))
        points, sweeps = list(raw_points(raw, calibration)), list(sweeps_of(raw, calibration))
    else:
        points = list(recorded_points(args.recorded, calibration))
    source = "python tests/benchmarks/accuracy.py " + " ".join(
        f"--{name} {value.as_posix()}" for name, value in vars(args).items() if value is not None
    )
    figures = draw(points, args.output)
    text = report(points, sweeps, calibration, source, figures)
    args.output.with_suffix(".md").write_text(text, encoding="utf-8")
    data = {
        "schema": "decodecalc/accuracy/1",
        "calibration": calibration.label,
        "points": [{**asdict(p), "error": p.error} for p in points],
        "sweeps": [{**asdict(s), "regret": s.regret} for s in sweeps],
    }
    args.output.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

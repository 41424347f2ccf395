"""How far predictions are from measured times on an H200: the report, from raw times; needs no GPU.

    python -m benchmarks.accuracy --raw reports/h200/accuracy.json \\
        --peers reports/h200/kernels-vs-peers.json --output reports/h200/accuracy

--raw: what `accuracy_measure.py` wrote on the GPU (families held out before fitting: accuracy_cells.py), or what an
earlier report's JSON holds of it. --peers: the launches of the kernel benchmark beside the peers, of which the peers'
own kernels are taken. The bundled kernel is calibrated by microbenchmarks alone: none of its launches took part in a
fit; the peers' parameters come from their launches with 1 and 32 KV heads, the family with HELD_OUT_KV_HEADS is held
out. That benchmark's graphs are replayed one at a time: LAUNCH_OF_A_GRAPH_S, the host's way to a graph's first kernel,
is taken off once per graph. Writes OUTPUT.md, OUTPUT.json and figures (.svg).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy_cells import Cell, families
from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.choice import choose
from decodecalc.cost.load import load_calibration
from decodecalc.cost.prediction import Prediction, predict
from decodecalc.engines import plan
from decodecalc.geometry import Geometry
from decodecalc.gpus import load_gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan

# A graph replayed alone pays the host's way to its first kernel: 10 to 18 µs by joint fits of the sweeps of that day.
LAUNCH_OF_A_GRAPH_S = 10e-6
LARGE_BYTES = 64e6
HELD_OUT_KV_HEADS = 8
GPU = "h200-sxm"
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
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
    families: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Relative: positive when predicted too slow."""
        return self.predicted_s / self.measured_s - 1


def point(part: str, cell: Cell, measured_s: float, launch: LaunchPlan, said: Prediction) -> Point:
    """A point from a plan and its prediction."""
    kv_bytes = sum(cell.lens) * launch.kv.bytes_per_key(launch.geometry)
    low, high = said.interval or (said.known_s, said.known_s)
    return Point(
        part, cell.label, max(launch.splits.live), int(kv_bytes), measured_s, said.known_s, low, high,
        said.roofline_s or 0.0, said.overhead_plus_bytes_s, said.bound or "", said.terms["tail_s"],
        said.terms["latency_s"], families(cell),
    )  # fmt: skip


def planned(engine: str, cell: Cell, **options: Any) -> LaunchPlan:
    """A plan on the H200, bf16 pages of 16 keys unless the cell says otherwise."""
    geo = Geometry(cell.q_heads, cell.kv_heads, cell.head_dim)
    return plan(engine, geo, Batch(cell.lens), kv=KvCache(cell.dtype, 16), gpu=GPU, **options)


def tuning(config: dict[str, Any]) -> dict[str, int]:
    """Options of the bundled policy that fix a launch's tuning."""
    return {name: config[name] for name in ("tile_keys", "warps", "stages")}


def peer_points(path: Path, calibration: Calibration) -> Iterator[Point]:
    """The peers' own kernels in the cells of `kernels_vs_peers.py`."""
    for row in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        cell = Cell(row["q_heads"], row["kv_heads"], row["head_dim"], (row["context"],) * row["batch"], row["dtype"])
        once = LAUNCH_OF_A_GRAPH_S / row["layers"]
        family = "held out: 8 KV heads" if cell.kv_heads == HELD_OUT_KV_HEADS else "fit: 1 and 32 KV heads"
        for column, (engine, options) in PEERS.items():
            if row.get(column) and cell.dtype == "bf16" and cell.head_dim == 128:
                theirs = planned(engine, cell, **options)
                said = predict(theirs, calibration=calibration)
                yield point(f"{engine}, its own kernel ({family})", cell, row[column] * 1e-6 - once, theirs, said)


def cell_of(row: dict[str, Any]) -> Cell:
    """The cell of a raw row."""
    return Cell(**{**row["cell"], "lens": tuple(row["cell"]["lens"])})


def raw_points(raw: dict[str, Any], calibration: Calibration) -> Iterator[Point]:
    """The bundled kernel under three rules, and what peers' kernels were measured on cells held out."""
    for row in raw["cells"]:
        cell, config = cell_of(row), row["config"]
        if row["rule"] == "bundled":
            splits = {"split_keys": config["split_value"]} if config["split_rule"] == "size" else {"num_splits": 1}
            launch = planned("bundled", cell, **splits, **tuning(config))
        else:
            launch = planned("bundled", cell, split_policy=row["rule"], **tuning(config))
        said = predict(launch, calibration=calibration)
        rule = "its own" if row["rule"] == "bundled" else f"{row['rule']}'s"
        yield point(f"bundled kernel under {rule} rule", cell, row["seconds"], launch, said)
    for row in raw.get("peers", ()):
        if row["part"] == "test":
            cell = cell_of(row)
            engine = "vllm-triton" if row["kernel"].startswith("vllm") else row["kernel"]
            options = {"batch_invariant": True} if row["kernel"].endswith("-2d") else {}
            launch = planned(engine, cell, **options)
            said = predict(launch, calibration=calibration)
            yield point(f"{row['kernel']}, its own kernel", cell, row["seconds"], launch, said)


@dataclass(frozen=True)
class Sweep:
    """One cell's launches at every split count and tuning, the best of them, and the one chosen by the model.

    chosen_s: the launch that the run chose, measured (twice where the sweep holds it too: the mean). now_s: the launch
    that the model of this tree chooses, None where the sweep does not hold it.
    """

    cell: str
    best_s: float
    best_splits: int
    chosen_splits: int
    chosen_s: float
    s_star: int
    now_splits: int
    now_s: float | None

    @property
    def regret(self) -> float:
        """Chosen over best."""
        return self.chosen_s / self.best_s


def same_launch(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two configurations launch the same thing."""
    names = ("num_splits", "split_rule", "split_value", "tile_keys", "warps", "stages")
    return all(a[name] == b[name] for name in names)


def sweeps_of(raw: dict[str, Any], calibration: Calibration) -> Iterator[Sweep]:
    """S_opt against the exhaustive best of each swept cell."""
    by_cell: dict[Cell, list[dict[str, Any]]] = {}
    for row in raw["sweeps"]:
        by_cell.setdefault(cell_of(row), []).append(row)
    own = {cell_of(row): row for row in raw["cells"] if row["rule"] == "bundled"}
    for cell, rows in by_cell.items():
        geo = Geometry(cell.q_heads, cell.kv_heads, cell.head_dim)
        found = choose(geo, Batch(cell.lens), kv=KvCache(cell.dtype, 16), gpu=GPU, calibration=calibration, engines=[])
        chosen = own[cell]
        again = [r["seconds"] for r in rows if same_launch(r["config"], chosen["config"])]
        best = min([*rows, chosen], key=lambda r: r["seconds"])
        direct = found.s_opt == 1
        now = {
            "num_splits": found.s_opt, "split_rule": "count" if direct else "size",
            "split_value": 1 if direct else found.split_keys, **tuning(vars_of(found)),
        }  # fmt: skip
        held = [r["seconds"] for r in [*rows, chosen] if same_launch(r["config"], now)]
        yield Sweep(
            cell.label, best["seconds"], best["config"]["num_splits"], chosen["config"]["num_splits"],
            float(np.mean([chosen["seconds"], *again])), found.s_star, found.s_opt,
            float(np.mean(held)) if held else None,
        )  # fmt: skip


def vars_of(choice: Any) -> dict[str, int]:
    """A choice's tuning by name."""
    return {name: getattr(choice, name) for name in ("tile_keys", "warps", "stages")}


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


def summary_row(name: str, points: Sequence[Point]) -> str:
    """One line of the table."""
    errors = [p.error for p in points]
    large = [p.error for p in points if p.kv_bytes >= LARGE_BYTES]
    inside = np.mean([p.low_s <= p.measured_s <= p.high_s for p in points])
    baselines = (
        [p.overhead_plus_bytes_s / p.measured_s - 1 for p in points],
        [p.roofline_s / p.measured_s - 1 for p in points],
    )
    cells = [name, str(len(points)), share(errors), share(errors, 0.5), share(errors, 0.9), share(large)]
    return f"| {' | '.join([*cells, f'{100 * inside:.0f} %', *map(share, baselines)])} |"


def report(points: list[Point], sweeps: list[Sweep], calibration: Calibration, source: str, figures: list[str]) -> str:
    """The report as Markdown."""
    lines = ["# Predicted against measured on an H200", ""]
    lines += ["Measured by `python -m benchmarks.accuracy_measure RAW.json --calibration CALIBRATION.json` on the"]
    lines += [f"GPU (a minute), reported by `{source}`.", ""]
    lines += [f"- calibration: {calibration.label}"]
    lines += [f"- {k}: {v}" for k, v in calibration.environment.items() if isinstance(v, (str, int, float))]
    lines += ["- cold L2, bf16 and pages of 16 keys unless a cell says otherwise, CUDA graphs; times per layer"]
    lines += ["- held out before fitting, and not looked at while the model was made: `benchmarks/accuracy_cells.py`"]
    lines += ["", "| what | cells | MAPE | p50 | p90 | KV >= 64 MB | in the interval | overhead + bytes | roofline |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    ours = [p for p in points if p.part.startswith("bundled")]
    for part in dict.fromkeys(p.part for p in ours):
        lines.append(summary_row(part, [p for p in ours if p.part == part]))
    lines.append(summary_row("all three rules", ours))
    for family in dict.fromkeys(name for p in ours for name in p.families):
        lines.append(summary_row(f"of these: {family}", [p for p in ours if family in p.families]))
    for part in dict.fromkeys(p.part for p in points if p not in ours):
        lines.append(summary_row(part, [p for p in points if p.part == part]))
    regrets, now = [s.regret for s in sweeps], [s.now_s / s.best_s for s in sweeps if s.now_s]
    lines += ["", "## The split count", ""]
    lines += [
        f"S_opt, chosen without running anything, against the best of a sweep of every tuning ({len(sweeps)} cells):"
    ]
    lines += [f"{within(regrets)}.", ""]
    moved = any(s.now_splits != s.chosen_splits for s in sweeps)  # the model has changed since the run
    if moved:
        lines += [
            f"As this tree chooses (not held out; {len(now)} cells in whose sweep that launch is): {within(now)}."
        ]
        lines.append("")
    heads = ["cell", "S*", "S_opt", "best S", "regret", *(["S_opt now", "regret now"] if moved else [])]
    lines += [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for s in sweeps:
        today = (s.now_splits, f"{s.now_s / s.best_s:.3f}" if s.now_s else "-") if moved else ()
        row = (s.cell, s.s_star, s.chosen_splits, s.best_splits, f"{s.regret:.3f}", *today)
        lines.append(f"| {' | '.join(map(str, row))} |")
    lines += ["", *(f"![{name}]({name})" for name in figures), "", "## Worst ten", ""]
    lines += ["| what | cell | S | measured | predicted | error | why |", "|---|---|---:|---:|---:|---:|---|"]
    for p in sorted(points, key=lambda p: -abs(p.error))[:10]:
        lines.append(
            f"| {p.part} | {p.cell} | {p.splits} | {p.measured_s * 1e6:.2f} µs | {p.predicted_s * 1e6:.2f} µs | "
            f"{100 * p.error:+.0f} % | {explanation(p)} |"
        )
    return "\n".join(lines) + "\n"


def within(regrets: Sequence[float]) -> str:
    """How often a regret stays within the bars."""
    array = np.array(regrets)
    shares = [f"within {b} % in {100 * np.mean(array <= 1 + b / 100):.0f} %" for b in (3, 5)]
    return f"{', '.join(shares)}, worst {100 * (array.max() - 1):.0f} %"


def draw(points: list[Point], output: Path) -> list[str]:
    """Predicted against measured, and error against KV bytes: a panel for each part."""
    from decodecalc.plot.canvas import Look, canvas
    from decodecalc.plot.style import figure_bytes, plain_log_ticks

    names = []
    drawn: tuple[tuple[str, str, Callable[[Point], float], Callable[[Point], float], str, str], ...] = (
        ("time", "Do the predicted times hold?", lambda p: p.measured_s * 1e6, lambda p: p.predicted_s * 1e6,
         "measured, µs", "predicted, µs"),
        ("error", "For which layers are predictions off?", lambda p: p.kv_bytes / 1e6, lambda p: 100 * p.error,
         "KV bytes of the layer, MB", "error, %"),
    )  # fmt: skip
    for name, question, x_of, y_of, x_label, y_label in drawn:
        parts = list(dict.fromkeys(p.part for p in points))
        with canvas(Look("screen")) as made:
            made.question = question
            panels = made.panels(parts)
            xs = [x_of(p) for p in points]
            ends = [min(xs) / 1.2, max(xs) * 1.2]
            for (ax,), part in zip(panels, parts):
                mine = [p for p in points if p.part == part]
                ax.plot(ends, ends if name == "time" else [0, 0], color=made.theme.quiet, linewidth=0.8)
                ax.plot([x_of(p) for p in mine], [y_of(p) for p in mine], "o", color=made.theme.colors[0],
                        markersize=4, alpha=0.7)  # fmt: skip
                ax.set_xscale("log")
                plain_log_ticks(ax.xaxis, few=True)
                if name == "time":
                    ax.set_yscale("log")
                    plain_log_ticks(ax.yaxis, few=True)
            made.name_axes([x_label], [y_label])
        path = output.with_name(f"{output.name}-{name}.svg")
        path.write_bytes(figure_bytes(made.fig, "svg", outlines=True))
        names.append(path.name)
    return names


# Cells whose curves are drawn: label -> title.
DRAWN = (
    "32/8 D128 B1 L2050 bf16", "32/8 D128 B1 L17500 bf16", "8/1 D128 B1 L5200 bf16", "8/1 D128 B1 L97000 bf16",
    "32/2 D128 B4 L6900 bf16", "32/8 D128 ragged B16 bf16",
)  # fmt: skip
RULES_DRAWN = {"vllm-triton": "vLLM", "sglang-triton": "SGLang", "flash-attention-3": "FA3", "flashinfer": "FlashInfer"}


def draw_curves(raw: dict[str, Any], calibration: Calibration, output: Path) -> str:
    """Time against S: measured, predicted, S*, S_opt, and each engine's choice on the same kernel."""
    from decodecalc.plot.canvas import Look, canvas
    from decodecalc.plot.style import figure_bytes, line_style, plain_log_ticks

    cells = {cell_of(row).label: cell_of(row) for row in raw["sweeps"]}
    with canvas(Look("screen")) as made:
        made.question = "Does the predicted time follow the split count?"
        colors, quiet = made.theme.colors, made.theme.quiet
        panels = made.panels(DRAWN, share="")
        for (axes,), label in zip(panels, DRAWN):
            cell = cells[label]
            geo = Geometry(cell.q_heads, cell.kv_heads, cell.head_dim)
            step, kv = Batch(cell.lens), KvCache(cell.dtype, 16)
            found = choose(geo, step, kv=kv, gpu=GPU, calibration=calibration, engines=[])
            rows = [r for r in raw["sweeps"] if cell_of(r) == cell and tuning(r["config"]) == tuning(vars_of(found))]
            axes.plot(
                [p.splits for p in found.curve], [p.total_s * 1e6 for p in found.curve], color=colors[0],
                label="predicted",
            )  # fmt: skip
            axes.plot(
                [r["config"]["num_splits"] for r in rows], [r["seconds"] * 1e6 for r in rows], "x",
                color=made.theme.ink, label="measured",
            )  # fmt: skip
            axes.axvline(found.s_star, color=quiet, linestyle=":", linewidth=1, label="S*")
            axes.axvline(found.s_opt, color=colors[3], linestyle="--", linewidth=1, label="S_opt")
            for i, (engine, name) in enumerate(RULES_DRAWN.items()):
                theirs = planned(engine, cell)
                time = predict(theirs, calibration=calibration, kernel="bundled").known_s
                style = {**line_style(i + 4), "linestyle": "", "fillstyle": "none", "markersize": 6}
                axes.plot(max(theirs.splits.live), time * 1e6, label=f"{name}'s rule", **style)
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
            made.powers_of_two(axes)
        made.key(panels[0][0].get_lines())
        made.name_axes(["splits"], ["µs a layer"])
    path = output.with_name(f"{output.name}-splits.svg")
    path.write_bytes(figure_bytes(made.fig, "svg", outlines=True))
    return path.name


def compact(raw: dict[str, Any]) -> dict[str, Any]:
    """What of the raw file this report needs: launches by what makes them different."""
    names = ("num_splits", "split_rule", "split_value", "tile_keys", "warps", "stages")

    def row(r: dict[str, Any]) -> dict[str, Any]:
        out = {**r, "config": {name: r["config"][name] for name in names}} if "config" in r else dict(r)
        return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in out.items() if k != "calls"}

    parts = {part: [row(r) for r in raw.get(part, ())] for part in ("cells", "sweeps", "peers")}
    return {"environment": raw.get("environment", {}), **parts}


def one_a_line(data: dict[str, Any]) -> str:
    """JSON with a row a line."""
    text = json.dumps({k: v for k, v in data.items() if k != "raw"}, indent=1)
    raw = data["raw"]
    rows = {
        part: ",\n".join(json.dumps(r, separators=(",", ":")) for r in raw[part])
        for part in ("cells", "sweeps", "peers")
    }
    body = ",\n".join(f'"{part}": [\n{lines}\n]' for part, lines in rows.items())
    return f'{text[:-2]},\n "raw": {{"environment": {json.dumps(raw["environment"])},\n{body}}}\n}}\n'


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, help="from accuracy_measure.py, or an earlier report's JSON")
    parser.add_argument("--peers", type=Path, help="from kernels_vs_peers.py")
    parser.add_argument("--calibration", type=Path, help="default: the shipped one")
    parser.add_argument("--output", type=Path, required=True, help="path without ending")
    args = parser.parse_args()
    calibration = load_calibration(args.calibration, load_gpu(GPU))
    raw = json.loads(args.raw.read_text(encoding="utf-8"))
    raw = compact(raw.get("raw", raw))
    points, sweeps = list(raw_points(raw, calibration)), list(sweeps_of(raw, calibration))
    if args.peers:
        points += peer_points(args.peers, calibration)
    given = {**vars(args), "raw": args.output.with_suffix(".json")}  # the report keeps what it needs of the raw file
    source = "python -m benchmarks.accuracy " + " ".join(
        f"--{name} {value.as_posix()}" for name, value in given.items() if value is not None
    )
    figures = [*draw(points, args.output), draw_curves(raw, calibration, args.output)]
    text = report(points, sweeps, calibration, source, figures)
    args.output.with_suffix(".md").write_text(text, encoding="utf-8")
    data = {
        "schema": "decodecalc/accuracy/2",
        "calibration": calibration.label,
        "points": [{**asdict(p), "error": p.error} for p in points],
        "sweeps": [{**asdict(s), "regret": s.regret} for s in sweeps],
        "raw": raw,
    }
    args.output.with_suffix(".json").write_text(one_a_line(data), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

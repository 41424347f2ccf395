"""Our kernels beside the peers', cell by cell, in one process, taking turns. Writes a JSON and a Markdown table.

    python -m benchmarks.kernels_peers .peers                            # once (package registry, no GPU)
    python -m benchmarks.kernels_vs_peers .peers --out reports/h200/kernels-vs-peers

Protocol: kernels_timing.py. Our launch is the time model's choice, nothing is tuned per cell. Correctness against
float64 is checked before anything is timed. Columns:

* ours: programmatic dependent launch on both kernels, as the package launches by default.
* ours, alone: the same without overlapping the previous layer's kernels (`pdl="merge"`): what a layer costs between
  kernels of other libraries.
* stream: reading the same K and V contiguously and doing nothing with them, in the same kind of graph.
* FlashInfer is not in the run; `--recorded FILE` (a JSON of earlier peer timings with `cells`, each with
  `flashinfer_0_2_6_us` and `flash_attention_3_us`) adds it, scaled by FlashAttention-3's ratio between the two runs.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels_peers import Peers
from benchmarks.kernels_timing import (
    PEER_CELLS,
    Cell,
    Graph,
    best_stream_us,
    default_launch,
    gpu_state,
    ours,
    relative_error,
    time_layers,
)  # fmt: skip

# Rounding the softmax weights and the output to bf16 is worth 1.6e-3 each (tests/kernels/conftest.py).
ERROR_BOUND = 3e-3
SPREAD_BOUND = 0.05
FP8_CELLS = [Cell(32, 8, 128, 1, 131072, dtype="fp8"), Cell(32, 8, 128, 16, 2560 * 2, dtype="fp8"),
             Cell(32, 8, 128, 64, 2560, dtype="fp8"), Cell(32, 8, 128, 64, 8192, dtype="fp8"),
             Cell(8, 1, 128, 64, 8192, dtype="fp8")]  # fmt: skip


def layers(state: Any, call: Any) -> list[Any]:
    return [lambda kv=kv: call(kv) for kv in state.kv]


def take_turns(graphs: dict[str, Graph], rounds: int, replays: int) -> None:
    """Replay each graph a few times, round by round."""
    for graph in graphs.values():
        graph.replay(0, warm_up=2)
    for _ in range(rounds):
        for graph in graphs.values():
            graph.replay(replays, warm_up=1)


def time_cell(cell: Cell, peers: Peers | None, sm_count: int) -> dict[str, Any]:
    state = cell.allocate()
    launch = default_launch(cell)
    reference = cell.reference(state)
    calls = {"ours": ours(state, launch), "ours_alone": ours(state, launch.replace(pdl="merge"))}
    if not launch.direct:
        calls["stage1"] = ours(state, launch, "stage1")
        calls["merge"] = ours(state, launch, "merge")
    if peers is not None:
        calls.update(peers.calls(cell, state))
    errors = {}
    for name, call in calls.items():
        if name in ("stage1", "merge"):
            continue
        state.out.fill_(float("nan"))
        call(state.kv[0])
        errors[name] = relative_error(state.out, reference)
    if errors["ours"] > ERROR_BOUND:
        raise SystemExit(f"{cell}: relative error {errors['ours']:.2e}, nothing timed")
    graphs = {name: Graph(layers(state, call)) for name, call in calls.items()}
    take_turns(graphs, rounds=3, replays=5)
    if any(graphs[name].spread > SPREAD_BOUND for name in errors):
        for graph in graphs.values():
            graph.times.clear()
        take_turns(graphs, rounds=3, replays=7)
    row: dict[str, Any] = {
        "q_heads": cell.q_heads, "kv_heads": cell.kv_heads, "head_dim": cell.head_dim, "batch": cell.batch,
        "context": cell.context, "page": cell.page, "dtype": cell.dtype, "kv_bytes": cell.kv_bytes,
        "layers": len(state.kv), "launch": launch.to_dict(),
    }  # fmt: skip
    for name, graph in graphs.items():
        row[f"{name}_us"], row[f"{name}_spread"] = round(graph.median_us, 3), round(graph.spread, 4)
    for name, error in errors.items():
        row[f"{name}_relative_error"] = error
    row["stream_us"] = round(best_stream_us(state, sm_count), 3)
    return row


def variants(cell: Cell, sm_count: int) -> list[dict[str, Any]]:
    """Other launches of a cell, stage 1, merge and both: what a cost model is checked against."""
    state, chosen = cell.allocate(), default_launch(cell)
    rows: list[dict[str, Any]] = []
    for factor in (0.25, 0.5, 2.0):
        count = max(1, round(chosen.num_splits * factor))
        launch = default_launch(cell, num_splits=count)
        if launch in (chosen, *(r["config"] for r in rows)):
            continue
        row: dict[str, Any] = {"cell": str(cell), "kv_bytes": cell.kv_bytes, "config": launch}
        for run in ("both",) if launch.direct else ("both", "stage1", "merge"):
            row[f"{run}_us"] = round(time_layers(state, ours(state, launch, run), 5).median_us, 3)
        rows.append(row)
    return [{**row, "config": row["config"].to_dict()} for row in rows]


def fastest_peer(row: dict[str, Any], recorded: dict[Any, Any]) -> tuple[str, float]:
    times = {name: row[f"{name}_us"] for name in ("vllm_triton", "sglang_triton", "flash_attention_3")}
    then = recorded.get((row["q_heads"], row["kv_heads"], row["batch"], row["context"]), {})
    if then.get("flashinfer_0_2_6_us"):
        scale = row["flash_attention_3_us"] / then["flash_attention_3_us"]
        times["flashinfer (scaled)"] = round(then["flashinfer_0_2_6_us"] * scale, 2)
    name = min(times, key=times.__getitem__)
    return name, times[name]


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def markdown(result: dict[str, Any], command: str) -> str:
    rows = [r for r in result["cells"] if r["dtype"] == "bf16"]
    small = [r["speedup"] for r in rows if r["kv_bytes"] < 64e6]
    alone = [r["fastest_peer_us"] / r["ours_alone_us"] for r in rows if r["kv_bytes"] < 64e6]
    lost = [r for r in rows if r["speedup"] < 1]
    peak = result["stream_peak_bytes_per_s"]

    def marked(row: dict[str, Any], name: str) -> str:
        loose = row[f"{name}_spread"] > SPREAD_BOUND
        return f"{row[f'{name}_us']:.2f}{'*' if loose else ''}"

    lines = [
        "# The bundled kernels beside the peers",
        "",
        f"Made by `{command}`.",
        "",
        *(f"- {key}: {value}" for key, value in result["gpu_before"].items()),
        f"- the same after: {list(result['gpu_after'].values())[-1]}",
        "- bf16 unless said, page 16 shuffled, cold L2: one CUDA graph over layers with their own KV (8 times the L2 "
        "in total, 2 to 32 layers), candidates taking turns, medians of 15 or more replays, µs per layer; "
        "* (max - min) / median above 5 % after a second try",
        f"- read-only stream, best over all cells: {peak / 1e12:.3f} TB/s",
        "",
        f"Below 64 MB of KV, geometric mean over {len(small)} cells: {geometric_mean(small):.2f}× the fastest peer "
        f"({geometric_mean(alone):.2f}× without overlapping the previous layer). "
        + (f"Cells lost: {len(lost)} of {len(rows)}." if lost else f"No cell of {len(rows)} is lost."),
        "",
        "| q/kv heads, B, L | KV MB | ours | ours, alone | stage 1 | merge | splits | tile, warps, stages "
        "| vLLM Triton | SGLang Triton | FA3 | fastest peer | speed-up "
        "| stream, same bytes | share of that | of the best stream rate |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        launch = r["launch"]
        lines.append(
            f"| {r['q_heads']}/{r['kv_heads']}, {r['batch']}, {r['context']} | {r['kv_bytes'] / 1e6:.1f} | "
            f"{marked(r, 'ours')} | {marked(r, 'ours_alone')} | {r.get('stage1_us', '')} | {r.get('merge_us', '')} | "
            f"{launch['num_splits']} | {launch['tile_keys']}, {launch['warps']}, {launch['stages']} | "
            f"{marked(r, 'vllm_triton')} | {marked(r, 'sglang_triton')} | {marked(r, 'flash_attention_3')} | "
            f"{r['fastest_peer']} {r['fastest_peer_us']:.2f} | {r['speedup']:.2f} | {r['stream_us']:.2f} | "
            f"{r['stream_us'] / r['ours_us']:.1%} | {r['kv_bytes'] / peak * 1e6 / r['ours_us']:.1%} |"
        )
    lines += ["", "## FP8 cache (e4m3)", "", "| q/kv heads, B, L | FP8 MB | bf16 | FP8 | faster | stream, same bytes |",
              "|---|---|---|---|---|---|"]  # fmt: skip
    for r in result["cells"]:
        if r["dtype"] == "fp8":
            lines.append(
                f"| {r['q_heads']}/{r['kv_heads']}, {r['batch']}, {r['context']} | {r['kv_bytes'] / 1e6:.1f} | "
                f"{r['bf16_us']:.2f} | {r['ours_us']:.2f} | {r['bf16_us'] / r['ours_us']:.2f}× | {r['stream_us']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", help="folder that kernels_peers.py filled")
    parser.add_argument(
        "--render", action="store_true", help="only write the table again, from the JSON of an earlier run"
    )
    parser.add_argument("--out", required=True, help="path without suffix: .json and .md are written")
    parser.add_argument("--recorded", help="JSON of peers timed on another day, for FlashInfer")
    parser.add_argument("--variants", action="store_true", help="also time other split counts (slower)")
    args = parser.parse_args()
    if args.render:
        stored = json.loads(Path(args.out).with_suffix(".json").read_text())
        Path(args.out).with_suffix(".md").write_text(markdown(stored, stored["command"]))
        return
    torch.manual_seed(0)
    peers = Peers(args.peers)
    sm_count = torch.cuda.get_device_properties(0).multi_processor_count
    recorded = {}
    if args.recorded:
        for cell in json.loads(Path(args.recorded).read_text())["cells"]:
            recorded[cell["q_heads"], cell["kv_heads"], cell["batch"], cell["context"]] = cell
    result: dict[str, Any] = {"gpu_before": gpu_state(), "cells": [], "variants": []}
    for cell in PEER_CELLS:
        row = time_cell(cell, peers, sm_count)
        row["fastest_peer"], row["fastest_peer_us"] = fastest_peer(row, recorded)
        row["speedup"] = row["fastest_peer_us"] / row["ours_us"]
        result["cells"].append(row)
        print(f"{cell}: {row['ours_us']} µs, alone {row['ours_alone_us']}, {row['speedup']:.2f}x "
              f"{row['fastest_peer']}, stream {row['stream_us']}, spread {row['ours_spread']}", flush=True)  # fmt: skip
        torch.cuda.empty_cache()
    for cell in FP8_CELLS:
        row = time_cell(cell, None, sm_count)
        twin = Cell(cell.q_heads, cell.kv_heads, cell.head_dim, cell.batch, cell.context)
        known = [
            r
            for r in result["cells"]
            if r["dtype"] == "bf16"
            and Cell(*(r[f] for f in ("q_heads", "kv_heads", "head_dim", "batch", "context"))) == twin
        ]
        row["bf16_us"] = known[0]["ours_us"] if known else time_cell(twin, None, sm_count)["ours_us"]
        result["cells"].append(row)
        print(f"{cell}: {row['ours_us']} µs, {row['bf16_us'] / row['ours_us']:.2f}x bf16", flush=True)
        torch.cuda.empty_cache()
    if args.variants:
        for cell in PEER_CELLS:
            result["variants"] += variants(cell, sm_count)
            torch.cuda.empty_cache()
    result["stream_peak_bytes_per_s"] = max(r["kv_bytes"] / r["stream_us"] * 1e6 for r in result["cells"])
    result["gpu_after"] = gpu_state()
    result["command"] = "python -m benchmarks.kernels_vs_peers .peers --out reports/h200/kernels-vs-peers" + (
        " --recorded RECORDED" if args.recorded else "") + (" --variants" if args.variants else "")  # fmt: skip
    Path(args.out).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    text = markdown(result, result["command"])
    Path(args.out).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

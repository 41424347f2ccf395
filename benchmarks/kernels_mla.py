"""Times the bundled kernels on latent attention beside FlashMLA, over query heads, batches and lengths.

    python -m benchmarks.kernels_peers .peers --only flashmla
    python -m benchmarks.kernels_mla .peers --out reports/h200/mla-vs-flashmla

The protocol is that of `kernels_timing.py`: layers with their own KV in one CUDA graph, cold L2, candidates taking
turns. Pages of 64 keys, bf16. FlashMLA's schedule is made before the graph. `--render` writes the table again from the
JSON of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADS = (16, 32, 64, 128)
# (requests, keys)
STEPS = (
    (1, 1024), (1, 4096), (1, 16384), (1, 65536), (4, 2048), (16, 2048), (16, 8192), (64, 2048), (64, 8192),
    (128, 4096),
)  # fmt: skip
WIDTH, VALUE, PAGE = 576, 512, 64
FLOP_PER_KEY_AND_HEAD = 2 * (WIDTH + VALUE)
REPLAYS, TURNS = 4, 4
TIE = 0.99  # A cell whose ratio of FlashMLA's time to ours is at least this is not lost.


class Step:
    """One cell's tensors: layers of latents, queries, page table and lengths."""

    def __init__(self, heads: int, batch: int, keys: int) -> None:
        import torch

        from benchmarks.kernels_timing import L2_MULTIPLE

        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        layers = max(2, min(32, math.ceil(L2_MULTIPLE * l2 / (batch * keys * WIDTH * 2))))
        pages = batch * keys // PAGE

        def random(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

        self.kv = [random(pages, PAGE, 1, WIDTH) for _ in range(layers)]
        self.table = torch.randperm(pages, device="cuda").int().view(batch, -1)
        self.lens = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        self.q = random(batch, heads, WIDTH)

    def ours(self, config: Any) -> tuple[Callable[[Any], Any], Any]:
        """A call of our kernels on one layer, and where it writes."""
        import torch

        from decodecalc_kernels import Workspace, decode_attention

        tokens, heads, _ = self.q.shape
        space = None if config.direct else Workspace.allocate(tokens, heads, VALUE, config.num_splits, "cuda")
        out = torch.empty(tokens, heads, VALUE, device="cuda", dtype=torch.bfloat16)

        def call(kv: Any) -> Any:
            return decode_attention(
                self.q, kv, None, seq_lens=self.lens, page_table=self.table, v_dim=VALUE, config=config,
                workspace=space, out=out,
            )  # fmt: skip

        return call, out

    def flashmla(self) -> tuple[Callable[[Any], Any], Any]:
        """A call of FlashMLA on one layer, and where it writes. Its first call makes the schedule."""
        import torch
        from vllm.third_party.flashmla.flash_mla_interface import FlashMLASchedMeta, flash_mla_with_kvcache

        schedule, (tokens, heads, _) = FlashMLASchedMeta(), self.q.shape
        out = torch.empty(tokens, heads, VALUE, device="cuda", dtype=torch.bfloat16)

        def call(kv: Any) -> Any:
            return flash_mla_with_kvcache(
                self.q[:, None], kv, self.table, self.lens, VALUE, schedule, softmax_scale=WIDTH**-0.5, causal=True,
                out=out[:, None],
            )  # fmt: skip

        return call, out


def time_cell(heads: int, batch: int, keys: int) -> dict[str, Any]:
    """One cell: times in microseconds, the launch, the predicted time, and how far the outputs lie apart."""
    from benchmarks.kernels_timing import relative_error, time_in_turns
    from decodecalc import Batch, Geometry, KvCache, detect_gpu, plan, predict
    from decodecalc.cost.launcher import launch_config

    gpu, step = detect_gpu(), Step(heads, batch, keys)
    geo, lengths, cache = Geometry(heads, 1, WIDTH, VALUE, mla=True), Batch.uniform(batch, keys), KvCache("bf16", PAGE)
    launch = launch_config(geo, lengths, cache, gpu)
    plain = launch_config(geo, lengths, cache, gpu.with_(compute_capability=None))
    calls = {"flashmla": step.flashmla(), "ours": step.ours(launch)}
    if plain != launch:
        calls["plain"] = step.ours(plain)
    graphs = time_in_turns({name: call for name, (call, _) in calls.items()}, step.kv, REPLAYS, TURNS)
    for call, _ in calls.values():
        call(step.kv[0])
    return {
        "q_heads": heads,
        "batch": batch,
        "keys": keys,
        "launch": launch.to_dict(),
        "plain_launch": plain.to_dict(),
        "against_flashmla": relative_error(calls["ours"][1], calls["flashmla"][1].double()),
        "predicted_us": round(predict(plan("bundled", geo, lengths, kv=cache, gpu=gpu)).known_s * 1e6, 2),
        **{f"{name}_us": round(graph.median_us, 2) for name, graph in graphs.items()},
        **{f"{name}_spread": round(graph.spread, 3) for name, graph in graphs.items()},
    }


def time_cells(peers: Path) -> list[dict[str, Any]]:
    """Every cell."""
    import torch

    from decodecalc.verify.own.peers import use_folder

    use_folder(peers)
    rows = []
    for heads in HEADS:
        for batch, keys in STEPS:
            rows.append(time_cell(heads, batch, keys))
            print(heads, batch, keys, rows[-1]["flashmla_us"], rows[-1]["ours_us"], flush=True)
            torch.cuda.empty_cache()
    return rows


def speedup(row: dict[str, Any]) -> float:
    """FlashMLA's time over ours."""
    return float(row["flashmla_us"] / row["ours_us"])


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each number of heads and one for all: geometric mean, cells lost, worst, error of the prediction."""
    lines = [
        "| query heads | geometric mean | lost (below 0.99) | worst | prediction, median | largest |",
        "|---|---|---|---|---|---|",
    ]
    for heads in (*HEADS, None):
        some = [r for r in rows if heads in (None, r["q_heads"])]
        ratios = [speedup(r) for r in some]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        errors = sorted(abs(r["predicted_us"] / r["ours_us"] - 1) for r in some)
        lost = f"{sum(x < TIE for x in ratios)} of {len(some)}"
        worst, median, largest = f"{min(ratios):.3f}", f"{errors[len(errors) // 2]:.1%}", f"{errors[-1]:.1%}"
        lines.append(f"| {heads or 'all'} | {mean:.2f} | {lost} | {worst} | {median} | {largest} |")
    return lines


def markdown(result: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# Latent attention beside FlashMLA",
        "",
        f"Made by {result['command']}.",
        "",
        *(f"- {key}: {value}" for key, value in result["gpu"].items()),
        "- bf16 latent of 576 elements (512 of them the value), pages of 64 keys in random order, cold L2: one CUDA "
        "graph over 2 to 32 layers with their own KV, candidates taking turns, medians of 16 replays, µs per layer",
        "- FlashMLA: dense decode of vLLM 0.33.0; its schedule is made before the graph",
        "- plain: the kernel for every GPU under its best launch, where ours is the kernel for Hopper's warp groups",
        "",
        *summary(result["cells"]),
        "",
        "| heads, B, L | FlashMLA | ours | speed-up | plain | kernel | splits | predicted | TFLOP/s | TB/s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in result["cells"]:
        keys, seconds = r["batch"] * r["keys"], r["ours_us"] * 1e-6
        flop = keys * r["q_heads"] * FLOP_PER_KEY_AND_HEAD
        lines.append(
            f"| {r['q_heads']}, {r['batch']}, {r['keys']} | {r['flashmla_us']:.2f} | {r['ours_us']:.2f} | "
            f"{speedup(r):.3f} | {r.get('plain_us', '')} | {r['launch']['kernel']} | {r['launch']['num_splits']} | "
            f"{r['predicted_us']:.2f} | {flop / seconds / 1e12:.0f} | {keys * WIDTH * 2 / seconds / 1e12:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Time, or render what was timed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", type=Path, help="folder that kernels_peers.py filled")
    parser.add_argument("--out", required=True, type=Path, help="path without suffix: .json and .md are written")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    args = parser.parse_args()
    if args.render:
        result = json.loads(args.out.with_suffix(".json").read_text())
    else:
        from benchmarks.kernels_timing import gpu_state

        result = {"command": "`python -m benchmarks.kernels_mla .peers --out reports/h200/mla-vs-flashmla`"}
        result.update(gpu=gpu_state(), cells=time_cells(args.peers))
        args.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(markdown(result))
    print("\n".join(summary(result["cells"])))


if __name__ == "__main__":
    main()

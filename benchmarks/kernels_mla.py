"""Times the bundled kernels on latent attention beside FlashMLA, over query heads, batches and lengths.

    python -m benchmarks.kernels_peers .peers --only flashmla
    python -m benchmarks.kernels_mla .peers --out reports/h200/mla-vs-flashmla

    python -m benchmarks.kernels_mla .peers --only sparse,fp8,pages --out latents-other

The protocol is that of `kernels_timing.py`: layers with their own KV in one CUDA graph, cold L2, candidates taking
turns. Pages of 64 keys, bf16. FlashMLA's schedule is made before the graph. `--render` writes the table again from the
JSON of an earlier run.

Beside the dense steps there are sparse ones (lists of 2048 slots, beside both of FlashMLA's sparse kernels), those over
an FP8 cache and steps with other page sizes, each against the kernel for every GPU and the time that the bytes take.
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


SPARSE = tuple((heads, batch, 2048) for heads in (16, 128) for batch in (1, 16, 64))
FP8 = tuple((heads, *step) for heads in (16, 64, 128) for step in ((1, 16384), (16, 8192), (64, 8192)))
PAGES = tuple((heads, batch, 8192, page) for heads in (32, 128) for batch in (1, 64) for page in (1, 16))
POOL = 16384  # slots of each request that a sparse step's list chooses from
DS_MLA_BYTES = 656  # of a key: 512 in E4M3, four fp32 scales, 64 elements in bf16
STREAM = 4.56e12  # bytes per second, see kernels/NOTES.md
MOST_LAYERS = 128  # of a sparse step


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


class Other:
    """One step that is not dense bf16 in pages of 64: layers of latents as {name: tensor}, and calls of our kernels."""

    def __init__(self, heads: int, batch: int, keys: int, page: int, pool: int, dtypes: tuple[str, ...]) -> None:
        import torch

        from benchmarks.kernels_timing import DTYPES, L2_MULTIPLE

        l2, sparse = torch.cuda.get_device_properties(0).L2_cache_size, pool > keys
        read = batch * keys * WIDTH * min(DTYPES[name].itemsize for name in dtypes)
        layers = max(2, min(MOST_LAYERS if sparse else 32, math.ceil(L2_MULTIPLE * l2 / read)))
        self.keys, self.page, self.sparse, self.batch = keys, page, sparse, batch

        def latents() -> dict[str, Any]:
            made = torch.randn(batch * pool // page, page, 1, WIDTH, device="cuda", dtype=torch.bfloat16)
            kinds = {name: made.to(DTYPES[name]) for name in dtypes}
            return {**kinds, "ds_mla": ds_mla(made)} if sparse else kinds

        self.kv = [latents() for _ in range(layers)]
        if sparse:
            self.table = torch.stack([torch.randperm(batch * pool, device="cuda")[:keys] for _ in range(batch)]).int()
        else:
            self.table = torch.randperm(batch * keys // page, device="cuda").int().view(batch, -1)
        self.lens = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        self.q = torch.randn(batch, heads, WIDTH, device="cuda", dtype=torch.bfloat16)

    def ours(self, config: Any, dtype: str) -> tuple[Callable[[Any], Any], Any]:
        """A call of our kernels on one layer, and where it writes."""
        import torch

        from decodecalc_kernels import Workspace, decode_attention

        tokens, heads, _ = self.q.shape
        space = None if config.direct else Workspace.allocate(tokens, heads, VALUE, config.num_splits, "cuda")
        out = torch.empty(tokens, heads, VALUE, device="cuda", dtype=torch.bfloat16)

        def call(layer: Any) -> Any:
            return decode_attention(
                self.q, layer[dtype], None, seq_lens=self.lens, page_table=self.table, v_dim=VALUE, config=config,
                workspace=space, out=out, holes=self.sparse,
            )  # fmt: skip

        return call, out

    def sparse_bf16(self) -> tuple[Callable[[Any], Any], Any]:
        """FlashMLA's sparse kernel for bf16 caches (its prefill kernel, which vLLM decodes with)."""
        import torch
        from vllm.third_party.flashmla.flash_mla_interface import flash_mla_sparse_fwd

        out = torch.empty(*self.q.shape[:2], VALUE, device="cuda", dtype=torch.bfloat16)
        lists = self.table[:, None]

        def call(layer: Any) -> Any:
            flat = layer["bf16"].view(-1, 1, WIDTH)
            return flash_mla_sparse_fwd(self.q, flat, lists, WIDTH**-0.5, VALUE, out=out)

        return call, out

    def sparse_fp8(self) -> tuple[Callable[[Any], Any], Any]:
        """FlashMLA's sparse decode kernel for its 656-byte keys. It takes 64 or 128 heads: fewer are padded, as vLLM
        does."""
        import torch
        from vllm.third_party.flashmla.flash_mla_interface import FlashMLASchedMeta, flash_mla_with_kvcache

        schedule, (tokens, heads, _) = FlashMLASchedMeta(), self.q.shape
        q = torch.zeros(tokens, 1, max(heads, 64), WIDTH, device="cuda", dtype=torch.bfloat16)
        q[:, 0, :heads] = self.q
        out, lists = torch.empty_like(q[..., :VALUE]).contiguous(), self.table[:, None]

        def call(layer: Any) -> Any:
            return flash_mla_with_kvcache(
                q, layer["ds_mla"], None, None, VALUE, schedule, softmax_scale=WIDTH**-0.5, is_fp8_kvcache=True,
                indices=lists, out=out,
            )  # fmt: skip

        return call, out[:, 0, :heads]


def ds_mla(latents: Any) -> Any:
    """bf16 latents as vLLM's `fp8_ds_mla`, in pages of 64 keys [pages, 64, 1, 656], with scales of one."""
    import torch

    made = torch.empty(latents.numel() // WIDTH, DS_MLA_BYTES, device="cuda", dtype=torch.uint8)
    flat = latents.view(-1, WIDTH)
    made[:, :VALUE] = flat[:, :VALUE].to(torch.float8_e4m3fn).view(torch.uint8)
    made[:, VALUE : VALUE + 16] = torch.ones(len(flat), 4, device="cuda").view(torch.uint8)
    made[:, VALUE + 16 :] = flat[:, VALUE:].contiguous().view(torch.uint8)
    return made.view(-1, PAGE, 1, DS_MLA_BYTES)


def time_other(kind: str, heads: int, batch: int, keys: int, page: int = PAGE) -> dict[str, Any]:
    """One step of another kind: times in microseconds, relative errors of outputs against ours in bf16, and what could
    not run."""
    import torch

    from benchmarks.kernels_timing import relative_error, time_in_turns
    from decodecalc import Batch, Geometry, KvCache, detect_gpu
    from decodecalc.cost.launcher import launch_config

    gpu = detect_gpu()
    sparse, plain = kind == "sparse", gpu.with_(compute_capability=None)
    dtypes = ("bf16",) if kind == "pages" else ("bf16", "fp8")
    page = 1 if sparse else page
    step = Other(heads, batch, keys, page, POOL if sparse else keys, dtypes)
    geo, lengths = Geometry(heads, 1, WIDTH, VALUE, mla=True), Batch.uniform(batch, keys)
    # Under the dense bf16 launch: the same rows, tiles and splits.
    groups = launch_config(Geometry(max(heads, 32), 1, WIDTH, VALUE, mla=True), lengths, KvCache("bf16", PAGE), gpu)
    groups = groups.replace(rows_used=min(heads, 64))
    calls: dict[str, tuple[Callable[[Any], Any], Any]] = {}
    for dtype in dtypes:
        calls[f"ours {dtype}"] = step.ours(groups, dtype)
        calls[f"plain {dtype}"] = step.ours(
            launch_config(geo, lengths, KvCache(dtype, page, None, "bf16"), plain), dtype
        )
    if sparse:
        calls.update(flashmla_bf16=step.sparse_bf16(), flashmla_fp8=step.sparse_fp8())
    failed = {}
    for name, (call, _) in list(calls.items()):
        try:
            call(step.kv[0])
            torch.cuda.synchronize()
        except Exception as error:  # a peer that does not take this shape says so in the table
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            del calls[name]
    errors = {name: relative_error(out, calls["ours bf16"][1].double()) for name, (_, out) in calls.items()}
    graphs = time_in_turns({name: call for name, (call, _) in calls.items()}, step.kv, REPLAYS, TURNS)
    return {
        "kind": kind, "q_heads": heads, "batch": batch, "keys": keys, "page": page, "splits": groups.num_splits,
        "us": {name: round(graph.median_us, 2) for name, graph in graphs.items()},
        "floor_us": {name: round(batch * keys * size / STREAM * 1e6, 2) for name, size in key_bytes(dtypes, sparse)},
        "error": errors, "failed": failed,
    }  # fmt: skip


def key_bytes(dtypes: tuple[str, ...], sparse: bool) -> list[tuple[str, int]]:
    """Bytes of a key by kind of cache."""
    own = [(name, WIDTH * (1 if name == "fp8" else 2)) for name in dtypes]
    return [*own, ("ds_mla", DS_MLA_BYTES)] if sparse else own


def time_others(peers: Path, kinds: list[str]) -> list[dict[str, Any]]:
    """Every step of these kinds."""
    import torch

    from decodecalc.verify.own.peers import use_folder

    use_folder(peers)
    rows = []
    for kind in kinds:
        for cell in {"sparse": SPARSE, "fp8": FP8, "pages": PAGES}[kind]:
            rows.append(time_other(kind, *cell))
            print(kind, *cell, rows[-1]["us"], rows[-1]["failed"] or "", flush=True)
            torch.cuda.empty_cache()
    return rows


def other_markdown(result: dict[str, Any]) -> str:
    """The table of steps of other kinds."""
    names = list(dict.fromkeys(name for row in result["cells"] for name in row["us"]))
    lines = [
        "# Latent attention: sparse lists, FP8 caches and other page sizes",
        "",
        f"Made by {result['command']}.",
        "",
        *(f"- {key}: {value}" for key, value in result["gpu"].items()),
        "- ours: the kernel for Hopper's warp groups; plain: the kernel for every GPU; µs per layer, cold L2",
        "- sparse: each request has a list of 2048 slots among 16384 of its own; FlashMLA's bf16 kernel is "
        "`flash_mla_sparse_fwd`, its FP8 kernel reads keys of 656 bytes and pads 16 heads to 64",
        "- floor: the bytes of all keys at 4.56 TB/s",
        "",
        "| kind | heads, B, keys, page | splits | " + " | ".join(names) + " | floor |",
        "|---|---|---|" + "---|" * len(names) + "---|",
    ]
    for r in result["cells"]:
        times = " | ".join(str(r["us"].get(name, "")) for name in names)
        floor = ", ".join(f"{name} {us}" for name, us in r["floor_us"].items())
        shape = f"{r['q_heads']}, {r['batch']}, {r['keys']}, {r['page']}"
        lines.append(f"| {r['kind']} | {shape} | {r['splits']} | {times} | {floor} |")
    return "\n".join(lines) + "\n"


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
    parser.add_argument(
        "--only", default="dense", help="what is timed: dense (the table), or some of sparse, fp8, pages"
    )
    parser.add_argument("--render", action="store_true", help="only write the table again")
    args = parser.parse_args()
    dense = args.only == "dense"
    if args.render:
        result = json.loads(args.out.with_suffix(".json").read_text())
    else:
        from benchmarks.kernels_timing import gpu_state

        only = "" if dense else f" --only {args.only}"
        result = {"command": f"`python -m benchmarks.kernels_mla .peers{only} --out {args.out}`", "gpu": gpu_state()}
        result["cells"] = time_cells(args.peers) if dense else time_others(args.peers, args.only.split(","))
        args.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(markdown(result) if dense else other_markdown(result))
    print("\n".join(summary(result["cells"])) if dense else other_markdown(result))


if __name__ == "__main__":
    main()

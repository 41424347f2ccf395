"""Our kernels at other shapes, on ragged steps, and with a split size that no batch changes.

    python -m benchmarks.kernels_shapes --out reports/h200/kernels-shapes           # on a GPU, about two minutes
    python -m benchmarks.kernels_shapes --out reports/h200/kernels-shapes --render  # the table again, from the JSON

Protocol: kernels_timing.py; correctness against float64 first (steps below CHECKED_BYTES). Three parts:

* shapes: head sizes, group sizes, page sizes and cache types one at a time around 32/8 heads of 128 elements, bf16,
  pages of 16 keys. Every cell has the bytes of its neighbour, the nearest power of two (of cache types: E4M3), so that
  their times are to be compared.
* ragged: random steps whose requests differ in length, launched as a grid of requests x splits and by the list of live
  splits, beside a step of as many bytes whose requests are equal.
* invariant: on the same steps, splits of one size whatever the batch, against the launch that the time model chooses.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

SMALL_BYTES, LARGE_BYTES = 24 << 20, 384 << 20
CHECKED_BYTES = 600 << 20
ERROR_BOUND = 4e-3  # bf16 weights and output, 1.6e-3 each; a rare draw is above kernels_vs_peers.py's bound
INVARIANT_KEYS = 256  # `invariant_config`'s default split
RAGGED_STEPS = 20
WORKERS = 14
HEAD_SIZES = {64: 64, 80: 64, 96: 128, 112: 128, 128: 128, 192: 256, 256: 256, 512: 512}  # and their neighbours
GROUPS = {1: 1, 4: 4, 5: 4, 6: 8, 7: 8, 8: 8, 12: 16, 16: 16, 24: 32, 32: 32, 40: 32}
PAGES = {1: 1, 2: 2, 4: 4, 8: 8, 16: 16, 24: 16, 32: 32, 64: 64, 128: 128, 256: 256, 784: 1024, 1024: 1024, 1072: 1024}
CACHES = {"fp8": "fp8", "fp8_e5m2": "fp8", "int8": "fp8", "bf16": "bf16"}


class Shape(NamedTuple):
    """A cell of the first part, by what is varied, its value, and the value of its neighbour."""

    what: str
    value: Any
    beside: Any
    large: bool

    def cell(self, neighbour: bool = False) -> Any:
        """The step to time."""
        from benchmarks.kernels_timing import DTYPES, Cell

        value = self.beside if neighbour else self.value
        batch = 16 if self.large else 4
        made: dict[str, Any] = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "page": 16, "dtype": "bf16"}
        if self.what == "group":
            made.update(q_heads=4 * value, kv_heads=4)
        else:
            made[{"head size": "head_dim", "page": "page", "cache": "dtype"}[self.what]] = value
        key_bytes = 2 * made["kv_heads"] * made["head_dim"] * DTYPES[made["dtype"]].itemsize
        context = (LARGE_BYTES if self.large else SMALL_BYTES) // key_bytes // batch
        return Cell(**made, batch=batch, context=context)


def shapes() -> Iterator[Shape]:
    for what, values in (("head size", HEAD_SIZES), ("group", GROUPS), ("page", PAGES), ("cache", CACHES)):
        for value, beside in values.items():
            for large in (False, True):
                yield Shape(what, value, beside, large)


def ragged_steps(count: int = RAGGED_STEPS, seed: int = 20) -> Iterator[Any]:
    """Random steps: heads, requests and their mean length at random, each request an eighth to four times the mean."""
    from benchmarks.kernels_timing import Cell

    rng = random.Random(seed)
    number = 0
    while number < count:
        q_heads, kv_heads = rng.choice([(32, 8), (8, 1), (28, 4), (16, 2), (32, 32), (40, 8)])
        batch = round(math.exp(rng.uniform(math.log(2), math.log(96))))
        mean = math.exp(rng.uniform(math.log(300), math.log(24_000)))
        lens = [max(1, int(mean * math.exp(rng.uniform(math.log(1 / 8), math.log(4))))) for _ in range(batch)]
        cell = Cell(
            q_heads, kv_heads, 128, batch, max(lens), dtype="fp8" if number % 4 == 3 else "bf16", seq_lens=tuple(lens)
        )
        if 1e6 < cell.kv_bytes < 1.5e9:
            number += 1
            yield cell


def uniform_of(cell: Any) -> Any:
    """As many requests and (nearly) as many bytes, all requests alike."""
    from benchmarks.kernels_timing import Cell

    mean = max(1, round(sum(cell.lens) / cell.batch))
    return Cell(cell.q_heads, cell.kv_heads, cell.head_dim, cell.batch, mean, dtype=cell.dtype)


def launches(cell: Any) -> dict[str, Any]:
    """The launches of a step of the second and third part, by name."""
    from benchmarks.kernels_timing import DTYPES, default_launch
    from decodecalc_kernels import invariant_config, live

    ragged = len(set(cell.lens)) > 1

    def sized(launch: Any, split_keys: int, listed: bool = ragged) -> Any:
        """The launch with splits of so many keys, listed or not."""
        entries = sum(max(live.live_splits(n, split_keys), 1) for n in cell.lens)
        return launch.replace(
            split_rule="size", split_value=split_keys, num_splits=-(-max(cell.lens) // split_keys), listed=listed,
            list_length=entries if listed else None,
        )  # fmt: skip

    found = {"chosen": default_launch(cell)}
    chosen = found["chosen"]
    if not chosen.direct:
        found["grid" if ragged else "listed"] = sized(chosen, chosen.split_value, not ragged)
        for factor in (0.5, 0.7, 1.5, 2.2) if ragged else ():
            size = max(1, round(factor * chosen.split_value / chosen.tile_keys)) * chosen.tile_keys
            if size != chosen.split_value:
                found[f"other {factor}"] = sized(chosen, size)
    for keys in (128, INVARIANT_KEYS, 512):
        fixed = invariant_config(
            q_heads=cell.q_heads, kv_heads=cell.kv_heads, head_dim=cell.head_dim, max_seq_len=max(cell.lens),
            split_keys=keys, kv_bytes_per_element=DTYPES[cell.dtype].itemsize,
        )  # fmt: skip
        found[f"invariant {keys}"] = sized(fixed, fixed.split_value)
    return found


def warm(work: list[tuple[Any, bool]]) -> None:
    """Compile what these cells run, with all launches or the chosen one (Triton keeps it on disk for the others)."""
    import torch

    from benchmarks.kernels_timing import default_launch, ours

    for cell, every in work:
        state = cell.allocate(layers=1)
        for launch in launches(cell).values() if every else (default_launch(cell),):
            ours(state, launch)(state.kv[0])
        torch.cuda.synchronize()
        del state
        torch.cuda.empty_cache()


def time_shape(shape: Shape, known: dict[Any, Any]) -> dict[str, Any]:
    """One row of the first part; `known`: cells that were timed already."""
    row: dict[str, Any] = {"what": shape.what, "value": shape.value, "beside": shape.beside, "large": shape.large}
    for name, neighbour in (("", False), ("beside_", True)):
        cell = shape.cell(neighbour)
        if cell not in known:
            known[cell] = time_cell(cell, {"chosen": None})
        found = known[cell]["us"]["chosen"]
        row[f"{name}us"], row[f"{name}kv_bytes"] = found, cell.kv_bytes
        row[f"{name}launch"] = known[cell]["launches"]["chosen"]
        row[f"{name}error"] = known[cell]["error"]
    row["per_byte"] = (row["us"] / row["kv_bytes"]) / (row["beside_us"] / row["beside_kv_bytes"])
    return row


def time_cell(cell: Any, configs: dict[str, Any]) -> dict[str, Any]:
    """Times of a step's launches, taking turns, after their results were compared."""
    import torch

    from benchmarks.kernels_timing import default_launch, ours, relative_error, time_in_turns

    state = cell.allocate()
    configs = {name: launch or default_launch(cell) for name, launch in configs.items()}
    calls = {name: ours(state, launch) for name, launch in configs.items()}
    reference = cell.reference(state) if cell.kv_bytes <= CHECKED_BYTES else None
    error, outs = 0.0, {}
    for name, call in calls.items():
        state.out.fill_(float("nan"))
        call(state.kv[0])
        outs[name] = state.out.clone()
        if reference is not None:
            error = max(error, relative_error(state.out, reference))
        elif outs[name].isnan().any():
            error = math.inf
    for other in ("grid", "listed"):
        if other in outs and not outs[other].equal(outs["chosen"]):
            raise AssertionError(f"{cell}: the listed launch and the grid differ in bits")
    if error > ERROR_BOUND:
        raise AssertionError(f"{cell}: relative error {error:.2e}, nothing timed")
    graphs = time_in_turns(calls, state.kv, 5, 3)
    found = {
        "us": {name: round(graph.median_us, 3) for name, graph in graphs.items()},
        "spread": {name: round(graph.spread, 4) for name, graph in graphs.items()},
        "launches": {name: launch.to_dict() for name, launch in configs.items()},
        "error": error,
        "layers": len(state.kv),
    }
    del state, calls, graphs, outs, reference
    torch.cuda.empty_cache()
    return found


def time_step(cell: Any) -> dict[str, Any]:
    """One row of the second and third part."""
    uniform = uniform_of(cell)
    row = {"q_heads": cell.q_heads, "kv_heads": cell.kv_heads, "dtype": cell.dtype, "seq_lens": cell.lens,
           "kv_bytes": cell.kv_bytes, "uniform_context": uniform.context,
           "uniform_kv_bytes": uniform.kv_bytes}  # fmt: skip
    row["ragged"] = time_cell(cell, launches(cell))
    row["uniform"] = time_cell(uniform, launches(uniform))
    return row


def time_list(requests: int = 64, split_keys: int = 256) -> float:
    """Microseconds to list the live splits of a step."""
    import torch

    from benchmarks.kernels_timing import Graph
    from decodecalc_kernels import LaunchConfig, list_splits

    lens = torch.randint(1, 40_000, (requests,), device="cuda", dtype=torch.int32)
    config = LaunchConfig.fixed_size(split_keys, 40_000, listed=True)
    room = list_splits(config, lens)
    return round(Graph([lambda: list_splits(config, lens, out=room)] * 50).replay(9, warm_up=2).median_us, 3)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def markdown(result: dict[str, Any]) -> str:
    lines = ["# The bundled kernels at other shapes, on ragged steps, and batch-invariant", "",
             f"Made by `{result['command']}`.", ""]  # fmt: skip
    lines += [f"- {key}: {value}" for key, value in result["gpu"].items()]
    return "\n".join([*lines, *shape_lines(result), *step_lines(result)]) + "\n"


def shape_lines(result: dict[str, Any]) -> Iterator[str]:
    rows = result.get("shapes", [])
    if not rows:
        return
    above = [r for r in rows if r["per_byte"] > 1.1]
    yield ""
    yield "## Shapes"
    yield ""
    yield (
        f"Time per byte against the nearest power of two (of cache types: E4M3), at {SMALL_BYTES >> 20} MiB and "
        f"{LARGE_BYTES >> 20} MiB: {len(above)} of {len(rows)} are more than 10 % above it."
    )
    yield ""
    yield "| what | value | beside | small µs | TB/s | against neighbour | large µs | TB/s | against neighbour |"
    yield "|---|---|---|---|---|---|---|---|---|"
    pairs = [
        [r for r in rows if (r["what"], r["value"]) == key]
        for key in dict.fromkeys((r["what"], r["value"]) for r in rows)
    ]
    for small, large in (pair for pair in pairs if len(pair) == 2):
        numbers = [
            f"{r['us']:.2f} | {r['kv_bytes'] / r['us'] * 1e-6:.2f} | {r['per_byte']:.3f}" for r in (small, large)
        ]
        yield f"| {small['what']} | {small['value']} | {small['beside']} | {' | '.join(numbers)} |"


def step_lines(result: dict[str, Any]) -> Iterator[str]:
    rows = result.get("steps", [])
    if not rows:
        return
    bare, errors = [_ratio(r) for r in rows], [error for r in rows for error in _errors(r).values()]
    grid = [r["ragged"]["us"]["grid"] / r["ragged"]["us"]["chosen"] for r in rows if "grid" in r["ragged"]["us"]]
    yield ""
    yield "## Ragged steps"
    yield ""
    yield (
        f"Time of a step of equal requests over that of the ragged one, per byte: {geometric_mean(bare):.3f} in the "
        f"geometric mean over {len(rows)} steps, {sum(b >= 0.95 for b in bare)} of them at 0.95 or more. The grid of "
        f"requests x splits takes {geometric_mean(grid):.3f} times as long as the list of live splits, which takes "
        f"{result['list_us']:.2f} µs to make, once for all layers. The time model, as it is now, is "
        f"{sum(map(abs, errors)) / len(errors):.1%} off in the mean over {len(errors)} listed launches of these steps "
        f"(chosen ones and other split sizes), {sum(errors) / len(errors):+.1%} with the sign."
    )
    yield ""
    yield "| heads, cache, requests, keys | MB | listed µs | model | grid | other sizes | uniform | listed | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        us, uniform = r["ragged"]["us"], r["uniform"]["us"]
        others = ", ".join(f"{n.split()[1]}: {t:.2f}" for n, t in us.items() if n.startswith("other "))
        yield (
            f"| {_name(r)} | {r['kv_bytes'] / 1e6:.1f} | {us['chosen']:.2f} | "
            f"{_errors(r)['chosen']:+.1%} | {_us(us, 'grid')} | {others} | "
            f"{uniform['chosen']:.2f} | {_us(uniform, 'listed')} | {_ratio(r):.3f} |"
        )
    yield ""
    yield "## One split size for every batch"
    yield ""
    names = [n for n in rows[0]["ragged"]["us"] if n.startswith("invariant ")]
    for name in names:
        prices = [r[kind]["us"][name] / r[kind]["us"]["chosen"] for r in rows for kind in ("ragged", "uniform")]
        yield (
            f"- Splits of {name.split()[1]} keys take {geometric_mean(prices):.3f} times the time of the chosen launch "
            f"in the geometric mean over {len(prices)} steps, at most {max(prices):.2f} times."
        )
    yield ""
    columns = [
        f"{kind}: {name.replace('invariant ', '')}" for kind in ("ragged", "uniform") for name in ("chosen", *names)
    ]
    yield f"| heads, cache, requests, keys | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for r in rows:
        numbers = [f"{r[kind]['us'][n]:.2f}" for kind in ("ragged", "uniform") for n in ("chosen", *names)]
        yield f"| {_name(r)} | {' | '.join(numbers)} |"


def _errors(row: dict[str, Any]) -> dict[str, float]:
    """How far the time model is off each listed launch of a ragged step."""
    import decodecalc as dc

    geo, batch, kv = (
        dc.Geometry(row["q_heads"], row["kv_heads"], 128),
        dc.Batch(row["seq_lens"]),
        dc.KvCache(row["dtype"]),
    )
    found = {}
    for name, us in row["ragged"]["us"].items():
        launch = row["ragged"]["launches"][name]
        if name == "chosen" or name.startswith("other "):
            shape = {key: launch[key] for key in ("tile_keys", "warps", "stages")}
            split = {"split_keys": launch["split_value"]} if launch["split_rule"] == "size" else {"num_splits": 1}
            plan = dc.plan("bundled", geo, batch, kv=kv, gpu="h200", **shape, **split)
            found[name] = dc.predict(plan).known_s * 1e6 / us - 1
    return found


def _us(times: dict[str, float], name: str) -> str:
    return f"{times[name]:.2f}" if name in times else ""


def _ratio(row: dict[str, Any]) -> float:
    per_byte = row["uniform"]["us"]["chosen"] / row["uniform_kv_bytes"]
    return float(per_byte / (row["ragged"]["us"]["chosen"] / row["kv_bytes"]))


def _name(row: dict[str, Any]) -> str:
    lens = row["seq_lens"]
    return f"{row['q_heads']}/{row['kv_heads']} {row['dtype']}, {len(lens)}, {min(lens)} to {max(lens)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="path without suffix: .json and .md are written")
    parser.add_argument("--only", default="shapes,steps", help="parts: shapes, steps")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    args = parser.parse_args()
    out = Path(args.out)
    if args.render:
        result = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    else:
        for result in measure(set(args.only.split(","))):  # written as it grows: a run may be cut short
            out.with_suffix(".json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    text = markdown(result)
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    if result["wrong"]:
        raise SystemExit("\n".join(result["wrong"]))


def measure(parts: set[str]) -> Iterator[dict[str, Any]]:
    """Everything that is timed, again and again as it grows."""
    import torch

    from benchmarks.kernels_timing import gpu_state

    torch.manual_seed(0)
    wanted = list(shapes()) if "shapes" in parts else []
    steps = list(ragged_steps()) if "steps" in parts else []
    cells = [(cell, False) for cell in dict.fromkeys(shape.cell(n) for shape in wanted for n in (False, True))]
    cells += [(cell, True) for step in steps for cell in (step, uniform_of(step))]
    random.Random(0).shuffle(cells)
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        pool.map(warm, [cells[i::WORKERS] for i in range(WORKERS)])
    command = "python -m benchmarks.kernels_shapes --out reports/h200/kernels-shapes"
    result: dict[str, Any] = {"command": command, "gpu": gpu_state(), "shapes": [], "steps": [], "wrong": []}
    known: dict[Any, Any] = {}

    def keep(part: str, row: Callable[[], dict[str, Any]]) -> None:
        try:
            result[part].append(row())
        except AssertionError as wrong:
            result["wrong"].append(str(wrong))

    for shape in wanted:
        keep("shapes", partial(time_shape, shape, known))
    yield result
    result["list_us"] = time_list() if steps else 0.0
    for cell in steps:
        keep("steps", partial(time_step, cell))
        yield result


if __name__ == "__main__":
    main()

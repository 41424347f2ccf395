"""Steps whose requests share a prefix, timed both ways with the bundled kernel, against the predictions.

    python -m benchmarks.shared_prefix --predict predicted.json --seed 1 --count 60       # anywhere
    python -m benchmarks.shared_prefix --predicted predicted.json --out shared-prefix.json    # on a GPU, about a minute
    python -m benchmarks.shared_prefix --device interpreter --out /tmp/x.json     # correctness alone, tiny steps
    python -m benchmarks.shared_prefix --repredict reports/h200/shared-prefix.json    # measured steps, today's model

The steps are random: kind of layer, number of requests, length of the prefix and of the requests' own keys, which
differ from request to request in half of the steps. The requests of a step keep the prefix once: the first entries of
their page tables are the same pages. Both ways are checked against float64 before they are timed. Timing is `verify`'s
(`decodecalc/verify/run/timing.py`): CUDA graphs over several layers with their own KV, which together overflow the L2.
The columns:

* whole: one launch over all keys.
* shared: the queries folded into heads (not with one KV head), the launch over the prefix, the launch over each
  request's own keys, and the merge of the two.

and for one step in `--every`

* prefix, own: these launches alone. beside: shared less both, what the kernels beside them add. fold, merge: these two
  alone, back to back with themselves.
* early: shared, with both launches let in while what runs before them ends (`pdl="chain"`, the kernel's default). Their
  blocks then crowd on the SMs that are free first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.load import load_calibration
from decodecalc.cost.prefix import WORTH, SharedPrefix, share_prefix
from decodecalc.engines.registry import load_policy
from decodecalc.errors import DecodecalcError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, detect_gpu, load_gpu
from decodecalc.intmath import cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import load_model
from decodecalc.verify.run.device import Device, open_device
from decodecalc.verify.run.execution import execution_of
from decodecalc.verify.run.timing import BUDGET_S, captured, layers_needed, time_layers

PAGE, MLA_PAGE = 16, 64
# bf16 weights and outputs, rounded once more by each part; the interpreter truncates where a GPU rounds.
ERROR_BOUNDS = {"cuda": 6e-3, "interpreter": 1.2e-2}
MOST_POOL_BYTES = 6 << 30
MOST_LAYERS = 64
REQUESTS, PREFIX, OWN = (2, 96), (256, 32768), (32, 2048)
PARTS_S = 0.02  # replayed for each column that is no decision
MOST_PROCESSES = 14  # that compile: each holds a context on the GPU
COMPILE_S = 40  # they are not waited for any longer
SAMPLES = 3  # requests whose output is compared


class Step(NamedTuple):
    """One step to run both ways."""

    name: str
    """The kind of layer."""
    geometry: Geometry
    """The layer."""
    prefix: int
    """Keys that all requests share."""
    own: tuple[int, ...]
    """Further keys of each request."""

    @property
    def page(self) -> int:
        """Keys of a page."""
        return MLA_PAGE if self.geometry.mla else PAGE

    @property
    def batch(self) -> Batch:
        """The step as the server sees it."""
        return Batch([self.prefix + own for own in self.own])


def kinds() -> dict[str, Geometry]:
    """The layers: query heads / KV heads of 128 elements, and DeepSeek's latents with the heads of a rank of TP 8."""
    return {
        "32/8": Geometry(32, 8, 128),
        "8/1": Geometry(8, 1, 128),
        "16/2": Geometry(16, 2, 128),
        "mla 16": load_model("deepseek-v3").shard(8).layer_groups[0].geometry,
    }


def random_steps(seed: int, count: int) -> list[Step]:
    """Steps from hardly worth it to plainly worth it; the kinds take turns, so that a run that is cut short has all."""
    draw, layers = random.Random(seed), list(kinds().items())

    def between(low: int, high: int) -> int:
        return round(math.exp(draw.uniform(math.log(low), math.log(high))))

    found = []
    for number in range(count):
        name, geo = layers[number % len(layers)]
        requests, mean = between(*REQUESTS), between(*OWN)
        own = [mean] * requests
        if draw.random() < 0.5:
            own = [max(1, round(mean * draw.uniform(0.25, 1.75))) for _ in own]
        page = MLA_PAGE if geo.mla else PAGE
        found.append(Step(name, geo, round_up(between(*PREFIX), page), tuple(own)))
    return found


def tiny_steps() -> list[Step]:
    """For the interpreter."""
    return [
        Step("4/2", Geometry(4, 2, 32), 64, (20, 20, 20)),
        Step("4/1", Geometry(4, 1, 32), 32, (17, 5)),
    ]


class Launch:
    """One launch of the bundled kernel over a part of the step, on buffers of its own.

    behind_another: the launch before it in the stream is not its like. Its blocks then wait until that is over, because
    blocks that come early go where an SM is free first, two to one SM while the next has none.
    """

    def __init__(self, plan: LaunchPlan, table: Any, keys: Any, values: Any, calibration: Calibration) -> None:
        import torch

        from decodecalc_kernels import Workspace

        run = execution_of(plan, calibration)
        if run.unsupported:
            raise DecodecalcError(run.unsupported)
        geo, batch, device = plan.geometry, plan.batch, keys.device
        self._chained = run.timed or run.launch
        self._behind = replace(self._chained, pdl="merge")
        self._keys, self._values = keys, values
        self._workspace = Workspace.allocate(
            batch.query_tokens, geo.q_heads, geo.v_dim, self._chained.num_splits, str(device), batch.query_tokens
        )
        self._arguments: dict[str, Any] = {
            "page_table": table, "q_len": batch.max_q_len, "window": run.window,
            "seq_lens": torch.tensor(batch.seq_lens, dtype=torch.int32, device=device),
        }  # fmt: skip
        if geo.mla:
            self._arguments["v_dim"] = geo.v_dim
        if run.split_values is not None:
            self._arguments["split_values"] = torch.tensor(run.split_values, dtype=torch.int32, device=device)

    def __call__(self, q: Any, layer: int, out: Any, lse: Any = None, behind_another: bool = False) -> None:
        from decodecalc_kernels import decode_attention

        values = None if self._values is None else self._values[layer]
        decode_attention(
            q, self._keys[layer], values, config=self._behind if behind_another else self._chained,
            workspace=self._workspace, out=out, lse=lse,
            **self._arguments,
        )  # fmt: skip


class BothWays:
    """The tensors of a step and its launches."""

    def __init__(
        self, step: Step, found: SharedPrefix, device: Device, calibration: Calibration, most_layers: int = 0
    ) -> None:
        import torch

        geo, page, requests = step.geometry, step.page, len(step.own)
        shared, each = step.prefix // page, [cdiv(own, page) for own in step.own]
        pages = shared + sum(each)
        key_bytes = int(found.whole[0].kv.bytes_per_key(geo))
        pool = pages * page * key_bytes
        if not most_layers:
            # The layers' keys overflow the L2 as a whole, and where memory allows also those of each launch alone.
            least = min(step.prefix, sum(step.own)) * key_bytes
            enough = layers_needed(pool, pool, device.l2_bytes, device.free_bytes())[0] if device.is_cuda else 2
            wanted = layers_needed(least, pool, device.l2_bytes, device.free_bytes())[0] if device.is_cuda else 2
            most_layers = max(enough, min(wanted, MOST_LAYERS, MOST_POOL_BYTES // pool))
        self.layers = max(2, most_layers)
        l2_bytes = device.l2_bytes or 0
        self.cold = not device.is_cuda or self.layers * pool >= 2 * l2_bytes
        self.parts_cold = self.layers * min(step.prefix, sum(step.own)) * key_bytes >= 2 * l2_bytes
        at: dict[str, Any] = {"device": device.torch_name, "dtype": torch.bfloat16}
        torch.manual_seed(0)
        shape = (self.layers, pages, page, geo.kv_heads)
        keys = torch.randn((*shape, geo.head_dim), **at)
        values = None if geo.mla else torch.randn((*shape, geo.v_dim), **at)
        order = torch.randperm(pages).int()
        prefix, rest = order[:shared], order[shared:].split(each)
        tables = {
            "whole": _table([torch.cat([prefix, mine]) for mine in rest], device.torch_name),
            "prefix": _table([prefix], device.torch_name),
            "own": _table(rest, device.torch_name),
        }
        self.step, self.keys, self.values, self.tables = step, keys, values, tables
        plans = {"whole": found.whole[0], "prefix": found.prefix[0], "own": found.suffix[0]}
        self._launches = {
            name: Launch(plan, self.tables[name], keys, values, calibration) for name, plan in plans.items()
        }
        rows = (requests, geo.q_heads)
        self.q = torch.randn((*rows, geo.head_dim), **at)
        self._folded = torch.empty((1, rows[0] * rows[1], geo.head_dim), **at)
        self._states = torch.zeros((2, *rows, geo.v_dim), **at)
        self._sums = torch.zeros((2, *rows), device=device.torch_name)
        self.out = {name: torch.zeros((*rows, geo.v_dim), **at) for name in ("whole", "shared")}
        self._geo = geo

    def whole(self, layer: int) -> None:
        """One launch over all keys."""
        self._launches["whole"](self.q, layer, self.out["whole"])

    def fold(self, layer: int) -> None:
        """The queries as heads of one token."""
        from decodecalc_kernels import fold_tokens

        self._q = fold_tokens(self.q, self._geo.kv_heads, self._folded)

    def prefix(self, layer: int, behind_another: bool = False) -> None:
        """The launch over the shared keys; `fold` comes before the first."""
        flat = self._q.shape[1]
        out, lse = self._states[0].view(1, flat, self._geo.v_dim), self._sums[0].view(1, flat)
        self._launches["prefix"](self._q, layer, out, lse, behind_another)

    def own(self, layer: int, behind_another: bool = False) -> None:
        """The launch over each request's own keys."""
        self._launches["own"](self.q, layer, self._states[1], self._sums[1], behind_another)

    def merge(self, layer: int) -> None:
        """Both outputs as one."""
        from decodecalc_kernels import merge_outputs

        group = self._geo.q_heads // self._geo.kv_heads
        merge_outputs(self._states, self._sums, out=self.out["shared"], folded_group=group)

    def shared(self, layer: int) -> None:
        """All kernels of a layer whose prefix is attended apart."""
        self.fold(layer)
        self.prefix(layer, behind_another=True)
        self.own(layer, behind_another=True)
        self.merge(layer)

    def early(self, layer: int) -> None:
        """The same, with both launches let in early."""
        for part in (self.fold, self.prefix, self.own, self.merge):
            part(layer)

    def replay_differs(self) -> int:
        """Elements that a graph over all layers, whose launches overlap, leaves other than the last layer by itself."""
        import torch

        def every_layer() -> None:
            for layer in range(self.layers):
                self.shared(layer)

        self.shared(0)
        captured(every_layer).replay()
        torch.cuda.synchronize()
        left = self.out["shared"].clone()
        self.shared(self.layers - 1)
        torch.cuda.synchronize()
        return int((left != self.out["shared"]).sum())

    def errors(self) -> dict[str, float]:
        """Greatest relative error of a sampled request, by either way, against float64 over all keys."""
        import torch

        from decodecalc_kernels import decode_attention_reference

        self.whole(0)
        self.shared(0)
        found = dict.fromkeys(self.out, 0.0)
        requests = len(self.step.own)
        lens = [self.step.prefix + own for own in self.step.own]
        for request in sorted({0, requests // 2, requests - 1})[:SAMPLES]:
            more = {"v_dim": self._geo.v_dim} if self._geo.mla else {}
            right, _ = decode_attention_reference(
                self.q[request : request + 1], self.keys[0], None if self.values is None else self.values[0],
                page_table=self.tables["whole"][request : request + 1],
                seq_lens=torch.tensor([lens[request]], dtype=torch.int32, device=self.q.device),
                **more,
            )  # fmt: skip
            for name, out in self.out.items():
                wrong = torch.linalg.vector_norm(out[request].double() - right[0].double())
                found[name] = max(found[name], float(wrong / torch.linalg.vector_norm(right.double())))
        return found


def _table(pages: Sequence[Any], device: str) -> Any:
    """A page table of these pages of each request, in rows of equal length."""
    import torch

    columns = round_up(max(len(row) for row in pages) + 1, 16)
    out = torch.full((len(pages), columns), 2**31 - 1, dtype=torch.int32)
    for line, row in zip(out, pages):
        line[: len(row)] = row
    return out.to(device)


def predicted(step: Step, gpu: Gpu, calibration: Calibration) -> SharedPrefix:
    """The step both ways, planned and priced."""
    kv = KvCache("bf16", step.page)
    return share_prefix(
        load_policy("bundled"), step.geometry, step.batch, step.prefix, kv, gpu, calibration=calibration
    )


def row_of(step: Step, found: SharedPrefix) -> dict[str, Any]:
    """The step and what is predicted of it."""
    return {
        "layer": step.name, "requests": len(step.own), "prefix": step.prefix, "own": list(step.own),
        "predicted": {
            "whole": found.whole_s, "whole_apart": found.whole[1].total_s, "shared": found.total_s,
            "prefix": found.prefix_s, "own": found.suffix[1].total_s, "beside": found.kernels_s,
        },
        "grids": [list(plan.stage1.grid) for plan, _ in (found.whole, found.prefix, found.suffix)],
    }  # fmt: skip


def step_of(row: Mapping[str, Any]) -> Step:
    """The step of a row."""
    return Step(row["layer"], kinds()[row["layer"]], row["prefix"], tuple(row["own"]))


def judged(row: dict[str, Any]) -> None:
    """Whether the prediction decides as the measurement does, and whether the measurement hardly tells: the gain is
    below `WORTH` of the time. Such a step counts as right."""
    measured, said = row["measured"], row["predicted"]
    gain = measured["whole"] - measured["shared"]
    row["close"] = abs(gain) < WORTH * measured["whole"]
    row["decision"] = (gain > 0) == (said["whole"] > said["shared"]) or row["close"]


def repredicted(row: Mapping[str, Any], gpu: Gpu, calibration: Calibration) -> dict[str, Any]:
    """A measured row with today's predictions beside those that were `written` down before the measurement."""
    now = {**row, "written": row.get("written", row["predicted"])}
    now["predicted"] = row_of(step_of(row), predicted(step_of(row), gpu, calibration))["predicted"]
    judged(now)
    return now


def run_step(step: Step, device: Device, gpu: Gpu, calibration: Calibration, parts: bool) -> dict[str, Any]:
    """One row: predicted, and where there are clocks measured. parts: also what is no decision."""
    found = predicted(step, gpu, calibration)
    both = BothWays(step, found, device, calibration)
    row = {**row_of(step, found), "layers": both.layers, "cold": both.cold, "errors": both.errors()}
    row["parts_cold"] = both.parts_cold
    row["correct"] = all(error <= ERROR_BOUNDS[device.kind] for error in row["errors"].values())
    if not device.is_cuda:
        return row
    if parts:
        row["replay_differs"] = both.replay_differs()
        row["correct"] &= row["replay_differs"] == 0
    columns: dict[str, Callable[[int], None]] = {"whole": both.whole, "shared": both.shared}
    if parts:
        columns |= {"early": both.early, "prefix": both.prefix, "own": both.own, "merge": both.merge}
        if step.geometry.kv_heads > 1:
            columns["fold"] = both.fold
    timed = {
        name: time_layers(part, both.layers, both.cold, BUDGET_S if name in ("whole", "shared") else PARTS_S)
        for name, part in columns.items()
    }
    row["measured"] = measured = {name: t.median_s for name, t in timed.items()}
    row["flagged"] = [name for name, t in timed.items() if t.flagged]
    if parts:
        measured["beside"] = measured["shared"] - measured["prefix"] - measured["own"]
    judged(row)
    return row


def compile_step(step: Step) -> None:
    """Run one layer both ways, so that its kernels lie in Triton's cache."""
    device, gpu = open_device("cuda"), detect_gpu()
    calibration = load_calibration(None, gpu)
    both = BothWays(step, predicted(step, gpu, calibration), device, calibration, most_layers=2)
    both.whole(0)
    both.shared(0)
    both.early(0)
    device.synchronize()
    device.free_memory()


def compile_all(steps: Sequence[Step]) -> None:
    """Compile the kernels of all steps in several processes; one after the other they would take minutes."""
    import multiprocessing

    count = min((os.cpu_count() or 2) - 1, MOST_PROCESSES, len(steps))
    if count > 1:
        until = time.monotonic() + COMPILE_S
        with multiprocessing.get_context("spawn").Pool(count) as pool:
            for result in [pool.apply_async(compile_step, (step,)) for step in steps]:
                try:
                    result.get(max(until - time.monotonic(), 0.1))
                except (DecodecalcError, RuntimeError, ValueError, multiprocessing.TimeoutError):
                    continue  # it is compiled, or fails again, where it is timed


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in microseconds, measured (predicted)."""
    names = ("whole", "shared", "prefix", "own", "beside")
    head = f"{'layer':7} {'req':>4} {'prefix':>6} {'own':>5}  " + "  ".join(f"{name + ' (said)':>15}" for name in names)
    lines = [f"{head}  {'fold':>5} {'merge':>5} {'early':>7}  right"]
    for row in rows:
        said, seen = row["predicted"], row.get("measured", {})
        cells = [f"{_us(seen.get(name))} ({_us(said.get(name))})" for name in names]
        own = round(sum(row["own"]) / len(row["own"]))
        ragged = "~" if len(set(row["own"])) > 1 else " "
        line = f"{row['layer']:7} {row['requests']:4} {row['prefix']:6} {own:5}{ragged} "
        line += "  ".join(f"{cell:>15}" for cell in cells) + f"  {_us(seen.get('fold')):>5} {_us(seen.get('merge')):>5}"
        line += f" {_us(seen.get('early')):>7}"
        marks = (
            []
            if row.get("correct", True)
            else [f"WRONG {max(row['errors'].values()):.1e} {row.get('replay_differs', '')}"]
        )
        if seen:
            marks.append(("close" if row["close"] else "yes") if row["decision"] else "NO")
        lines.append(f"{line}  {' '.join(marks)}".rstrip())
    return "\n".join([*lines, *summary(rows)])


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the rows come to, in whole sentences."""
    lines = []
    timed = [row for row in rows if "measured" in row]
    if timed:
        right, close = sum(row["decision"] for row in timed), sum(row["close"] for row in timed)
        lines.append(
            f"{right} of {len(timed)} decisions are right. In {close} steps the two ways differ by less than "
            f"{WORTH:.0%}, and these count as right."
        )
        for name in ("whole", "shared"):
            errors = sorted(abs(row["predicted"][name] / row["measured"][name] - 1) for row in timed)
            lines.append(
                f"{name}: the median error of a time is {errors[len(errors) // 2]:.1%}, the greatest {errors[-1]:.1%}."
            )
    checked = [row for row in rows if "correct" in row]
    if checked:
        lines.append(f"{sum(row['correct'] for row in checked)} of {len(checked)} steps are correct both ways.")
    return lines


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def main() -> int:
    """Exit code 1 where a step is not correct, or where a prediction is not the one that was written down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "interpreter"), default="cuda")
    parser.add_argument("--out", type=Path, help="Where the rows are written.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60, help="Steps.")
    parser.add_argument("--every", type=int, default=2, help="Time the parts of one step in so many.")
    parser.add_argument("--seconds", type=float, default=110, help="No step is begun after this time.")
    parser.add_argument("--predict", type=Path, help="Only write the steps and what is predicted of them to this file.")
    parser.add_argument(
        "--predicted", type=Path, help="Take the steps from such a file, and hold on to its predictions."
    )
    parser.add_argument("--repredict", type=Path, help="Predict the steps of such a file anew, and keep its times.")
    parser.add_argument("--gpu", default="h200", help="The GPU of --predict, --repredict and the interpreter.")
    args = parser.parse_args()
    if args.predict:
        gpu = load_gpu(args.gpu)
        calibration = load_calibration(None, gpu)
        rows = [row_of(step, predicted(step, gpu, calibration)) for step in random_steps(args.seed, args.count)]
        _write(args.predict, {"gpu": gpu.name, "calibration": calibration.label, "seed": args.seed, "rows": rows})
        print(table(rows))
        return 0
    if args.repredict:
        gpu = load_gpu(args.gpu)
        calibration = load_calibration(None, gpu)
        data = json.loads(args.repredict.read_text(encoding="utf-8"))
        data["rows"] = [repredicted(row, gpu, calibration) for row in data["rows"]]
        _write(args.out or args.repredict, {**data, "calibration": calibration.label})
        print(table(data["rows"]))
        return 0
    if not args.out:
        parser.error("--out, --predict or --repredict is needed")
    begun = time.monotonic()
    device = open_device(args.device)
    gpu = detect_gpu() if device.is_cuda else load_gpu(args.gpu)
    calibration = load_calibration(None, gpu)
    written = args.predicted and device.is_cuda
    before = json.loads(args.predicted.read_text(encoding="utf-8"))["rows"] if written else []
    steps = [step_of(row) for row in before] or random_steps(args.seed, args.count)
    if device.is_cuda:
        compile_all(steps)
        print(f"compiled after {time.monotonic() - begun:.0f} s")
    else:
        steps = tiny_steps()
    rows, failed = [], []
    for number, step in enumerate(steps):
        if time.monotonic() - begun > args.seconds:
            break
        try:
            row = run_step(step, device, gpu, calibration, number % args.every == 0)
        except (DecodecalcError, RuntimeError, ValueError) as error:
            failed.append(f"{step.name}, {len(step.own)} requests, prefix {step.prefix}: {error!s:.300}")
            continue
        finally:
            device.free_memory()
        if before and not _same(row["predicted"], before[number]["predicted"]):
            failed.append(f"step {number}: the prediction is not the one that was written down")
        rows.append(row)
        _write(args.out, {"gpu": gpu.name, "calibration": calibration.label, "failed": failed, "rows": rows})
    print(table(rows))
    for line in failed:
        print(f"failed: {line}")
    return 0 if rows and not failed and all(row["correct"] for row in rows) else 1


def _same(found: Mapping[str, float], written: Mapping[str, float]) -> bool:
    return all(math.isclose(found[name], value, rel_tol=1e-6) for name, value in written.items())


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """One row a line."""
    head = {name: value for name, value in data.items() if name != "rows"}
    rows = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in data["rows"])
    path.write_text(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + rows + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())

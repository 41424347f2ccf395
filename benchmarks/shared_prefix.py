"""Steps whose requests share a prefix, timed both ways with the bundled kernel, against the predictions.

    python -m benchmarks.shared_prefix --out shared-prefix.json                   # on a GPU, about 100 s
    python -m benchmarks.shared_prefix --device interpreter --out /tmp/x.json     # correctness alone, tiny steps

The requests of a step keep the prefix once: the first entries of their page tables are the same pages. Both ways are
checked against float64 before they are timed. Timing is `verify`'s (`decodecalc/verify/run/timing.py`): CUDA graphs
over several layers with their own KV, which together overflow the L2. The columns:

* whole: one launch over all keys.
* shared: the queries folded into heads (not with one KV head), the launch over the prefix, the launch over each
  request's own keys, and the merge of the two.
* prefix, own: these launches alone. beside: shared less both, what the kernels beside them add. fold, merge: these two
  alone, back to back with themselves.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
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
from decodecalc.verify.run.timing import layers_needed, time_layers

PAGE, MLA_PAGE = 16, 64
# bf16 weights and outputs, rounded once more by each part; the interpreter truncates where a GPU rounds.
ERROR_BOUNDS = {"cuda": 6e-3, "interpreter": 1.2e-2}
MOST_POOL_BYTES = 24 << 30
MOST_LAYERS = 64
SAMPLES = 3  # requests whose output is compared


class Step(NamedTuple):
    """One step to run both ways."""

    name: str
    geometry: Geometry
    requests: int
    prefix: int
    own: int


def steps_on_a_gpu() -> list[Step]:
    """From hardly worth it to plainly worth it, the kinds taking turns so that a run that is cut short has all."""
    geometries = {
        "32/8": Geometry(32, 8, 128),
        "8/1": Geometry(8, 1, 128),
        "mla 16": load_model("deepseek-v3").shard(8).layer_groups[0].geometry,
    }
    found = [
        Step(name, geo, requests, prefix, own)
        for own in (1024, 256)
        for prefix in (4096, 512, 16384, 2048)
        for requests in (16, 64, 4)
        for name, geo in geometries.items()
        if not (own == 256 and prefix in (512, 16384))
    ]
    return [*found, Step("32/8", geometries["32/8"], 128, 4096, 1024), Step("32/8", geometries["32/8"], 8, 65536, 1024)]


def tiny_steps() -> list[Step]:
    """For the interpreter."""
    return [
        Step("4/2", Geometry(4, 2, 32), 3, 64, 20),
        Step("4/1", Geometry(4, 1, 32), 2, 32, 17),
    ]


class Launch:
    """One launch of the bundled kernel over a part of the step, on buffers of its own."""

    def __init__(self, plan: LaunchPlan, table: Any, keys: Any, values: Any, calibration: Calibration) -> None:
        import torch

        from decodecalc_kernels import Workspace

        run = execution_of(plan, calibration)
        if run.unsupported:
            raise DecodecalcError(run.unsupported)
        geo, batch, device = plan.geometry, plan.batch, keys.device
        self._config = run.timed or run.launch
        self._keys, self._values = keys, values
        self._workspace = Workspace.allocate(
            batch.query_tokens, geo.q_heads, geo.v_dim, self._config.num_splits, str(device), batch.query_tokens
        )
        self._arguments: dict[str, Any] = {
            "page_table": table, "q_len": batch.max_q_len, "window": run.window,
            "seq_lens": torch.tensor(batch.seq_lens, dtype=torch.int32, device=device),
        }  # fmt: skip
        if geo.mla:
            self._arguments["v_dim"] = geo.v_dim
        if run.split_values is not None:
            self._arguments["split_values"] = torch.tensor(run.split_values, dtype=torch.int32, device=device)

    def __call__(self, q: Any, layer: int, out: Any, lse: Any = None) -> None:
        from decodecalc_kernels import decode_attention

        values = None if self._values is None else self._values[layer]
        decode_attention(
            q, self._keys[layer], values, config=self._config, workspace=self._workspace, out=out, lse=lse,
            **self._arguments,
        )  # fmt: skip


class BothWays:
    """The tensors of a step and its launches."""

    def __init__(self, step: Step, found: SharedPrefix, device: Device, calibration: Calibration) -> None:
        import torch

        geo = step.geometry
        page = PAGE if not geo.mla else MLA_PAGE
        shared, own = step.prefix // page, cdiv(step.own, page)
        pages = shared + step.requests * own
        key_bytes = int(found.whole[0].kv.bytes_per_key(geo))
        pool = pages * page * key_bytes
        least = min(step.prefix, step.requests * step.own) * key_bytes
        layers = layers_needed(least, pool, device.l2_bytes, device.free_bytes())[0] if device.is_cuda else 2
        self.layers = max(2, min(layers, MOST_LAYERS, MOST_POOL_BYTES // pool))
        self.cold = not device.is_cuda or self.layers * least >= 2 * (device.l2_bytes or 0)
        at: dict[str, Any] = {"device": device.torch_name, "dtype": torch.bfloat16}
        torch.manual_seed(0)
        shape = (self.layers, pages, page, geo.kv_heads)
        keys = torch.randn((*shape, geo.head_dim), **at)
        values = None if geo.mla else torch.randn((*shape, geo.v_dim), **at)
        order = torch.randperm(pages, device=device.torch_name).int()
        rest = order[shared:].view(step.requests, own)
        tables = {
            "whole": torch.cat([order[:shared].expand(step.requests, shared), rest], dim=1),
            "prefix": order[None, :shared],
            "own": rest,
        }
        self.step, self.keys, self.values, self.tables = step, keys, values, {k: _padded(t) for k, t in tables.items()}
        plans = {"whole": found.whole[0], "prefix": found.prefix[0], "own": found.suffix[0]}
        self._launches = {
            name: Launch(plan, self.tables[name], keys, values, calibration) for name, plan in plans.items()
        }
        rows = (step.requests, geo.q_heads)
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

    def prefix(self, layer: int) -> None:
        """The launch over the shared keys; `fold` comes before the first."""
        flat = self._q.shape[1]
        out, lse = self._states[0].view(1, flat, self._geo.v_dim), self._sums[0].view(1, flat)
        self._launches["prefix"](self._q, layer, out, lse)

    def own(self, layer: int) -> None:
        """The launch over each request's own keys."""
        self._launches["own"](self.q, layer, self._states[1], self._sums[1])

    def merge(self, layer: int) -> None:
        """Both outputs as one."""
        from decodecalc_kernels import merge_outputs

        group = self._geo.q_heads // self._geo.kv_heads
        merge_outputs(self._states, self._sums, out=self.out["shared"], folded_group=group)

    def shared(self, layer: int) -> None:
        """All kernels of a layer whose prefix is attended apart."""
        for part in (self.fold, self.prefix, self.own, self.merge):
            part(layer)

    def errors(self) -> dict[str, float]:
        """Greatest relative error of a sampled request, by either way, against float64 over all keys."""
        import torch

        from decodecalc_kernels import decode_attention_reference

        self.whole(0)
        self.shared(0)
        found = dict.fromkeys(self.out, 0.0)
        for request in sorted({0, self.step.requests // 2, self.step.requests - 1})[:SAMPLES]:
            more = {"v_dim": self._geo.v_dim} if self._geo.mla else {}
            right, _ = decode_attention_reference(
                self.q[request : request + 1], self.keys[0], None if self.values is None else self.values[0],
                page_table=self.tables["whole"][request : request + 1],
                seq_lens=torch.tensor([self.step.prefix + self.step.own], dtype=torch.int32, device=self.q.device),
                **more,
            )  # fmt: skip
            for name, out in self.out.items():
                wrong = torch.linalg.vector_norm(out[request].double() - right[0].double())
                found[name] = max(found[name], float(wrong / torch.linalg.vector_norm(right.double())))
        return found


def _padded(table: Any) -> Any:
    import torch

    columns = round_up(table.shape[1] + 1, 16)
    out = torch.full((table.shape[0], columns), 2**31 - 1, dtype=torch.int32, device=table.device)
    out[:, : table.shape[1]] = table
    return out


def run_step(step: Step, device: Device, gpu: Gpu, calibration: Calibration) -> dict[str, Any]:
    """One row: predicted, and where there are clocks measured."""
    kv = KvCache("bf16", MLA_PAGE if step.geometry.mla else PAGE)
    batch = Batch.uniform(step.requests, step.prefix + step.own)
    found = share_prefix(load_policy("bundled"), step.geometry, batch, step.prefix, kv, gpu, calibration=calibration)
    both = BothWays(step, found, device, calibration)
    row: dict[str, Any] = {
        "layer": step.name, "requests": step.requests, "prefix": step.prefix, "own": step.own,
        "layers": both.layers, "cold": both.cold, "errors": both.errors(),
        "predicted": {
            "whole": found.whole_s, "whole_apart": found.whole[1].total_s, "shared": found.total_s,
            "prefix": found.prefix[1].total_s, "own": found.suffix[1].total_s, "beside": found.kernels_s,
        },
        "grids": [list(plan.stage1.grid) for plan, _ in (found.whole, found.prefix, found.suffix)],
    }  # fmt: skip
    row["correct"] = all(error <= ERROR_BOUNDS[device.kind] for error in row["errors"].values())
    if not device.is_cuda:
        return row
    parts: dict[str, Callable[[int], None]] = {
        "whole": both.whole, "shared": both.shared, "prefix": both.prefix, "own": both.own, "merge": both.merge,
    }  # fmt: skip
    if step.geometry.kv_heads > 1:
        parts["fold"] = both.fold
    timed = {name: time_layers(part, both.layers, both.cold) for name, part in parts.items()}
    measured = {name: t.median_s for name, t in timed.items()}
    measured["beside"] = measured["shared"] - measured["prefix"] - measured["own"]
    row["measured"], row["flagged"] = measured, [name for name, t in timed.items() if t.flagged]
    gain, said = measured["whole"] - measured["shared"], found.saved_s or 0.0
    row["decision"] = (gain > 0) == (said > 0) or abs(gain) < WORTH * measured["whole"]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in microseconds, measured (predicted)."""
    names = ("whole", "shared", "prefix", "own", "beside")
    head = f"{'layer':7} {'req':>4} {'prefix':>6} {'own':>5}  " + "  ".join(f"{name + ' (said)':>15}" for name in names)
    lines = [f"{head}  {'fold':>5} {'merge':>5}  right"]
    for row in rows:
        said, seen = row["predicted"], row.get("measured", {})
        cells = [f"{_us(seen.get(name))} ({_us(said.get(name))})" for name in names]
        line = f"{row['layer']:7} {row['requests']:4} {row['prefix']:6} {row['own']:5}  "
        line += "  ".join(f"{cell:>15}" for cell in cells) + f"  {_us(seen.get('fold')):>5} {_us(seen.get('merge')):>5}"
        marks = [] if row["correct"] else [f"WRONG {max(row['errors'].values()):.1e}"]
        marks += ["yes" if row["decision"] else "NO"] if seen else []
        lines.append(f"{line}  {' '.join(marks)}")
    right = [row["decision"] for row in rows if "decision" in row]
    errors = [
        abs(r["predicted"][n] / r["measured"][n] - 1) for r in rows if "measured" in r for n in ("whole", "shared")
    ]
    if right:
        lines.append(
            f"{sum(right)} of {len(right)} decisions right; median error of a time "
            f"{sorted(errors)[len(errors) // 2]:.1%}, greatest {max(errors):.1%}"
        )
    lines.append(f"{sum(row['correct'] for row in rows)} of {len(rows)} steps correct both ways")
    return "\n".join(lines)


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def main() -> int:
    """Exit code 1 where a step is not correct."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "interpreter"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=110, help="No step is begun after this time.")
    args = parser.parse_args()
    device = open_device(args.device)
    gpu = detect_gpu() if device.is_cuda else load_gpu("h200")
    calibration = load_calibration(None, gpu)
    begun, rows, failed = time.monotonic(), [], []
    for step in steps_on_a_gpu() if device.is_cuda else tiny_steps():
        if time.monotonic() - begun > args.seconds:
            break
        try:
            rows.append(run_step(step, device, gpu, calibration))
        except (DecodecalcError, RuntimeError, ValueError) as error:
            failed.append(f"{step.name}, {step.requests} requests, prefix {step.prefix}: {error!s:.300}")
        device.free_memory()
        args.out.write_text(
            json.dumps({"gpu": gpu.name, "calibration": calibration.label, "rows": rows, "failed": failed})
        )
    print(table(rows))
    for line in failed:
        print(f"failed: {line}")
    return 0 if rows and not failed and all(row["correct"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

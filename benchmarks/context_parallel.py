"""Context parallelism between GPUs against its predictions: everything that needs two of them, in one command.

    torchrun --nproc-per-node 2 -m benchmarks.context_parallel --out context-parallel.json     # two GPUs, a few minutes
    python -m benchmarks.context_parallel --predict predicted.json                             # anywhere
    torchrun --nproc-per-node 2 -m benchmarks.context_parallel --device interpreter --out /tmp/x.json    # outputs alone

It answers four questions, each with its bar (issue 21 of this repository):

* Is the time of a layer right? `--count` random steps: model, batch, context, way of merging, run of keys. Bar: 90th
  percentile of the error at most 10 %.
* Is the break-even context right? For four models at batch 1 a layer is timed divided and undivided at contexts around
  the predicted one, and the crossing is interpolated. Bar: a factor of 1.15.
* Is the one-shot merge worth it? Its exchange against that of the collectives, at batch 1. Bar: 2 times faster.
* Is a layer of 128 heads of 512 elements and 64k keys, batch 1, faster on two GPUs than FlashMLA on one (66 us)?

Every case is first held against float64 by every way of merging. The collectives themselves are measured by
`decodecalc calibrate --collectives` under torchrun, in a file of their own. Times are those of
`verify --suite dcp` (decodecalc/verify/dcp/timing.py), with NVLink's multicast off. Its times have not been run on two
GPUs yet.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from decodecalc.batch import Batch
from decodecalc.cost import predict
from decodecalc.cost.breakeven import break_even, undivided
from decodecalc.cost.load import load_calibration
from decodecalc.engines.registry import load_policy
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, detect_gpu, load_gpu
from decodecalc.keyshare import A2A, AG_RS, KeyShare
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import load_model
from decodecalc.verify.claims.claim import PASS
from decodecalc.verify.session.ranks import Ranks
from decodecalc.verify.session.suites import Scenario, cases, tiny_dcp

# Model and tensor-parallel degree for each rank that divides keys: so many of its ranks hold the same KV head.
MODELS = (("deepseek-v3", 1), ("deepseek-v3", 8), ("llama3-70b", 8), ("gemma-2b", 1))
BATCH, CONTEXT, MOST_KEYS = (1, 64), (1 << 10, 1 << 18), 1 << 20
AROUND = (0.5, 0.71, 1.0, 1.41, 2.0)  # contexts that are timed, over the predicted break-even
TIME_BAR, EVEN_BAR, ONE_SHOT_BAR, FLASHMLA_S = 0.10, 1.15, 2.0, 66e-6
RANDOM, EVEN, LATENT = "random", "break-even", "latent 64k"


class Case(NamedTuple):
    """One step to time on every rank."""

    question: str
    """Which of the questions it belongs to."""
    model: str
    """The model of the zoo."""
    tp: int
    """Ranks of tensor parallelism, those that divide keys included."""
    share: KeyShare
    """How keys are divided."""
    batch: int
    """Equal requests."""
    context: int
    """Keys of each."""

    @property
    def geometry(self) -> Geometry:
        """The layer that a rank runs."""
        return load_model(self.model).shard(self.tp, self.share).layer_groups[0].geometry

    @property
    def kv(self) -> KvCache:
        """The cache."""
        return KvCache("bf16", 64 if self.geometry.mla else 16)

    def plan(self, gpu: Gpu, divided: bool = True) -> LaunchPlan:
        """The first rank's launch, or that of a rank that has all keys."""
        geo = self.geometry if divided else undivided(self.geometry)
        return load_policy("bundled").plan(geo, Batch.uniform(self.batch, self.context), self.kv, gpu)

    def scenario(self) -> Scenario:
        """The step as `verify` takes it."""
        share, rank = self.share, load_model(self.model).shard(self.tp, self.share)
        label = f"{self.model}/tp{self.tp}/dcp{share.ranks}i{share.interleave}{share.exchange}"
        batch = Batch.uniform(self.batch, self.context)
        return Scenario(label, rank.layer_groups[0], batch, self.kv, ("bundled",), rank.model_kv_heads)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        share = {"ranks": self.share.ranks, "interleave": self.share.interleave, "exchange": self.share.exchange}
        return {
            "question": self.question, "model": self.model, "tp": self.tp, **share, "batch": self.batch,
            "context": self.context,
        }  # fmt: skip


def random_cases(seed: int, count: int, ranks: int) -> Iterator[Case]:
    """Steps of a seed, the models taking turns."""
    draw = random.Random(seed)

    def between(low: int, high: int) -> int:
        return round(math.exp(draw.uniform(math.log(low), math.log(high))))

    for number in range(count):
        model, tp = MODELS[number % len(MODELS)]
        batch = between(*BATCH)
        context = min(between(*CONTEXT), MOST_KEYS // batch)
        share = KeyShare(ranks, draw.choice((1, 16, 64)), draw.choice((AG_RS, A2A)))
        yield Case(RANDOM, model, tp * ranks, share, batch, context)


def even_cases(gpu: Gpu, ranks: int) -> Iterator[Case]:
    """Contexts around the predicted break-even of every model at batch 1, where it has one."""
    for model, tp in MODELS:
        first = Case(EVEN, model, tp * ranks, KeyShare(ranks), 1, 1)
        keys = break_even(load_policy("bundled"), first.geometry, first.kv, gpu).keys
        for factor in AROUND if keys is not None and keys <= MOST_KEYS else ():
            yield first._replace(context=round((keys or 0) * factor))


def all_cases(gpu: Gpu, seed: int, count: int, ranks: int) -> list[Case]:
    """The cases of all questions."""
    latent = Case(LATENT, "deepseek-v3", ranks, KeyShare(ranks), 1, 1 << 16)
    return [latent, *even_cases(gpu, ranks), *random_cases(seed, count, ranks)]


def predicted(case: Case, gpu: Gpu) -> dict[str, float]:
    """Seconds of a layer divided and undivided, and of the exchange."""
    divided, whole = (predict(case.plan(gpu, with_ranks), gpu) for with_ranks in (True, False))
    return {"layer": divided.known_s, "exchange": divided.terms["exchange_s"], "undivided": whole.known_s}


def crossing(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The context from which on a divided layer is faster, by straight lines over the logarithm of the context; None
    where it is not between the rows' contexts. key: `measured` or `predicted`."""
    points = sorted((math.log(row["context"]), row[key]["undivided"] - row[key]["layer"]) for row in rows)
    for (x, gain), (x_next, gain_next) in pairwise(points):
        if gain <= 0 < gain_next:
            return math.exp(x + (x_next - x) * -gain / (gain_next - gain))
    return None


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The answers, in whole sentences."""
    timed = [row for row in rows if "measured" in row]
    if not timed:
        return ["Nothing was timed: that needs a GPU for each rank."]
    lines = []
    errors = sorted(
        abs(row["predicted"]["layer"] / row["measured"]["layer"] - 1) for row in timed if row["question"] == RANDOM
    )
    if errors:
        p90 = errors[min(math.ceil(0.9 * len(errors)), len(errors)) - 1]
        lines.append(
            f"Time of a layer: over {len(errors)} random steps the median error is {statistics.median(errors):.1%}, "
            f"nine of ten lie within {p90:.1%} (the bar is {TIME_BAR:.0%}: {_met(p90 <= TIME_BAR)})."
        )
    for model, tp in dict.fromkeys((row["model"], row["tp"]) for row in timed if row["question"] == EVEN):
        mine = [r for r in timed if r["question"] == EVEN and (r["model"], r["tp"]) == (model, tp)]
        seen, said = crossing(mine, "measured"), crossing(mine, "predicted")
        if seen is None or said is None:
            lines.append(f"Break-even of {model} TP {tp}: it was not crossed between the contexts that were timed.")
            continue
        factor = max(seen / said, said / seen)
        lines.append(
            f"Break-even of {model} TP {tp}: {seen:,.0f} keys measured, {said:,.0f} predicted, a factor of "
            f"{factor:.2f} (the bar is {EVEN_BAR}: {_met(factor <= EVEN_BAR)})."
        )
    single = [
        r["measured"] for r in timed if r["batch"] == 1 and r["exchange"] == AG_RS and "one_shot" in r["measured"]
    ]
    if single:
        gain = statistics.median(m["exchange"] / m["one_shot"] for m in single)
        lines.append(
            f"One-shot merge: its exchange is {gain:.2f} times faster than the collectives' at batch 1 (the bar is "
            f"{ONE_SHOT_BAR:.0f}: {_met(gain >= ONE_SHOT_BAR)})."
        )
    for row in timed:
        if row["question"] == LATENT:
            found = row["measured"]
            best = min(found["layer"], found["kernel"] + found.get("one_shot", math.inf))
            lines.append(
                f"128 heads of 512 elements, 64k keys, batch 1: {best * 1e6:.1f} us by the faster merge (FlashMLA "
                f"takes {FLASHMLA_S * 1e6:.0f} us on one GPU: {_met(best < FLASHMLA_S)})."
            )
    wrong = sum(not row["correct"] for row in rows)
    lines.append(f"{len(rows) - wrong} of {len(rows)} cases are correct by every way of merging.")
    return lines


def _met(met: bool) -> str:
    return "met" if met else "missed"


def main() -> int:
    """Exit code 1 where a case is not correct."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "interpreter"), default="cuda")
    parser.add_argument("--out", type=Path, help="Where the first process writes the rows.")
    parser.add_argument("--predict", type=Path, help="Only write the cases and what is predicted of them to this file.")
    parser.add_argument("--ranks", type=int, default=2, help="Ranks of --predict; else as many as torchrun started.")
    parser.add_argument("--gpu", default="h200", help="The GPU of --predict and of the interpreter.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40, help="Random steps.")
    args = parser.parse_args()
    if args.predict:
        gpu = load_gpu(args.gpu)
        rows = [
            {**c.to_dict(), "predicted": predicted(c, gpu)} for c in all_cases(gpu, args.seed, args.count, args.ranks)
        ]
        _write(args.predict, {"gpu": gpu.name, "seed": args.seed}, rows)
        return 0
    if not args.out:
        parser.error("--out or --predict is needed")
    ranks = Ranks.from_environment()
    if ranks.world < 2:
        parser.error("start it with torchrun: a process for each GPU, at least two")
    return _run(args, ranks)


def _run(args: argparse.Namespace, ranks: Ranks) -> int:
    """All cases on every process; the first one writes and prints."""
    from decodecalc.verify.dcp.group import ProcessRanks
    from decodecalc.verify.dcp.loop import correct
    from decodecalc.verify.dcp.timing import layer_times
    from decodecalc.verify.dcp.trial import DcpTrial
    from decodecalc.verify.run.device import open_device

    device = open_device(args.device, ranks.local)
    gpu = detect_gpu(ranks.local) if device.is_cuda else load_gpu(args.gpu)
    calibration, group = load_calibration(None, gpu), ProcessRanks(ranks, device)
    chosen = all_cases(gpu, args.seed, args.count, ranks.world)
    scenarios = [case.scenario() for case in chosen] if device.is_cuda else tiny_dcp(["bundled"], ranks.world)
    rows: list[dict[str, Any]] = []
    for number, made in enumerate(cases(scenarios, gpu)):
        row: dict[str, Any] = (
            {**chosen[number].to_dict(), "predicted": predicted(chosen[number], gpu)}
            if device.is_cuda
            else {"question": "outputs", "model": made.scenario.label}
        )
        trial = DcpTrial(made, group, device, calibration, args.seed)
        checked = correct(trial)
        row["correct"] = checked.verdict == PASS
        row["errors"] = {q.name: q.observed for q in checked.quantities}
        if device.is_cuda:
            found = {q.name: q.observed for q in layer_times(trial).quantities}
            used = chosen[number].share.exchange
            row["measured"] = {
                "layer": found[f"layer by {used}"], "kernel": found["kernel on this rank's keys"],
                "exchange": found[f"exchange by {used}"], "undivided": found["the same layer without dividing"],
            }  # fmt: skip
            if "exchange by one_shot" in found:
                row["measured"]["one_shot"] = found["exchange by one_shot"]
        rows.append(row)
        del trial
        device.free_memory()
        if ranks.is_first:
            _write(args.out, {"gpu": gpu.name, "ranks": ranks.world, "how": group.how, "seed": args.seed}, rows)
    if ranks.is_first:
        print("\n".join(summary(rows)))
    group.close()
    return 0 if all(row["correct"] for row in rows) else 1


def _write(path: Path, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """One row a line."""
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())

"""Claims about time: the terms of the model against the clock, and the split count that is really the fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decodecalc.cost import choose
from decodecalc.intmath import cdiv
from decodecalc.verify.claims.claim import OFF, PASS, Finding, Quantity, skip
from decodecalc.verify.report.bars import P90_BAR, REGRET_BAR
from decodecalc.verify.run.timing import Timed
from decodecalc.verify.run.trial import Trial


def time(trial: Trial) -> Finding:
    """10. Stage 1, merge and total."""
    if not trial.device.is_cuda:
        return skip(10, "a CPU interpreter has no GPU time")
    seen, said = trial.times, trial.prediction
    terms = said.terms
    merge_s = terms["gap_s"] + terms["merge_s"]
    total = seen.total.median_s
    quantities = [
        Quantity("total", said.known_s, total, "s"),
        Quantity("stage 1", said.known_s - merge_s, seen.stage1.median_s, "s"),
    ]
    if seen.merge is not None:
        quantities.append(Quantity("what the merge adds", merge_s, total - seen.stage1.median_s, "s"))
        quantities.append(Quantity("merge alone", None, seen.merge.median_s, "s"))
    quantities += [
        Quantity("baseline: roofline", said.roofline_s, total, "s"),
        Quantity("baseline: overhead + bytes / bandwidth", said.overhead_plus_bytes_s, total, "s"),
    ]
    error = abs(total - said.known_s) / total
    inside = said.interval is not None and said.interval[0] <= total <= said.interval[1]
    ok = error <= P90_BAR or inside
    l2 = "cold" if seen.total.cold else "partly warm"
    how = (
        f"CUDA graph of {seen.total.calls} calls over {seen.total.layers} layers with their own KV, {l2} L2, "
        f"median of {seen.total.replays} replays, spread {seen.total.spread:.1%}"
    )
    notes = [
        "" if ok else f"{error:.0%} off",
        "the spread is above 5 % even after a second measurement" if seen.total.flagged else "",
    ]
    notes += list(said.notes)
    reason = "; ".join(n for n in notes if n)
    facts = {
        "total_s": total,
        "stage1_s": seen.stage1.median_s,
        "merge_s": seen.merge.median_s if seen.merge else None,
        "predicted_total_s": said.total_s,
        "predicted_low_s": said.low_s,
        "predicted_high_s": said.high_s,
        "roofline_s": said.roofline_s,
        "overhead_plus_bytes_s": said.overhead_plus_bytes_s,
        "cold": seen.total.cold,
        "flagged": seen.total.flagged,
        "calibration": said.calibration,
    }
    return Finding(10, PASS if ok else OFF, tuple(quantities), how, reason, seen.total.spread, facts)


@dataclass(frozen=True)
class Sweep:
    """Times of one scenario by split count. times[S] is measured; s_opt and s_star come from the time model."""

    times: dict[int, Timed]
    s_opt: int
    s_star: int
    predicted_best_s: float

    @property
    def best(self) -> int:
        """The fastest count measured."""
        return min(self.times, key=lambda s: self.times[s].median_s)

    def time_at(self, splits: int) -> float:
        """Seconds at a count that was measured."""
        return self.times[splits].median_s


def best_split(trial: Trial) -> Finding:
    """11. The split count that is fastest when tried, against S_opt and S*; and the engine's own rule against it."""
    if not trial.device.is_cuda:
        return skip(11, "a CPU interpreter has no GPU time")
    sweep = trial.extras.get("sweep")
    fresh = sweep is None
    if sweep is None:
        sweep = trial.extras["sweep"] = measure_sweep(trial)
    best_s = sweep.time_at(sweep.best)
    regret = sweep.time_at(sweep.s_opt) / best_s
    rule = trial.times.total.median_s / best_s
    quantities = (
        Quantity("S", sweep.s_opt, sweep.best),
        Quantity("time at S_opt over the best", 1.0, regret, "x"),
        Quantity("time at S* over the best", None, sweep.time_at(sweep.s_star) / best_s, "x"),
        Quantity("S*", None, sweep.s_star),
        Quantity("the engine's rule over the best", trial.prediction.known_s / sweep.predicted_best_s, rule, "x"),
    )
    how = f"{len(sweep.times)} split counts timed as in claim 10"
    ok = regret <= REGRET_BAR
    spread = max(sweep.times[sweep.s_opt].spread, sweep.times[sweep.best].spread)
    facts: dict[str, Any] = {"s_opt": sweep.s_opt, "s_star": sweep.s_star, "s_best": sweep.best}
    if fresh:  # once in a scenario's rows: the same sweep serves all its engines
        facts["split_times_s"] = [[s, t.median_s] for s, t in sorted(sweep.times.items())]
    reason = "" if ok else f"S_opt is {regret - 1:.1%} slower than the best"
    return Finding(11, PASS if ok else OFF, quantities, how, reason, spread, facts)


def measure_sweep(trial: Trial) -> Sweep:
    """Powers of two, then the counts between the fastest and its neighbours; S_opt and S* in any case."""
    plan = trial.plan
    geo, batch = plan.geometry, plan.batch
    choice = choose(geo, batch, kv=plan.kv, gpu=plan.gpu, calibration=trial.calibration, engines=())
    longest = max(min(n, (geo.window or n) + q - 1) for n, q in zip(batch.seq_lens, batch.q_lens))
    most = cdiv(longest, choice.tile_keys)

    def launchable(s: int) -> int:
        size = cdiv(cdiv(longest, choice.tile_keys), max(1, min(s, most))) * choice.tile_keys
        return cdiv(longest, size)

    s_opt, s_star = launchable(choice.s_opt), launchable(choice.s_star)
    times: dict[int, Timed] = {}

    def measure(s: int) -> None:
        if s not in times:
            times[s] = time_at(trial, choice, s, longest)

    for s in sorted({launchable(2**i) for i in range(11)} | {s_opt, s_star}):
        measure(s)
    for _ in range(2):
        best = min(times, key=lambda s: times[s].median_s)
        below = max((s for s in times if s < best), default=best)
        above = min((s for s in times if s > best), default=best)
        for s in (launchable((below + best) // 2), launchable((above + best + 1) // 2)):
            measure(s)
    return Sweep(times, s_opt, s_star, choice.total_s)


def time_at(trial: Trial, choice: Any, splits: int, longest: int) -> Timed:
    """One point of the sweep: the chosen tile, warps and stages, splits of one size."""
    from decodecalc.cost.launcher import kernel_of_block
    from decodecalc_kernels import LaunchConfig
    from decodecalc_kernels.blocks import merge_shape

    batch, geo = trial.plan.batch, trial.plan.geometry
    shape = {
        "tile_keys": choice.tile_keys, "rows": choice.rows, "warps": choice.warps or 4, "stages": choice.stages or 3,
        "kernel": kernel_of_block(choice.warps or 4),
        "rows_used": min(choice.rows, batch.max_q_len * geo.group),
        "window_partition": "full" if geo.window is None else "window",
    }  # fmt: skip
    if splits == 1:
        config = LaunchConfig(**shape)
    else:
        size = cdiv(cdiv(longest, choice.tile_keys), splits) * choice.tile_keys
        merge = merge_shape(splits, batch.size * batch.max_q_len * geo.q_heads, geo.v_dim)
        config = LaunchConfig(num_splits=splits, split_rule="size", split_value=size, **shape, **merge)
    space, out = trial.workspace(config), trial.output()
    return trial.time(
        lambda layer: trial.launch(config, layer, workspace=space, out=out, split_values=None, window=geo.window)
    )

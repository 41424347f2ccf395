"""Four claims about an engine's own kernel: its output, its launches, its time, and what its split setting buys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from decodecalc.engines.registry import load_policy
from decodecalc.intmath import cdiv
from decodecalc.launch.plan import KernelLaunch, LaunchPlan
from decodecalc.trace.events import dim3
from decodecalc.trace.load import knowledge
from decodecalc.trace.recognise import MERGE
from decodecalc.verify.claims.claim import FAIL, NOTE, OFF, PASS, Finding, Quantity, exact, skip
from decodecalc.verify.claims.exact import BOUNDS, sampled
from decodecalc.verify.own.observe import SeenKernel
from decodecalc.verify.own.runner import CannotRunError
from decodecalc.verify.own.trial import OwnTrial
from decodecalc.verify.report.bars import REGRET_BAR

OWN_CLAIMS = (1, 2, 10, 11)
MOST_SETTINGS = 8  # of a sweep over the engine's split setting


def correct(trial: OwnTrial) -> Finding:
    """1. The engine's output against float64, request by request."""
    from decodecalc_kernels import decode_attention_reference

    inputs, plan = trial.inputs, trial.plan
    trial.out.fill_(float("nan"))
    trial.launch()
    trial.device.synchronize()
    out = trial.out
    unwritten = int(out.isnan().sum())
    if unwritten:
        return Finding(1, FAIL, (Quantity("elements that are NaN", 0, unwritten),), "poisoned output")
    chosen = sampled(plan.batch.seq_lens)
    queries, worst = trial.prepared.queries, 0.0
    window = plan.geometry.window if trial.prepared.window is None else trial.prepared.window
    for r in chosen:
        q, args = inputs.alone(r)
        first, tokens = sum(plan.batch.q_lens[:r]), plan.batch.q_lens[r]
        q = q if queries is None else queries[first : first + tokens]
        ref, _ = decode_attention_reference(q, *inputs.cache(), window=window, **args)
        got = out[first : first + tokens].double()
        worst = max(worst, float((got - ref).norm() / ref.norm()))
    dtype = str(inputs.kv.dtype)
    bound = trial.runner.bounds.get(dtype, BOUNDS[dtype])
    how = (
        f"the output of {trial.runner.calls} ({trial.found.package} {trial.found.version}): worst request's "
        f"‖out - ref‖ / ‖ref‖ against float64, {len(chosen)} of {plan.batch.size} requests; predicted is the bound"
    )
    why = "" if worst <= bound else f"relative error {worst:.2e} above {bound:.1e}"
    return Finding(1, PASS if worst <= bound else FAIL, (Quantity("relative error", bound, worst),), how, why)


def grid(trial: OwnTrial) -> Finding:
    """2. Every kernel of the step: which they are, their grids and their blocks."""
    if not trial.device.is_cuda:
        return skip(2, "launches are recorded by CUPTI, which needs a CUDA device")
    others = [kernel.name for kernel in trial.seen if kernel not in trial.kernels]
    how = "CUPTI watched the engine's own kernels"
    if trial.prepared.note:
        how += f"; {trial.prepared.note}"
    if others:
        how += f"; also launched, not planned: {', '.join(sorted({name[:60] for name in others}))}"
    return exact(2, launch_quantities(trial.plan, trial.kernels), how)


def launch_quantities(plan: LaunchPlan, seen: list[SeenKernel]) -> list[Quantity]:
    """The plan's kernels against those seen: names, roles, grids and threads, where the plan fixes them."""
    names = [[k.role, k.name] for k in plan.kernels]
    seen = _one_merge(plan, seen)
    found = [Quantity("kernels", names, [[k.role, k.kernel] for k in seen])]
    for want, got in zip(plan.kernels, seen):
        found += _one_launch(want, got)
    return found


def _one_merge(plan: LaunchPlan, seen: list[SeenKernel]) -> list[SeenKernel]:
    """Where a compiler makes the merge, in as many kernels as it likes, they count as the plan's one merge."""
    out: list[SeenKernel] = []
    for kernel in seen:
        made = kernel.role == MERGE and not knowledge().family(kernel.family).plans_merge_grid
        if made and out and out[-1].role == MERGE:
            continue
        out.append(replace(kernel, kernel=plan.merge.name) if made and plan.merge is not None else kernel)
    return out


def _one_launch(want: KernelLaunch, got: SeenKernel) -> list[Quantity]:
    out = []
    if want.role != "merge" or knowledge().family(got.family).plans_merge_grid:
        out.append(Quantity(f"{want.role} grid", list(dim3(want.grid) or ()), list(got.grid)))
    if want.threads is not None:
        out.append(Quantity(f"{want.role} threads", want.threads, got.threads, "threads"))
    return out


def time(trial: OwnTrial) -> Finding:
    """10. The time of a layer on the engine's own kernel, against the predicted interval."""
    if not trial.device.is_cuda:
        return skip(10, "a CPU has no GPU time")
    seen, said = trial.time, trial.prediction
    total = seen.median_s
    if said.total_s is None or said.low_s is None or said.high_s is None:
        return skip(10, f"measured {total * 1e6:.1f} µs; {', '.join(said.notes)}")
    quantities = (
        Quantity("total", said.total_s, total, "s"),
        Quantity("interval, low", said.low_s, total, "s"),
        Quantity("interval, high", said.high_s, total, "s"),
        Quantity("baseline: roofline", said.roofline_s, total, "s"),
        Quantity("baseline: overhead + bytes / bandwidth", said.overhead_plus_bytes_s, total, "s"),
    )
    inside = said.low_s <= total <= said.high_s
    how = (
        f"CUDA graph of {seen.calls} calls over {seen.layers} layers with their own KV, "
        f"{'cold' if seen.cold else 'partly warm'} L2, median of {seen.replays} replays, spread {seen.spread:.1%}; "
        "the predicted interval is to hold 90 % of such cells"
    )
    notes = [
        "" if inside else f"outside the interval, {abs(total - said.total_s) / total:.0%} off",
        "spread above 5 % after a second measurement" if seen.flagged else "",
        *said.notes,
    ]
    facts = {
        "total_s": total,
        "predicted_total_s": said.total_s,
        "predicted_low_s": said.low_s,
        "predicted_high_s": said.high_s,
        "inside_interval": inside,
        "cold": seen.cold,
        "flagged": seen.flagged,
        "calibration": said.calibration,
        "time_kernel": said.kernel,
        "stands_in": said.kernel != time_kernel(trial.plan),
    }
    reason = "; ".join(n for n in notes if n)
    return Finding(10, PASS if inside else OFF, quantities, how, reason, seen.spread, facts)


def time_kernel(plan: LaunchPlan) -> str:
    """The kernel whose measurements would predict this plan, if there were any."""
    return load_policy(plan.engine).traits.time_kernel(plan.engine, plan.is_split)


def best_setting(trial: OwnTrial) -> Finding:
    """11. The engine's own split setting, swept: the value that the model advises against the best, and its rule."""
    setting = load_policy(trial.plan.engine).traits.split_setting
    if not trial.device.is_cuda:
        return skip(11, "a CPU has no GPU time")
    if setting is None:
        return skip(11, f"{trial.plan.engine} has no setting that fixes its splits")
    rule_s = trial.prediction.total_s
    if rule_s is None:
        return skip(11, f"no advice without a time: {', '.join(trial.prediction.notes)}")
    predicted: dict[int, float] = {}
    measured: dict[int, float] = {}
    for value in settings_to_try(trial.plan, setting.in_pages):
        other = trial.under({setting.option: value})
        if other is None:
            continue
        try:
            measured[value] = other.time.median_s
        except (CannotRunError, NotImplementedError, RuntimeError, ValueError):
            if not trial.device.alive():
                raise
            continue  # the library refuses this value
        predicted[value] = other.prediction.known_s
    if not measured:
        return skip(11, f"the engine takes no value of {setting.option} for this step")
    advised, best = min(predicted, key=lambda v: predicted[v]), min(measured, key=lambda v: measured[v])
    regret, rule = measured[advised] / measured[best], trial.time.median_s / measured[best]
    ok = regret <= REGRET_BAR
    quantities = (
        Quantity(setting.option, advised, best),
        Quantity("time at the advised value over the best", 1.0, regret, "x"),
        Quantity("the engine's rule over the best", rule_s / min(predicted.values()), rule, "x"),
    )
    facts = {
        "setting": setting.option,
        "advised": advised,
        "best_value": best,
        "setting_times_s": [[v, predicted[v], measured[v]] for v in sorted(measured)],
    }
    how = f"{len(measured)} values of {setting.option} timed as in claim 10"
    verdict = PASS if ok else OFF
    return Finding(
        11, verdict if len(measured) > 1 else NOTE, quantities, how,
        "" if ok else f"the advised value is {regret - 1:.1%} slower", trial.time.spread, facts,
    )  # fmt: skip


def settings_to_try(plan: LaunchPlan, in_pages: bool) -> list[int]:
    """Split counts in powers of two up to one tile a split, or the pages of a split that such counts come to."""
    longest = max(plan.batch.seq_lens)
    counts = [1 << i for i in range(MOST_SETTINGS)]
    counts = [n for n in counts if n <= cdiv(longest, max(plan.tile_keys, 1))]
    if not in_pages:
        return counts
    return sorted({max(1, cdiv(cdiv(longest, plan.kv.page_size), n)) for n in counts})


CHECKS: dict[int, Any] = {1: correct, 2: grid, 10: time, 11: best_setting}

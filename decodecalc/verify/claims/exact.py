"""Claims about what runs, which must hold exactly: correctness, grid, live blocks, key ranges, partial states."""

from __future__ import annotations

from typing import Any

from decodecalc.analysis.traffic import PARTIAL_BYTES, traffic
from decodecalc.cost.own_launch import STATE_SCALARS
from decodecalc.verify.claims.claim import FAIL, PASS, Finding, Quantity, exact, skip
from decodecalc.verify.run.execution import predicted_kernels
from decodecalc.verify.run.trial import Trial

# The allowed ‖out - reference‖ / ‖reference‖ of a request whose output is rounded to 16 bits. It covers the rounding of
# the output (bf16: 2^-9 / sqrt(3) = 1.1e-3 rms) and of the softmax weights (bf16: 0.8e-3, fp16 and fp8 in fp16:
# 0.1e-3), with room for the accumulation. The interpreter truncates weights to bf16 instead of rounding them, which at
# least doubles that part.
BOUNDS = {"bf16": 3e-3, "fp16": 8e-4, "fp32": 5e-5, "fp8": 3e-3}
INTERPRETER_FACTOR = 3.0
# The output has the queries' type, whatever the cache's: the coarser of the two is what can be held.
OUTPUTS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
MOST_REQUESTS = 16  # checked against the reference; a larger batch is sampled, shortest and longest included


def correct(trial: Trial) -> Finding:
    """1. The output against float64, request by request."""
    from decodecalc_kernels import decode_attention_reference

    inputs = trial.inputs
    out = trial.launch(workspace=trial.workspace(trial.run.launch), out=trial.output())
    unwritten = int(out.isnan().sum())
    if unwritten:
        return Finding(1, FAIL, (Quantity("elements that are NaN", 0, unwritten),), "poisoned output and scratch")
    chosen = sampled(trial.plan.batch.seq_lens)
    starts = [sum(trial.plan.batch.q_lens[:r]) for r in range(trial.plan.batch.size)]
    worst = 0.0
    for r in chosen:
        q, args = inputs.alone(r)
        ref, _ = decode_attention_reference(q, *inputs.cache(), window=trial.run.window, **args)
        got = out[starts[r] : starts[r] + trial.plan.batch.q_lens[r]].double()
        worst = max(worst, float((got - ref).norm() / ref.norm()))
    bound = max(BOUNDS[str(inputs.kv.dtype)], BOUNDS[OUTPUTS[str(out.dtype)]]) * (
        1.0 if trial.device.is_cuda else INTERPRETER_FACTOR
    )
    count = f"{len(chosen)} of {trial.plan.batch.size} requests"
    return Finding(
        1,
        PASS if worst <= bound else FAIL,
        (Quantity("relative error", bound, worst),),
        f"worst request's ‖out - ref‖ / ‖ref‖ against float64, {count}; predicted is the bound",
        "" if worst <= bound else f"relative error {worst:.2e} above {bound:.1e}",
    )


def sampled(seq_lens: tuple[int, ...], most: int = MOST_REQUESTS) -> list[int]:
    """Requests to check: all, or the shortest, the longest and some evenly spaced between.

    >>> sampled((5, 9, 7), 2)
    [0, 1]
    """
    order = sorted(range(len(seq_lens)), key=lambda r: seq_lens[r])
    if len(order) <= most:
        return sorted(order)
    return sorted({order[i * (len(order) - 1) // (most - 1)] for i in range(most)})


def grid(trial: Trial) -> Finding:
    """2. Grid and threads of every kernel."""
    if not trial.device.is_cuda:
        return skip(2, "launches are recorded by CUPTI, which needs a CUDA device")
    seen = trial.kernels
    quantities = [
        Quantity("kernels", [k.role for k in predicted_kernels(trial.plan, trial.run)], [k.role for k in seen])
    ]
    for want, got in zip(predicted_kernels(trial.plan, trial.run), seen):
        quantities.append(Quantity(f"{want.role} grid", list(want.grid), list(got.grid)))
        quantities.append(Quantity(f"{want.role} threads", want.threads, got.threads, "threads"))
    own = trial.plan.stage1
    return exact(2, quantities, f"CUPTI; the engine's own grid is {list(own.grid)} ({own.launched_blocks} blocks)")


def live(trial: Trial) -> Finding:
    """3. Blocks that work and blocks that exit at once."""
    record, plan = trial.record, trial.plan
    launched = predicted_kernels(plan, trial.run)[0].blocks
    # Every block of the grid writes its record into a buffer that was filled with -1.
    seen = record.launched_blocks
    # An engine that masks whole blocks of keys has live blocks without a key of the request; ours leave early there.
    with_keys = sum(blocks * splits for blocks, splits in zip(plan.blocks_per_split, plan.splits.live))
    predicted = min(plan.live_blocks, with_keys)
    quantities = [
        Quantity("live blocks", predicted, record.live_blocks, "blocks"),
        Quantity("early exits", launched - predicted, record.early_exits, "blocks"),
        Quantity("launched blocks", launched, seen, "blocks"),
        Quantity("live splits", list(plan.splits.live), record.live_splits()[: plan.batch.size], "splits"),
    ]
    return exact(3, quantities, "each block of the instrumented kernel wrote whether it left early")


def keys(trial: Trial) -> Finding:
    """4. First and last key of every split, in every block that walks it."""
    record, plan = trial.record, trial.plan
    ranges = wrong = 0
    example: tuple[Any, Any] = (None, None)
    for r in range(plan.batch.size):
        want = walked(plan.splits.keys[r], plan.batch.seq_lens[r] - plan.keys_read[r])
        for column in range(record.grid[0]):
            if (
                column % (record.grid[0] // plan.geometry.kv_heads) * plan.live_rows
                >= plan.batch.q_lens[r] * plan.geometry.group
            ):
                continue  # a row block beyond this request's query rows
            got = record.split_keys(r, column)
            got = [(min(a, b), b) for a, b in got]
            ranges += len(want)
            if got != want:
                bad = [(w, g) for w, g in zip(want, got) if w != g]
                wrong += max(len(bad), abs(len(want) - len(got)))
                example = bad[0] if bad and example == (None, None) else example
                if not bad and example == (None, None):
                    example = (f"{len(want)} splits", f"{len(got)} splits")
    reason = f"for example predicted {example[0]}, observed {example[1]}" if wrong else ""
    quantities = (Quantity("key ranges that differ", 0, wrong), Quantity("key ranges compared", None, ranges))
    how = f"each instrumented block wrote the first and the last key it walked; rule given to it: {trial.run.rule}"
    return Finding(4, FAIL if wrong or not ranges else PASS, quantities, how, reason)


def walked(splits: list[tuple[int, int]], first_read: int) -> list[tuple[int, int]]:
    """The keys that each live split walks, when whatever lies before `first_read` is skipped (a window's tiles).

    >>> walked([(0, 4), (4, 8), (8, 9)], 6)
    [(4, 4), (6, 8), (8, 9)]
    """
    return [(min(max(start, first_read), end), end) for start, end in splits]


def partials(trial: Trial) -> Finding:
    """7. Partial states: the rows that stage 1 writes and the rows that the merge reads."""
    moved, config = traffic(trial.plan), trial.run.launch
    space = trial.workspace(config)
    trial.launch(workspace=space, out=trial.output(), run="stage1")
    trial.device.synchronize()
    written = _written(space, trial)
    numbers = sum(int((~t.isnan()).sum()) for t in (space.max, space.sum, space.out))
    state_bytes = (trial.plan.geometry.v_dim + STATE_SCALARS) * PARTIAL_BYTES  # of the bundled kernel's states
    quantities = [
        Quantity("rows written", moved.partial_states_live, written, "rows"),
        Quantity("bytes written", moved.partial_states_live * state_bytes, numbers * PARTIAL_BYTES, "B"),
    ]
    how = "scratch poisoned with NaN before stage 1, non-NaN rows counted after it"
    if config.merge == "fused":
        return exact(7, quantities, how + "; merged inside stage 1")
    if not config.direct:
        read, bad = _read(space, trial)
        quantities.append(Quantity("rows read", moved.partial_states_live, read, "rows"))
        quantities.append(Quantity("outputs with a state that nobody wrote", 0, bad))
        how += "; merge run on states of weight one (all others NaN): its log-sum-exp counts the rows it read"
    return exact(7, quantities, how)


def _written(space: Any, trial: Trial) -> int:
    """Rows of which every number was written. A row that was written in part raises RuntimeError."""
    states = [~space.max.isnan(), ~space.sum.isnan(), ~space.out.isnan().any(-1)]
    whole = states[0] & states[1] & states[2]
    some = states[0] | states[1] | ~space.out.isnan().all(-1)
    if bool((whole != some).any()):
        raise RuntimeError(f"{int((whole != some).sum())} partial states were written in part")
    return int(whole.sum())


def _read(space: Any, trial: Trial) -> tuple[int, int]:
    """(rows that the merge read, outputs that turned NaN). Every written state is first set to max 0, sum 1, out 1.

    With n states read, every number of an output row is then 1 and its log-sum-exp is ln(n). Sinks are left out,
    because they would add a weight of their own.
    """
    import torch

    there = ~space.max.isnan()
    nan = torch.full((), float("nan"), device=there.device)
    space.max.copy_(torch.where(there, torch.zeros_like(space.max), nan))
    space.sum.copy_(torch.where(there, torch.ones_like(space.sum), nan))
    space.out.copy_(torch.where(there[..., None], torch.ones_like(space.out), nan))
    out = trial.output()
    lse = torch.full(out.shape[:2], float("nan"), dtype=torch.float32, device=out.device)
    more: dict[str, Any] = {"sinks": None} if trial.inputs.sinks is not None else {}
    trial.launch(workspace=space, out=out, lse=lse, run="merge", **more)
    trial.device.synchronize()
    bad = int(out.isnan().any(-1).sum())
    counts = torch.exp(lse.double()).nan_to_num(nan=0.0).round()
    return int(counts.sum()), bad

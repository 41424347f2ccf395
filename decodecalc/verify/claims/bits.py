"""Claims about bits: whether a captured launch can be replayed for other lengths, and what changes the last digits of a
request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.errors import DecodecalcError
from decodecalc.verify.claims.claim import FAIL, PASS, Finding, Quantity, exact
from decodecalc.verify.run.execution import execution_of, predicted_kernels
from decodecalc.verify.run.profile import profiled
from decodecalc.verify.run.timing import captured
from decodecalc.verify.run.trial import Trial

if TYPE_CHECKING:
    import torch

# The parts of a launch apart from its splits. The launcher's choice of merge depends on the batch and changes the last
# bits.
INNER = ("tile_keys", "rows", "rows_used", "warps", "stages", "merge_rows", "merge_splits", "merge_dims", "merge_warps")


def other_lengths(batch: Batch) -> list[tuple[int, ...]]:
    """Two sets of lengths below the batch's: some shorter by a third, some by an odd few keys."""
    floor = batch.q_lens
    third = tuple(max(q, n - n // 3 - r) for r, (n, q) in enumerate(zip(batch.seq_lens, floor)))
    few = tuple(max(q, n - 1 - 2 * (r % 5)) for r, (n, q) in enumerate(zip(batch.seq_lens, floor)))
    return [third, few]


def replay(trial: Trial) -> Finding:
    """12. One capture, made for short requests, serves other lengths without being captured again."""
    import torch

    plan, config = trial.plan, trial.run.launch
    lens = torch.tensor(plan.batch.seq_lens, dtype=torch.int32, device=trial.device.torch_name)
    space, out = trial.workspace(config), trial.output()
    tried = [*other_lengths(plan.batch)[: 2 if trial.device.is_cuda else 1], plan.batch.seq_lens]
    more: dict[str, Any] = {"workspace": space, "out": out, "seq_lens": lens, "split_values": trial.split_values}

    def step() -> None:
        trial.launch(**more)

    lens.copy_(torch.tensor(tried[0], dtype=torch.int32))
    if trial.device.is_cuda:
        step()
        graph = captured(step)
        again, how = graph.replay, "one CUDA graph, lengths changed in place, against eager launches"
    else:
        again, how = (
            step,
            "one set of buffers reused, lengths changed in place, against fresh launches (no graph on a CPU)",
        )
    changed = 0
    for lengths in tried:
        lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        space.poison()
        out.fill_(float("nan"))
        again()
        trial.device.synchronize()
        fresh = trial.launch(workspace=trial.workspace(config), out=trial.output(), seq_lens=lens.clone())
        trial.device.synchronize()
        changed += differing(out, fresh)
    quantities = [
        Quantity("output elements that differ", 0, changed),
        Quantity("length sets tried", None, len(tried)),
    ]
    if trial.device.is_cuda:
        want = [[list(k.grid), k.threads] for k in predicted_kernels(plan, trial.run)]
        seen = [[list(k.grid), k.threads] for k in profiled(again)]
        quantities.append(Quantity("grids and threads of a replay", want, seen))
    return exact(12, quantities, how)


def bits(values: torch.Tensor) -> torch.Tensor:
    """The bit patterns of the values, as integers."""
    import torch

    return values.view({2: torch.int16, 4: torch.int32}[values.element_size()])


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """Elements whose bits differ."""
    return int((bits(a) != bits(b)).sum())


def ulps(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, in units in the last place of the root mean square of its row.

    The unit is that of the row and not of the element: an element near zero changes by thousands of its own units when
    the sum behind it is rounded in another order, which says nothing.
    """
    import torch

    if not a.numel():
        return 0.0
    rms = b.double().square().mean(-1, keepdim=True).sqrt().clamp(min=torch.finfo(a.dtype).tiny)
    unit = torch.exp2(torch.floor(torch.log2(rms))) * torch.finfo(a.dtype).eps
    return float(((a.double() - b.double()).abs() / unit).max())


def reproducibility(trial: Trial) -> Finding:
    """13. A request alone and with batch mates, under the engine's rule for each; and with one split or many.

    The prediction: the bits are equal where the two plans cut the keys of the request alike, and always for the engines
    that promise it (any `determinism` but batch-dependent).
    """
    plan, config = trial.plan, trial.run.launch
    together = trial.launch(workspace=trial.workspace(config), out=trial.output())
    r = max(range(plan.batch.size), key=lambda i: plan.batch.seq_lens[i])
    first = sum(plan.batch.q_lens[:r])
    mine = together[first : first + plan.batch.q_lens[r]]
    quantities: list[Quantity] = []
    notes: list[str] = [f"splits: {plan.determinism}"]
    verdict, reason = PASS, ""
    if plan.batch.size > 1:
        distance, same_cut = _alone(trial, r, mine)
        if distance is not None:
            promised = plan.determinism != "batch-dependent"  # alone and beside others, with the same query tokens
            promise = 0 if same_cut or promised else None
            quantities.append(Quantity("elements that differ, alone against in the batch", promise, distance))
            notes.append(f"the rule cuts the request {'alike' if same_cut else 'differently'} alone and in the batch")
            if distance and (same_cut or promised):
                verdict, reason = FAIL, "the bits differ although both plans promise the same splits for the request"
    unsplit = config.on_grid(num_splits=1, split_rule="count", split_value=1, split_unit=1)
    single = trial.launch(unsplit, workspace=trial.workspace(unsplit), out=trial.output())
    other = differing(single, together)
    promise = None if plan.is_split else 0
    quantities.append(Quantity("elements that differ, split as planned against one split", promise, other))
    quantities.append(Quantity("largest of these differences", None, ulps(single, together), "ULP of the row"))
    if not plan.is_split and other:
        verdict, reason = FAIL, "two launches without splits differ"
    fixed = _fixed_size(trial, r)
    quantities.append(Quantity("elements that differ, fixed split size, alone against in the batch", 0, fixed))
    if fixed:
        verdict, reason = FAIL, "the fixed-size mode is not batch-invariant"
    if trial.device.is_cuda:
        quantities.append(Quantity("cost of the fixed-size mode", None, _invariant_cost(trial), "x"))
    return Finding(13, verdict, tuple(quantities), "; ".join(notes), reason)


def _alone(trial: Trial, r: int, mine: torch.Tensor) -> tuple[int | None, bool]:
    """(number of elements that differ alone and in the batch, whether both plans cut the keys alike). The number is
    None where the plan for the request alone cannot be run."""
    from decodecalc_kernels import decode_attention

    plan, policy = trial.plan, trial.case.policy
    batch = Batch([plan.batch.seq_lens[r]], [plan.batch.q_lens[r]])
    try:
        alone = policy.plan(plan.geometry, batch, plan.kv, plan.gpu, plan.options, plan.version)
    except DecodecalcError:
        return None, False
    run = execution_of(alone, trial.calibration)
    if run.unsupported:
        return None, False
    same_cut = alone.splits.pieces(0) == plan.splits.pieces(r)
    # Only the splits may differ: everything that the policy does not decide stays as in the batch.
    inner = {name: getattr(trial.run.launch, name) for name in INNER}
    config = run.launch.replace(**inner, idle_requests=0)
    q, args = trial.inputs.alone(r)
    values = _as_tensor(run.split_values, trial)
    out = decode_attention(
        q, *trial.inputs.cache(), config=config, split_values=values, window=run.window,
        workspace=trial.workspace(config, len(q)), out=trial.output(len(q)), **args,
    )  # fmt: skip
    return differing(out, mine), same_cut


def _as_tensor(values: tuple[int, ...] | None, trial: Trial) -> Any:
    import torch

    return None if values is None else torch.tensor(values, dtype=torch.int32, device=trial.device.torch_name)


def _fixed(trial: Trial) -> Any:
    """The batch-invariant launch: all splits have one size, in any batch."""
    from decodecalc_kernels.config import INVARIANT_KEYS

    longest = trial.plan.batch.max_seq_len
    size = INVARIANT_KEYS if trial.device.is_cuda else 64
    return trial.run.launch.on_grid(
        num_splits=-(-longest // size), split_rule="size", split_value=size, window_partition="full", idle_requests=0
    )


def _fixed_size(trial: Trial, r: int) -> int:
    from decodecalc_kernels import decode_attention

    config, inputs = _fixed(trial), trial.inputs
    together = trial.launch(config, workspace=trial.workspace(config), out=trial.output())
    q, args = inputs.alone(r)
    out = decode_attention(
        q, *inputs.cache(), config=config, window=trial.run.window,
        workspace=trial.workspace(config, len(q)), out=trial.output(len(q)), **args,
    )  # fmt: skip
    first = sum(trial.plan.batch.q_lens[:r])
    return differing(out, together[first : first + len(q)])


def _invariant_cost(trial: Trial) -> float:
    """Time of the fixed-size launch divided by that of the planned one."""
    config = _fixed(trial)
    space, out = trial.workspace(config), trial.output()
    fixed = trial.time(lambda layer: trial.launch(config, layer, workspace=space, out=out))
    return fixed.median_s / trial.times.total.median_s

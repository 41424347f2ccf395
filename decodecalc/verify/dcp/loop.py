"""The loop over cases of context parallelism: every rank's launch, the exchange, and the whole against one GPU.

Claims that can be checked: 1 (the merged output against float64, by every way of merging), 3 and 4 (live blocks and key
ranges of every rank's launch), 10 (a layer's time, kernel and exchange, between processes on GPUs) and 13 (bits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from decodecalc.errors import DecodecalcError
from decodecalc.verify.claims import claim, exact
from decodecalc.verify.claims.claim import (
    BAD,
    CLAIMS,
    FAIL,
    PASS,
    SKIP,
    Finding,
    Quantity,
    claims_among,
    error,
    skip,
)
from decodecalc.verify.dcp.group import RankGroup
from decodecalc.verify.dcp.timing import layer_times
from decodecalc.verify.dcp.trial import DcpTrial
from decodecalc.verify.run.device import Device
from decodecalc.verify.run.execution import execution_of
from decodecalc.verify.run.runner import Result
from decodecalc.verify.run.trial import Trial
from decodecalc.verify.session.suites import Case

if TYPE_CHECKING:
    import torch

    from decodecalc.cost import Calibration

DCP_CLAIMS = (1, 3, 4, 10, 13)
# The ranks' outputs are rounded before they are merged, and the merged one once more: two roundings instead of one.
TWO_ROUNDINGS = 1.5


def dcp_claims(text: str | None) -> tuple[int, ...]:
    """The claims that can be held against divided keys, or those of them that are asked for."""
    return claims_among(text, DCP_CLAIMS, "can be checked of keys that are divided over ranks")


def correct(trial: DcpTrial) -> Finding:
    """1. The merged output against float64, by every way of merging; one GPU's own error beside it."""
    quantities, worst = [], 0.0
    bound = exact.BOUNDS[str(trial.whole.kv.dtype)] * (1.0 if trial.device.is_cuda else exact.INTERPRETER_FACTOR)
    bound *= TWO_ROUNDINGS
    for way in trial.group.ways:
        out = trial.group.merge(*trial.states, way)
        if out.isnan().any():
            return Finding(1, FAIL, (Quantity(f"{way}: elements that are NaN", 0, int(out.isnan().sum())),))
        worst = max(worst, _error(out, trial.reference))
        quantities.append(Quantity(f"{way}: relative error", bound, _error(out, trial.reference)))
    quantities.append(Quantity("one GPU: relative error", None, _error(trial.alone[0], trial.reference)))
    how = f"worst token's ‖out - ref‖ / ‖ref‖ against float64; {trial.group.how}; predicted is the bound"
    return Finding(
        1, PASS if worst <= bound else FAIL, tuple(quantities), how,
        "" if worst <= bound else f"relative error {worst:.2e} above {bound:.1e}",
    )  # fmt: skip


def _error(out: torch.Tensor, ref: torch.Tensor) -> float:
    gap, size = (out.double() - ref).flatten(1).norm(dim=1), ref.flatten(1).norm(dim=1)
    return float((gap / size.clamp_min(1e-30)).max())


def live(trial: DcpTrial) -> Finding:
    """3. Live blocks of every rank's launch."""
    return _of_all_ranks(trial, 3, exact.live)


def keys(trial: DcpTrial) -> Finding:
    """4. Key ranges of every rank's launch, and that the ranks together hold every key once."""
    share, batch = trial.share, trial.case.scenario.batch
    mine = [one.inputs.batch.seq_lens for one in trial.trials.values()]
    held = [sum(column) for column in zip(*(lens for part in trial.group.collect(mine) for lens in part))]
    found = _of_all_ranks(trial, 4, exact.keys)
    dealt = Quantity("keys on all ranks", list(batch.seq_lens), held, "keys")
    verdict = FAIL if not dealt.agrees else found.verdict
    how = f"{found.how}; runs of {share.interleave} keys dealt to {share.ranks} ranks"
    return replace(found, verdict=verdict, quantities=(dealt, *found.quantities), how=how)


def _of_all_ranks(trial: DcpTrial, number: int, check: Callable[[Trial], Finding]) -> Finding:
    """One finding from those of every rank: the first that is bad, else the last, with the quantities of all."""
    mine = []
    for rank, one in trial.trials.items():
        empty = min(one.inputs.batch.seq_lens) == 0
        found = skip(number, "a request has no keys on this rank") if empty else check(one)
        mine.append((rank, found))
    every = sorted((pair for part in trial.group.collect(mine) for pair in part), key=lambda pair: pair[0])
    checked = [(rank, found) for rank, found in every if found.verdict != SKIP]
    if not checked:
        return skip(number, "every rank lacks keys of a request")
    rank, worst = next(((r, f) for r, f in checked if f.verdict in BAD), checked[-1])
    quantities = tuple(
        replace(quantity, name=f"rank {r}: {quantity.name}") for r, found in checked for quantity in found.quantities
    )
    reason = f"rank {rank}: {worst.reason}" if worst.reason else ""
    return Finding(number, worst.verdict, quantities, worst.how, reason)


def bits(trial: DcpTrial) -> Finding:
    """13. A group in which one rank has all keys leaves the bits of one GPU, and a merge repeats its bits."""
    import torch

    out, lse = trial.alone
    ranks = trial.group.mine
    outs = [out if rank == 0 else torch.full_like(out, float("nan")) for rank in ranks]
    lses = [lse if rank == 0 else torch.full_like(lse, float("-inf")) for rank in ranks]
    quantities = []
    for way in trial.group.ways:
        same = int((trial.group.merge(outs, lses, way) != out).sum())
        quantities.append(Quantity(f"{way}: elements that differ when one rank has all keys", 0, same))
        first, again = (trial.group.merge(*trial.states, way) for _ in range(2))
        quantities.append(Quantity(f"{way}: elements that differ when merged again", 0, int((first != again).sum())))
    merged = [trial.group.merge(*trial.states, way) for way in trial.group.ways]
    apart = int((merged[0] != merged[-1]).sum())
    quantities.append(Quantity("elements in which two ways differ", None, apart))
    moved = int((merged[-1] != out).sum())
    quantities.append(Quantity("elements that differ from one GPU's", None, moved))
    return claim.exact(13, quantities, f"{trial.group.how}; {out.numel()} elements")


def time(trial: DcpTrial) -> Finding:
    """10. A layer's time between processes on GPUs: the kernel on a rank's keys, and the exchange."""
    if not trial.device.is_cuda:
        return skip(10, "a CPU interpreter has no GPU time")
    if len(trial.group.mine) > 1:
        return skip(10, "ranks that are simulated on one GPU exchange nothing: start it with torchrun")
    return layer_times(trial)


CHECKS: dict[int, Callable[[DcpTrial], Finding]] = {1: correct, 3: live, 4: keys, 10: time, 13: bits}


@dataclass
class DcpRunner:
    """Checks cases on the ranks of a group. `group_of` makes the group of a number of ranks."""

    device: Device
    claims: Sequence[int]
    group_of: Callable[[int], RankGroup]
    calibration: Calibration | None = None
    seed: int = 0

    def run(self, cases: Sequence[Case], on_finding: Callable[[Case, Finding], None]) -> Iterator[Result]:
        """Results in order. Every process of a group runs every case."""
        for case in cases:
            findings: list[Finding] = []
            for finding in self._case(case):
                findings.append(finding)
                on_finding(case, finding)
            yield Result(case, tuple(findings), self._rule(case))
            self.device.free_memory()

    def _rule(self, case: Case) -> str:
        share = case.scenario.geometry.share
        return "" if share is None else f"{share.ranks} ranks, runs of {share.interleave} keys"

    def _case(self, case: Case) -> Iterator[Finding]:
        share = case.scenario.geometry.share
        if case.plan is None or share is None:
            reason = f"refused by the engine: {case.refusal}" if case.plan is None else "the keys are not divided"
            yield from (skip(number, reason) for number in self.claims)
            return
        why = execution_of(case.plan, self.calibration).unsupported
        if why:
            yield from (skip(number, why) for number in self.claims)
            return
        trial = DcpTrial(case, self.group_of(share.ranks), self.device, self.calibration, self.seed)
        for number in self.claims:
            if number not in CHECKS:
                yield skip(number, f"{CLAIMS[number - 1].text}: not a claim about divided keys")
                continue
            try:
                yield CHECKS[number](trial)
            except DecodecalcError as refused:
                yield skip(number, str(refused))
            except Exception as failed:
                yield error(number, failed)

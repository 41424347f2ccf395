"""Warnings for what is known to cost time or to mislead: each looks at one judged group and says what it saw.

Sources: the public reports behind each trap are named in the docstrings of their functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decodecalc.trace.steps import StepNote

if TYPE_CHECKING:
    from decodecalc.trace.audit import GroupAudit


@dataclass(frozen=True)
class Warn:
    """A trap: a short code and a sentence with the numbers."""

    code: str
    text: str


def warnings(audit: GroupAudit, notes: tuple[StepNote, ...]) -> tuple[Warn, ...]:
    """Every trap that this group shows."""
    out: list[Warn] = []
    for trap in (_cliff, _unsplit_in_spite, _few_blocks, _cap, _frozen, _wrong_heads, _mixed):
        out += trap(audit, notes)
    return tuple(out)


def _cliff(audit: GroupAudit, notes: tuple[StepNote, ...]) -> Iterator[Warn]:
    """vllm-project/vllm#48076: latency doubles when the batch passes the threshold of the split path."""
    plan = audit.plan
    if audit.engine != "vllm-triton" or plan is None or audit.observed_split or plan.is_split:
        return
    threshold = getattr(plan.detail, "threshold", None)
    batch = audit.seen.batch or plan.batch.size
    if threshold and batch > threshold:
        yield Warn(
            "threshold-cliff",
            f"batch {batch} is over the threshold {threshold}: the 2D kernel walks every request's keys in one piece; "
            f"at {threshold} requests the split path would run",
        )


def _unsplit_in_spite(audit: GroupAudit, notes: tuple[StepNote, ...]) -> Iterator[Warn]:
    """vLLM#20301-like: the unsplit path although the batch alone would have been split."""
    plan = audit.plan
    if plan is None or audit.observed_split is not False or not plan.is_split or audit.status != "mismatch":
        return
    if audit.engine == "vllm-triton":
        yield Warn(
            "unsplit-in-spite",
            f"the unsplit (2D) path ran although {plan.batch.size} decode requests would be split: one prefill or a "
            "long query in the batch does that, as does batch-invariant mode (VLLM_BATCH_INVARIANT=1)",
        )
    else:
        yield Warn(
            "unsplit-in-spite",
            "no split although the rule would split: batch-invariant or deterministic mode, or num_splits set to 1",
        )


def _few_blocks(audit: GroupAudit, notes: tuple[StepNote, ...]) -> Iterator[Warn]:
    """vLLM's fixed 16 segments with few KV heads leave SMs idle (1 KV head, batch 1: 16 blocks)."""
    blocks, sms = audit.group.stage1.blocks, audit.sm_count
    if audit.engine != "vllm-triton" or not audit.observed_split or blocks is None or not sms or blocks >= sms:
        return
    yield Warn(
        "fixed-splits",
        f"16 splits make {blocks} blocks for {sms} SMs: {sms - blocks} SMs idle"
        + (f"; S* is {audit.plan.s_star}" if audit.plan is not None else ""),
    )


def _cap(audit: GroupAudit, notes: tuple[StepNote, ...]) -> Iterator[Warn]:
    """sgl-project/sglang#27786: the default cap of 8 at small batches."""
    grid, sms = audit.group.stage1.grid, audit.sm_count
    if audit.engine != "sglang-triton" or grid is None or not sms or grid[2] > 16:
        return
    blocks = grid[0] * grid[1] * grid[2]
    if blocks < sms:
        yield Warn(
            "split-cap",
            f"the cap of {grid[2]} splits makes {blocks} blocks for {sms} SMs: {sms - blocks} SMs idle; raise "
            f"--triton-attention-num-kv-splits (S* is {-(-sms // (grid[0] * grid[1]))})",
        )


def _frozen(audit: GroupAudit, notes: tuple[StepNote, ...]) -> Iterator[Warn]:
    """sgl-project/sglang#26019: a replayed graph keeps the grid of capture time."""
    if not audit.group.graph or audit.engine is None:
        return
    if audit.group.stage1.grid is None:
        yield Warn("graph-replay", "replayed from a graph without launch arguments: timed, but no grid to verify")
    else:
        yield Warn(
            "frozen-grid",
            "replayed from a graph: the grid and the splits launched are those of capture time, whatever the lengths "
            "are now",
        )


def _wrong_heads(audit: GroupAudit, notes: tuple[StepNote, ...]) -> Iterator[Warn]:
    """SGLang maps blocks to wrong KV heads for groups over 16 that 16 does not divide."""
    if audit.plan is None:
        return
    for gate in audit.plan.gates:
        if gate.name == "kv_head_mapping" and not gate.passed:
            yield Warn("wrong-kv-heads", gate.reason)


def _mixed(audit: GroupAudit, notes: tuple[StepNote, ...]) -> Iterator[Warn]:
    """A prefill in the batch makes vLLM's whole batch take the 2D path."""
    mixed = next((n for n in notes if n.prefills and n.decodes), None)
    if mixed is None or audit.engine not in ("vllm-triton", "aiter-unified") or audit.observed_split:
        return
    yield Warn(
        "mixed-batch",
        f"{mixed.prefills} prefill and {mixed.decodes} decode requests share a step: all of them take the unsplit path",
    )

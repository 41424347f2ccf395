"""LMDeploy TurboMind's launches in a trace.

Source: src/turbomind/kernels/attention: attention_universal.h, decoding_template.h, reduce_kernel.h.
"""

from __future__ import annotations

from decodecalc.trace.attribution import PROMPT, Strength, Surroundings, Vote
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, PREFILL, STAGE1, NameRule, Vendor

TURBOMIND = "turbomind"
REDUCED_SPLITS = 32  # CTA_K of reduce: splits that one block of the merge takes


def _vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """One kernel template serves prompts and decode: the map of blocks in its arguments says which."""
    if group.kind.role == PREFILL:
        return Vote(strength=Strength.LIKELY, why=group.kind.why, what=PROMPT)
    grid = group.stage1.grid
    split = group.merge is not None if grid is None else grid[2] > 1
    return Vote(strength=Strength.LIKELY, why=group.kind.why, split=split)


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (head blocks, requests, splits), merge (query heads, requests, groups of 32 splits)."""
    (_, batch, splits), merge = grids(group)
    return Inferred(
        q_heads=merge[0] if merge is not None else q_heads,
        batch=batch,
        query_tokens=batch,
        splits_launched=splits,
        how=f"grid (head blocks, requests, splits), merge (query heads, requests, groups of {REDUCED_SPLITS} splits)",
    )


TRACE = TraceKnowledge(
    vendors=(Vendor(name="turbomind", pattern=r"turbomind"),),
    families=(KernelFamily(name=TURBOMIND),),
    names=(
        NameRule(
            pattern=r"attention_kernel",
            family=TURBOMIND,
            role=STAGE1,
            why="TurboMind's decode kernel",
            inside=r"turbomind(?!.*AttentionCtaMap)",
        ),
        NameRule(
            pattern=r"attention_kernel",
            family=TURBOMIND,
            role=PREFILL,
            why="TurboMind's attention over a prompt",
            inside=r"turbomind.*AttentionCtaMap",
        ),
        NameRule(
            pattern=r"reduce(_kernel)?",
            family=TURBOMIND,
            role=MERGE,
            why="TurboMind's merge of splits",
            inside=r"turbomind::attention::|turbomind9attention",
            kernel="reduce",
        ),
    ),
    engines=(EngineTrace(engine="turbomind", families=(TURBOMIND,), attribute=_vote, infer=_infer),),
)

"""FlexAttention's launches in a trace: inductor makes the names up, from the operations that it fused.

The template kernel is `triton_tem_fused_…flex_attention…_N` for the split and the unsplit kernel alike, and the
reductions that merge the splits are `triton_per_fused_…flex_attention…_N` (or red, poi): seen with torch 2.11.
"""

from __future__ import annotations

from decodecalc.trace.attribution import Strength, Surroundings, Vote
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, STAGE1, NameRule

FLEX = "flex-decoding"


def _vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    split = group.merge is not None
    return Vote(strength=Strength.LIKELY, why=group.kind.why, split=split)


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (row tiles, requests x KV heads, splits) since torch 2.12, or (requests x KV heads, splits)."""
    (x, y, z), _ = grids(group)
    splits = z if z > 1 else y
    how = "grid (row tiles, requests x KV heads, splits)" if z > 1 else "grid (requests x KV heads, splits)"
    return Inferred(q_heads=q_heads, splits_launched=splits, how=how)


TRACE = TraceKnowledge(
    families=(KernelFamily(name=FLEX, plans_merge_grid=False),),
    names=(
        NameRule(
            pattern=r"triton_(tem|flex)\w*(flex_attention|flex_decoding)\w*|triton_flex_decoding\w*",
            family=FLEX,
            role=STAGE1,
            why="torch's FlexAttention, the template's kernel",
            kernel="flex_decoding",
        ),
        NameRule(
            pattern=r"triton_(per|red|poi)_fused\w*flex_attention\w*",
            family=FLEX,
            role=MERGE,
            why="a reduction that inductor fused with FlexAttention",
        ),
    ),
    engines=(EngineTrace(engine="flex-decoding", families=(FLEX,), attribute=_vote, infer=_infer),),
)

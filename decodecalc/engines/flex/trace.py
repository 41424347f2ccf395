"""FlexAttention's launches in a trace: inductor makes the names up, from the operations that it fused.

The template kernel is `triton_tem_fused_…flex_attention…_N` for the split and the unsplit kernel alike, and the
reductions that merge the splits are `triton_per_fused_…flex_attention…_N` (or red, poi): seen with torch 2.11.
"""

from __future__ import annotations

from decodecalc.trace.attribution import UNATTRIBUTED, Strength, Surroundings, Vote
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, STAGE1, NameRule

FLEX = "flex-decoding"


def _vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """Only the split kernel's partial states are merged by reductions."""
    if group.merge is not None:
        return Vote(strength=Strength.LIKELY, why=group.kind.why, split=True)
    why = f"{group.kind.why}, without a merge: a prefill and an unsplit decode share it"
    return Vote(strength=Strength.LIKELY, why=why, split=False, what=UNATTRIBUTED)


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (row tiles, requests x KV heads, splits) since torch 2.11, (requests x KV heads, splits) before."""
    (_, y, z), _ = grids(group)
    if z > 1:
        return Inferred(q_heads=q_heads, splits_launched=z, how="grid (row tiles, requests x KV heads, splits)")
    return Inferred(q_heads=q_heads, splits_launched=y, how="grid (requests x KV heads, splits)")


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

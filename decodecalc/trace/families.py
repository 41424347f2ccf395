"""Kernel families that several engines share: their names, and what their launches show.

Whose launch it is, each engine says in its own folder.
"""

from __future__ import annotations

from decodecalc.trace.knowledge import KernelFamily, TraceKnowledge
from decodecalc.trace.recognise import MERGE, SCHEDULER, STAGE1, NameRule

UNIFIED, TRITON_DECODE, MERGE_STATES = "unified-attention", "triton-decode", "merge-states"

SHARED = TraceKnowledge(
    families=(
        KernelFamily(name=UNIFIED, shows_path=True, serves_prefill=True),
        KernelFamily(name=TRITON_DECODE),
        KernelFamily(name=MERGE_STATES),
    ),
    names=(
        NameRule(
            pattern=r"kernel_unified_attention(_[23]d)?",
            family=UNIFIED,
            role=STAGE1,
            why="the unified attention kernel in Triton",
        ),
        NameRule(
            pattern=r"reduce_segments",
            family=UNIFIED,
            role=MERGE,
            why="merges the segments of the unified attention kernel",
        ),
        NameRule(
            pattern=r"_fwd_grouped_kernel_stage1|_fwd_kernel_stage1",
            family=TRITON_DECODE,
            role=STAGE1,
            why="Triton decode attention, stage 1",
        ),
        NameRule(
            pattern=r"_fwd_kernel_stage2", family=TRITON_DECODE, role=MERGE, why="Triton decode attention, stage 2"
        ),
        NameRule(
            pattern=r"get_num_kv_splits_triton",
            family=TRITON_DECODE,
            role=SCHEDULER,
            why="split counts of Triton decode attention, chosen on the device",
        ),
        NameRule(
            pattern=r"merge_attn_states_kernel|MergeStates?(InPlace)?Kernel",
            family=MERGE_STATES,
            role=MERGE,
            why="merge of two attention states",
        ),
    ),
)

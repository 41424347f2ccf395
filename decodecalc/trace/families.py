"""Kernel families that several engines share: their names, and what their launches show.

Each engine says in its own folder which launches are its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.judged import JudgedLaunch, LaunchWarning
from decodecalc.trace.kernel_names import NameFacts
from decodecalc.trace.knowledge import KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, PREFILL, SCHEDULER, STAGE1, NameRule
from decodecalc.trace.steps import StepNote

UNIFIED, TRITON_DECODE, MERGE_STATES = "unified-attention", "triton-decode", "merge-states"
XQA, GENERATED_FMHA = "xqa", "generated-fmha"
FIXED_SEGMENTS = 16  # splits of every split launch of the unified kernel in releases that do not compute the number
XQA_MLA_THREADS = 384  # mla_sm120.cu: 3 warp groups in one row; the other XQA kernels have blocks of 128 x 1 x 2 or 3


def generated_fmha_facts(name: str) -> NameFacts:
    """Reads the name of a generated kernel, which spells out its parameters, as in
    fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP16MultiCtasKvVarSeqQ8Kv128Static…: the head dims (H, or HQk
    and HV), the page (P), the rows of a tile (Q), and whether keys are split. Its Kv is a tile of shared memory, of
    which one loop iteration may take two, so it says nothing about the loop."""
    own = re.sub(r".*?Kernel_", "", name, count=1)
    heads = re.search(r"H(\d{1,6})", own)
    qk, v = re.search(r"HQk(\d{1,6})", own), re.search(r"HV(\d{1,6})", own)
    page, tile = re.search(r"P(\d{1,6})(?=Multi|VarSeq)", own), re.search(r"VarSeqQ(\d{1,6})Kv(\d{1,6})", own)
    dim = qk or heads
    return NameFacts(
        split="MultiCtasKv" in own,
        head_dim=int(dim[1]) if dim else None,
        head_dim_v=int(v[1]) if v else None,
        page_size=int(page[1]) if page else None,
        tile_rows=int(tile[1]) if tile else None,
        windowed="SlidingOrChunked" in own,
    )


def infer_xqa(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Reads the grid by the warp groups of a block. With two it is (splits, KV heads, requests). With three it is
    (query blocks, splits, requests x KV heads), which does not tell requests from heads. The MLA kernel, whose blocks
    are flat, has (row blocks, splits, requests)."""
    (x, y, z), _ = grids(group)
    block = group.stage1.block
    if block is not None and block[0] == XQA_MLA_THREADS:
        how = "grid (row blocks, splits, requests)"
        return Inferred(q_heads=q_heads, kv_heads=1, head_dim=576, batch=z, splits_launched=y, mla=True, how=how)
    if block is not None and block[2] == 3:
        how = "grid (query blocks, splits, requests x KV heads)"
        return Inferred(q_heads=q_heads, splits_launched=y, how=how)
    ratio = None if q_heads is None or q_heads % y else q_heads // y
    how = "grid (splits, KV heads, requests), if every request has one query token"
    return Inferred(q_heads=q_heads, kv_heads=y, group=ratio, batch=z, query_tokens=z, splits_launched=x, how=how)


def mixed_batch(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns of a prefill in the batch, which makes the whole batch take the unsplit path of the unified kernel."""
    mixed = next((n for n in notes if n.prefills and n.decodes), None)
    if mixed is not None and not launch.observed_split:
        text = (
            f"{mixed.prefills} prefill and {mixed.decodes} decode requests share a step: all of them take the unsplit "
            "path"
        )
        yield LaunchWarning(code="mixed_batch", text=text)


SHARED = TraceKnowledge(
    families=(
        KernelFamily(name=UNIFIED, shows_path=True, serves_prefill=True),
        KernelFamily(name=TRITON_DECODE),
        KernelFamily(name=MERGE_STATES),
        KernelFamily(name=XQA),
        KernelFamily(name=GENERATED_FMHA, shows_path=True, shows_tile=True),
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
        NameRule(pattern=r"kernel_mha", family=XQA, role=STAGE1, why="an XQA kernel"),
        NameRule(
            pattern=r"fmhaSm\d+[af]?Kernel_\w*ForGen",
            family=GENERATED_FMHA,
            role=STAGE1,
            why="a generated FMHA kernel, generation phase",
            facts=generated_fmha_facts,
        ),
        NameRule(
            pattern=r"fmhaSm\d+[af]?Kernel_(?!\w*ForGen)\w*",
            family=GENERATED_FMHA,
            role=PREFILL,
            why="a generated FMHA kernel, context phase",
            facts=generated_fmha_facts,
        ),
        NameRule(
            pattern=r"fmhaReductionKernel",
            family=GENERATED_FMHA,
            role=MERGE,
            why="the reduction of the generated FMHA kernels",
        ),
    ),
)

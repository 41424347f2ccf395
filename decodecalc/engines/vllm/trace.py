"""Recognises vLLM's launches in a trace: Triton unified attention, Triton MLA, PagedAttention, AMD's custom paged
attention.

The names and grids are those of vLLM 0.33 (v1/attention/ops, csrc/attention, csrc/rocm), and of earlier releases where
a comment says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from decodecalc.engines.vllm.paged_attention import PARTITION_KEYS
from decodecalc.engines.vllm.triton_mla import HEADS_PER_BLOCK, KEYS_PER_SPLIT
from decodecalc.intmath import next_power_of_2
from decodecalc.trace.attribution import Strength, Surroundings, Vote
from decodecalc.trace.candidates import Candidate
from decodecalc.trace.families import FIXED_SEGMENTS, TRITON_DECODE, UNIFIED, mixed_batch
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.judged import JudgedLaunch, LaunchWarning
from decodecalc.trace.kernel_names import NameFacts, flag, function_name, integer, template_arguments
from decodecalc.trace.knowledge import EngineTrace, KernelFamily, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import MERGE, STAGE1, NameRule, Vendor
from decodecalc.trace.settings import Setting, padded
from decodecalc.trace.steps import StepNote, step_note
from decodecalc.trace.warnings import fixed_to_one, unsplit_although_planned

PAGED, ROCM, DIFFKV = "paged-attention", "rocm-paged", "unified-attention-diffkv"
MIN_ROWS = 16  # BLOCK_M of the unified kernel, at least
ROCM_PARTITION_KEYS = 256
ROCM_WAVE = 64  # lanes of a wave of CDNA

# execute_32_context_0(sq0sk0…)_generation_32(sq32sk55086…); older releases write token counts only.
_STEP = re.compile(r"execute_(?:\d+_)?context_(\d{1,9})\(([^)]*)\)_generation_(\d{1,9})\(([^)]*)\)")


def read_step(text: str) -> StepNote | None:
    """What the model runner's annotation says about a step (v1/worker/gpu_model_runner.py); None for another text.

    >>> read_step("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)")
    StepNote(prefills=0, decodes=32, decode_keys=55086)
    """
    match = _STEP.search(text)
    if match is None:
        return None
    keys = re.match(r"sq\d+sk(\d{1,15})(?!\d)", match[4])
    return step_note(int(match[1]), int(match[3]), int(keys[1]) if keys else None)


# -- names -------------------------------------------------------------------------------------------------------------


def paged_attention_facts(name: str) -> NameFacts:
    """paged_attention_v1_kernel<scalar, cache, HEAD_SIZE, BLOCK_SIZE, threads, …>, v2 with PARTITION_SIZE at the end
    (csrc/attention/)."""
    for own_name in ("paged_attention_v1_kernel", "paged_attention_v2_kernel"):
        own = template_arguments(name, own_name)
        if len(own) >= 5:
            partition = integer(own[-1]) if own_name.endswith("v2_kernel") else None
            return NameFacts(
                head_dim=integer(own[2]),
                page_size=integer(own[3]),
                partition_keys=partition or None,
                split=bool(partition),
            )
    return NameFacts()


def rocm_paged_facts(name: str) -> NameFacts:
    """paged_attention_ll4mi_QKV_…<…, BLOCK_SIZE, HEAD_SIZE, NUM_THREADS, ALIBI, GQA_RATIO, …> (csrc/rocm, and aiter's
    copy): block, head size and threads are three plain numbers in a row, the flag ALIBI and the group follow them."""
    own: list[str] = []
    for own_name in ("paged_attention_ll4mi_QKV_mfma16_kernel", "paged_attention_ll4mi_QKV_mfma4_kernel"):
        own = own or template_arguments(name, own_name)
    for i in range(len(own) - 4):
        block, head, threads, group = (integer(own[i + j]) for j in (0, 1, 2, 4))
        typed = any(own[i + j].startswith("(") for j in range(3))  # (vllm::Fp8KVCacheDataType)0 is not a block size
        if None not in (block, head, threads, group) and not typed and flag(own[i + 3]) is not None:
            return NameFacts(page_size=block, head_dim=head, group=group, split=True)
    return NameFacts(split=True)


def rocm_reduce_facts(name: str) -> NameFacts:
    """paged_attention_ll4mi_reduce_kernel<…, HEAD_SIZE, NUM_THREADS, PARTITION_SIZE, NPAR_LOOPS>: a wave of 64 lanes
    reads 64 partitions in each of the loops that are compiled in.

    >>> rocm_reduce_facts("void paged_attention_ll4mi_reduce_kernel<bf16, bf16, 128, 128, 256, 3>(x)").split_range
    (129, 192)
    """
    numbers = [integer(text) for text in template_arguments(name, "paged_attention_ll4mi_reduce_kernel")]
    plain = [number for number in numbers if number is not None]
    if len(plain) < 4:
        return NameFacts()
    head_dim, _, partition, loops = plain[-4:]
    return NameFacts(
        head_dim=head_dim,
        partition_keys=partition,
        split_range=((loops - 1) * ROCM_WAVE + 1, loops * ROCM_WAVE) if loops > 0 else None,
    )


# -- whose launch ------------------------------------------------------------------------------------------------------


def _unified(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """Votes by kernel names and grids: vLLM 0.20 and later have one kernel name for both paths; up to 0.19 each path
    had its own, which aiter shares."""
    name, grid = function_name(group.stage1.name), group.stage1.grid
    if name == "kernel_unified_attention":
        split = group.merge is not None if grid is None else grid[2] > 1
        path = "" if grid is None else f"; grid z is {grid[2]}: {'split' if split else 'unsplit'}"
        why = "one kernel name for both paths: vLLM 0.20 and later" + path
        return Vote(strength=Strength.SURE, why=why, split=split)
    split = name.endswith("_3d")
    if not around.is_amd:
        why = "a kernel for each path: vLLM up to 0.19, as aiter runs on AMD only"
        return Vote(strength=Strength.SURE, why=why, split=split)
    if split and grid is not None and grid[2] != FIXED_SEGMENTS:
        return None
    if not split and grid is not None and grid[0] >= grid[1]:
        why = f"2D grid {grid} has query blocks first: vLLM's order up to 0.19 (aiter's is KV heads first)"
        return Vote(strength=Strength.LIKELY, why=why, split=split)
    return Vote(strength=Strength.POSSIBLE, why="a kernel for each path: vLLM up to 0.19", split=split)


def _triton_mla_vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """Votes against vLLM where a kernel counts splits on the device: vLLM has no such kernel."""
    if TRITON_DECODE in around.scheduled:
        return None
    split = None if group.stage1.grid is None else group.stage1.grid[2] > 1
    if "vllm" in around.vendors and "sglang" not in around.vendors:
        why = "vLLM's kernels around it and no split-count kernel: vLLM's Triton MLA, which shares SGLang's names"
        return Vote(strength=Strength.LIKELY, why=why, split=split)
    why = "no split-count kernel: vLLM's Triton MLA, or SGLang with static or deterministic counts"
    return Vote(strength=Strength.POSSIBLE, why=why, split=split)


def _paged_vote(version: str, group: LaunchGroup) -> Vote | None:
    if f"_{version}_" not in function_name(group.stage1.name):
        return None
    return Vote(strength=Strength.SURE, why=group.kind.why, split=version == "v2")


def _paged_v1(group: LaunchGroup, around: Surroundings) -> Vote | None:
    return _paged_vote("v1", group)


def _paged_v2(group: LaunchGroup, around: Surroundings) -> Vote | None:
    return _paged_vote("v2", group)


# -- what grids say ----------------------------------------------------------------------------------------------------


def _query_blocks_batch(blocks: int, block_q: int) -> int | None:
    """Requests, each with one query token, whose launch has this many blocks: blocks = B // BLOCK_Q + B."""
    batch = blocks * block_q // (block_q + 1)
    for b in (batch, batch + 1):
        if b >= 1 and b // block_q + b == blocks:
            return b
    return None


def _infer_triton(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (query blocks, KV heads, segments), merge (query tokens, query heads). Query blocks are tokens // BLOCK_Q +
    requests, with BLOCK_Q = BLOCK_M // group and BLOCK_M 16 or the next power of two of a larger group."""
    (blocks, kv_heads, splits), merge = grids(group)
    tokens = None
    if merge is not None:
        tokens, q_heads = merge[0], merge[1]
    if q_heads is None or q_heads % kv_heads:
        return Inferred(kv_heads=kv_heads, splits_launched=splits, how="grid (query blocks, KV heads, segments)")
    ratio = q_heads // kv_heads
    rows = MIN_ROWS if ratio <= MIN_ROWS else int(next_power_of_2(ratio))
    block_q = rows // ratio
    if tokens is not None:
        batch = blocks - tokens // block_q
        how = "grid (query blocks, KV heads, segments), merge (tokens, query heads), B = blocks - tokens // BLOCK_Q"
        known = batch if 1 <= batch <= tokens else None
    else:
        known = tokens = _query_blocks_batch(blocks, block_q)
        how = "grid (query blocks, KV heads); B if every request has one query token"
    return Inferred(
        q_heads=q_heads,
        kv_heads=kv_heads,
        group=ratio,
        batch=known,
        query_tokens=tokens,
        splits_launched=splits,
        how=how,
    )


def _infer_triton_mla(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (query tokens, blocks of 16 heads, splits), merge (query tokens, query heads). Splits are the next power of
    two of max(1, L // 512), at most two for each SM (which is no power of two on most GPUs)."""
    (rows, _, splits), merge = grids(group)
    low = 1 if splits == 1 else (splits // 2 + 1) * KEYS_PER_SPLIT
    bound = (low, (splits + 1) * KEYS_PER_SPLIT - 1) if splits & (splits - 1) == 0 else None
    heads = merge[1] if merge is not None else q_heads
    return Inferred(
        q_heads=heads,
        kv_heads=1,
        group=heads,
        head_dim=576,
        batch=rows,
        query_tokens=rows,
        splits_launched=splits,
        context_range=bound,
        mla=True,
        how=f"grid (query tokens, blocks of {HEADS_PER_BLOCK} heads, splits): splits = next power of two of L // 512",
    )


def _infer_paged(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (query heads, requests, partitions)."""
    (heads, batch, partitions), _ = grids(group)
    size = group.kind.facts.partition_keys or PARTITION_KEYS
    bound = ((partitions - 1) * size + 1, partitions * size) if group.merge is not None else None
    return Inferred(
        q_heads=heads,
        head_dim=group.kind.facts.head_dim,
        batch=batch,
        query_tokens=batch,
        splits_launched=partitions,
        context_range=bound,
        how=f"grid (query heads, requests, partitions of {size} keys)",
    )


def _infer_rocm(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (requests, partitions, KV heads), merge (query heads, requests); the Triton fallback's is (requests, KV
    heads)."""
    (batch, partitions, kv_heads), merge = grids(group)
    facts = group.kind.facts
    if function_name(group.stage1.name) == "kernel_paged_attention_2d":
        how = "grid (requests, KV heads) of the unsplit fallback"
        return Inferred(
            q_heads=q_heads, kv_heads=partitions, batch=batch, query_tokens=batch, splits_launched=1, how=how
        )
    heads = merge[0] if merge is not None else kv_heads * facts.group if facts.group else None
    return Inferred(
        q_heads=heads,
        kv_heads=kv_heads,
        group=facts.group,
        head_dim=facts.head_dim,
        batch=batch,
        query_tokens=batch,
        splits_launched=partitions,
        context_range=((partitions - 1) * ROCM_PARTITION_KEYS + 1, partitions * ROCM_PARTITION_KEYS),
        how=f"grid (requests, partitions of {ROCM_PARTITION_KEYS} keys, KV heads), group from the template",
    )


# -- settings ----------------------------------------------------------------------------------------------------------


def _triton_shown(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    yield from padded("padded_num_seqs", group, seen, candidate)
    yield Setting()
    yield Setting(
        {"capture_sizes": None}, "there are no full CUDA graphs, so the threshold is not rounded to a capture size"
    )


def _triton_explained(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    yield Setting({"batch_invariant": True}, "batch-invariant mode is on")
    yield Setting({"max_num_seqs": candidate.batch.size}, "max_num_seqs limits the scratch to this batch")


def _triton_mla_explained(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    yield Setting({"batch_invariant": True}, "batch-invariant mode is on")


# -- warnings ----------------------------------------------------------------------------------------------------------


def _threshold_cliff(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns that the batch is over the threshold of the split path, where latency doubles (vllm-project/vllm#48076)."""
    plan = launch.plan
    if plan is None or launch.observed_split or plan.is_split:
        return
    threshold = getattr(plan.detail, "threshold", None)
    batch = launch.seen.batch or plan.batch.size
    if threshold and batch > threshold:
        text = (
            f"batch {batch} is over the threshold {threshold}, so the 2D kernel walks every request in one piece; "
            f"up to {threshold} requests take the split path"
        )
        yield LaunchWarning(code="threshold_cliff", text=text)


def _unsplit_in_spite(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns that the unsplit path ran although the batch alone would have been split (vllm-project/vllm#20301)."""
    if unsplit_although_planned(launch) and launch.plan is not None:
        text = (
            f"the unsplit (2D) path ran although {launch.plan.batch.size} decode requests would be split: one prefill "
            "or a long query in the batch does that, as does batch-invariant mode (VLLM_BATCH_INVARIANT=1)"
        )
        yield LaunchWarning(code="unsplit_in_spite", text=text)


def _fixed_splits(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns where the fixed 16 segments and few KV heads leave SMs idle (1 KV head at batch 1 makes 16 blocks)."""
    grid, blocks, sms = launch.group.stage1.grid, launch.group.stage1.blocks, launch.sm_count
    if not launch.observed_split or grid is None or blocks is None or not sms or blocks >= sms:
        return
    text = f"{grid[2]} splits make {blocks} blocks for {sms} SMs, so {sms - blocks} SMs are idle"
    if launch.plan is not None:
        text += f"; S* is {launch.plan.s_star}"
    yield LaunchWarning(code="fixed_splits", text=text)


TRACE = TraceKnowledge(
    vendors=(Vendor(name="vllm", pattern=r"\bvllm::|_vllm_|vllm_"),),
    step_notes=(read_step,),
    families=(
        KernelFamily(name=PAGED, shows_head_dim=True),
        KernelFamily(name=ROCM, shows_head_dim=True),
        KernelFamily(name=DIFFKV),
    ),
    names=(
        NameRule(
            pattern=r"paged_attention_v[12]_kernel",
            family=PAGED,
            role=STAGE1,
            why="the 2023 PagedAttention kernel",
            facts=paged_attention_facts,
        ),
        NameRule(
            pattern=r"paged_attention_v2_reduce_kernel", family=PAGED, role=MERGE, why="PagedAttention v2's reduction"
        ),
        NameRule(
            pattern=r"paged_attention_ll4mi_QKV_mfma(4|16)_kernel",
            family=ROCM,
            role=STAGE1,
            why="AMD's custom paged attention",
            facts=rocm_paged_facts,
        ),
        NameRule(
            pattern=r"paged_attention_ll4mi_reduce_kernel",
            family=ROCM,
            role=MERGE,
            why="the reduction of AMD's custom paged attention",
            facts=rocm_reduce_facts,
        ),
        NameRule(
            pattern=r"kernel_paged_attention_2d",
            family=ROCM,
            role=STAGE1,
            why="the Triton fallback of AMD's custom paged attention",
        ),
        NameRule(
            pattern=r"kernel_unified_attention_diffkv",
            family=DIFFKV,
            role=STAGE1,
            why="vLLM's unified attention for keys and values of different widths",
        ),
        NameRule(
            pattern=r"kernel_reduce_segments_diffkv",
            family=DIFFKV,
            role=MERGE,
            why="the reduction of vLLM's unified attention for keys and values of different widths",
        ),
    ),
    engines=(
        EngineTrace(
            engine="vllm-triton",
            families=(UNIFIED,),
            attribute=_unified,
            infer=_infer_triton,
            shown=_triton_shown,
            explanations=_triton_explained,
            stand_ins=(8192,),
            path_names=("2d", "3d"),
            warnings=(_threshold_cliff, _unsplit_in_spite, _fixed_splits, mixed_batch),
        ),
        EngineTrace(
            engine="vllm-triton-diffkv",
            families=(DIFFKV,),
            infer=_infer_triton,
            shown=_triton_shown,
            explanations=_triton_explained,
            path_names=("2d", "3d"),
            warnings=(_threshold_cliff, _fixed_splits),
        ),
        EngineTrace(
            engine="vllm-triton-mla",
            families=(TRITON_DECODE,),
            attribute=_triton_mla_vote,
            infer=_infer_triton_mla,
            explanations=_triton_mla_explained,
            warnings=(fixed_to_one,),
        ),
        EngineTrace(engine="paged-attention-v1", families=(PAGED,), attribute=_paged_v1, infer=_infer_paged),
        EngineTrace(engine="paged-attention-v2", families=(PAGED,), attribute=_paged_v2, infer=_infer_paged),
        EngineTrace(engine="rocm-paged", families=(ROCM,), infer=_infer_rocm),
    ),
)

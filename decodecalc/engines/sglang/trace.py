"""SGLang's Triton decode attention in a trace (names and grids: SGLang 0.5.10, layers/attention/triton_ops)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from decodecalc.engines.sglang.options import BLOCK_H, DEFAULT_CAP, DEFAULT_CAP_HIP
from decodecalc.trace.attribution import Strength, Surroundings, Vote
from decodecalc.trace.candidates import Candidate
from decodecalc.trace.families import TRITON_DECODE
from decodecalc.trace.inference import Inferred, grids
from decodecalc.trace.judged import JudgedLaunch, LaunchWarning
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.knowledge import EngineTrace, TraceKnowledge
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import STAGE1, NameRule, Vendor
from decodecalc.trace.settings import Setting, padded
from decodecalc.trace.steps import StepNote, step_note
from decodecalc.trace.warnings import fixed_to_one

LEAN = "_lean_attention_decode_kernel"
LARGEST_LOW_CAP = 16  # caps above it were raised by hand or by the model's context, so that nothing is to be advised
_STEP = re.compile(r"step\[(DECODE|EXTEND|MIXED) bs=(\d{1,9})")


def read_step(text: str) -> StepNote | None:
    """What the scheduler's annotation says about a step; None for another text.

    >>> read_step("step[DECODE bs=12]")
    StepNote(prefills=0, decodes=12, decode_keys=None)
    """
    match = _STEP.search(text)
    if match is None:
        return None
    decodes = int(match[2]) if match[1] == "DECODE" else 0
    return step_note(0 if match[1] == "DECODE" else int(match[2]), decodes)


def _vote(group: LaunchGroup, around: Surroundings) -> Vote | None:
    """Votes by the kernel that counts splits: SGLang counts them on the device, except with static or deterministic
    counts, and vLLM's Triton MLA, which has the same kernel names, never does. Without that kernel the last extent of
    the grid decides, because SGLang's cap has a default."""
    if group.kind.kernel == LEAN:
        return Vote(strength=Strength.SURE, why=group.kind.why, split=True)
    grid = group.stage1.grid
    split = None if grid is None else grid[2] > 1
    if TRITON_DECODE in around.scheduled:
        why = "get_num_kv_splits_triton runs in this trace: SGLang chooses split counts on the device"
        return Vote(strength=Strength.SURE, why=why, split=split)
    why = "no split-count kernel: SGLang with static or deterministic counts, or vLLM's Triton MLA"
    default = grid is None or grid[2] == (DEFAULT_CAP_HIP if around.is_amd else DEFAULT_CAP)
    foreign = "vllm" in around.vendors and "sglang" not in around.vendors
    grouped = function_name(group.stage1.name) == "_fwd_grouped_kernel_stage1"
    strength = Strength.LIKELY if not foreign and (default or not grouped) else Strength.WEAK
    return Vote(strength=strength, why=why, split=split)


def _infer(group: LaunchGroup, q_heads: int | None) -> Inferred:
    """Grid (requests, head blocks, splits), merge (requests, query heads). A head block holds one KV head's group, or
    16 query heads of a larger one; without groups it is one head."""
    (batch, blocks, splits), merge = grids(group)
    if group.kind.kernel == LEAN:
        return Inferred(q_heads=q_heads, how="the grid is persistent and shows neither heads nor splits")
    if merge is not None:
        q_heads = merge[1]
    how = "grid (requests, head blocks, splits), merge (requests, query heads)"
    kv_heads = None
    if "grouped" not in function_name(group.stage1.name):
        kv_heads = q_heads = blocks
    elif q_heads is not None and q_heads % blocks == 0 and q_heads // blocks < BLOCK_H:
        kv_heads = blocks
    elif q_heads is not None and q_heads % blocks == 0:
        how += "; KV heads are not known, because blocks of 16 query heads fit any group of 16 or more"
    ratio = None if kv_heads is None or q_heads is None else q_heads // kv_heads
    return Inferred(
        q_heads=q_heads,
        kv_heads=kv_heads,
        group=ratio,
        batch=batch,
        query_tokens=batch,
        splits_launched=splits,
        how=how,
    )


def _shown(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    yield from padded("padded_batch", group, seen, candidate)
    yield Setting()


def _explained(group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    splits = seen.splits_launched
    if splits is not None:
        yield Setting({"max_kv_splits_arg": splits}, f"--triton-attention-num-kv-splits {splits}")
        yield Setting({"deterministic": True}, "deterministic mode is on")


def _split_cap(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns of the default cap of 8 at small batches (sgl-project/sglang#27786)."""
    grid, sms = launch.group.stage1.grid, launch.sm_count
    if grid is None or not sms or grid[2] > LARGEST_LOW_CAP or launch.group.kind.kernel == LEAN:
        return
    blocks = grid[0] * grid[1] * grid[2]
    if blocks < sms:
        text = (
            f"the cap of {grid[2]} splits makes {blocks} blocks for {sms} SMs, so {sms - blocks} SMs are idle; raise "
            f"--triton-attention-num-kv-splits (S* is {-(-sms // (grid[0] * grid[1]))})"
        )
        yield LaunchWarning(code="split_cap", text=text)


def _wrong_kv_heads(launch: JudgedLaunch, notes: tuple[StepNote, ...]) -> Iterator[LaunchWarning]:
    """Warns of blocks that are mapped to wrong KV heads: those of groups over 16 that 16 does not divide
    (decode_attention.py:_fwd_grouped_kernel_stage1, cur_kv_head)."""
    for gate in () if launch.plan is None else launch.plan.gates:
        if gate.name == "kv_head_mapping" and not gate.passed:
            yield LaunchWarning(code="wrong_kv_heads", text=gate.reason)


TRACE = TraceKnowledge(
    vendors=(Vendor(name="sglang", pattern=r"sgl_kernel|sglang|sgl_"),),
    step_notes=(read_step,),
    names=(NameRule(pattern=LEAN, family=TRITON_DECODE, role=STAGE1, why="SGLang's persistent decode kernel for AMD"),),
    engines=(
        EngineTrace(
            engine="sglang-triton",
            families=(TRITON_DECODE,),
            attribute=_vote,
            infer=_infer,
            shown=_shown,
            explanations=_explained,
            stand_ins=(8192,),
            warnings=(fixed_to_one, _split_cap, _wrong_kv_heads),
        ),
    ),
)

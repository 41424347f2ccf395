"""What decides FlashAttention's launches: the C++ of 2 and 3 (source trees and archives only), the Python of 4."""

from __future__ import annotations

import numpy as np

from decodecalc.drift.checks import Check, Computes, Mentions, Text
from decodecalc.drift.package import Followed, Package
from decodecalc.engines.flash_attention import fa2, fa3, fa4, fa4_mla
from decodecalc.engines.flash_attention.wave_efficiency import MAX_SPLITS
from decodecalc.launch.policy import PolicyVersion

_FA2_API = ("csrc/flash_attn/flash_api.cpp",)
_FA2_KERNEL = ("csrc/flash_attn/src/flash_fwd_kernel.h",)
_FA2_LAUNCH = ("csrc/flash_attn/src/flash_fwd_launch_template.h",)
_RULE = ("hopper/heuristics.h",)
_FA3_API = ("hopper/flash_api.cpp", "hopper/flash_api_stable.cpp")
_SCHEDULER = ("hopper/flash_prepare_scheduler.cu",)

FLASH_ATTENTION_2 = (
    Check(
        "share of the slots that needs no split", _FA2_API,
        Text(r"batch_nheads_mblocks\s*>=\s*([\d.]+)f?\s*\*\s*num_SMs"), lambda v: 0.8,
    ),
    Check(
        "share of the best efficiency that is enough", _FA2_API,
        Text(r"efficiency\[num_splits - 1\]\s*>=\s*([\d.]+)\s*\*\s*max_efficiency"), lambda v: 0.85,
    ),
    Check("a split count must change the blocks per split", _FA2_API, Mentions(r"is_split_eligible"), lambda v: True),
    Check(
        "blocks per SM that the rule counts on", _FA2_API,
        Text(r"num_splits_heuristic\([\w \*]*num_m_blocks,\s*\w+(?:->multiProcessorCount)?\s*\*\s*(\d+)"),
        lambda v: fa2.BLOCKS_PER_SM,
    ),
    Check("most splits", _FA2_API, Text(r"num_splits\s*<=\s*(\d+),\s*\"num_splits >"), lambda v: fa2.MOST_SPLITS),
    Check(
        "keys of a block in the rule (D up to 64, up to 128, above)", _FA2_API,
        Text(r"block_n\s*=\s*(head_size\s*<=\s*64\s*\?[^;]*);"),
        lambda v: "head_size <= 64 ? 256 : (head_size <= 128 ? 128 : 64)",
    ),
    Check(
        "query rows of a block in the rule", _FA2_API,
        Text(r"num_m_blocks\s*=\s*\(max_seqlen_q\s*\+\s*(\d+)\s*-\s*1\)"), lambda v: fa2.SPLIT_ROWS,
    ),
    Check(
        "keys that a page must be a multiple of", _FA2_API, Text(r"page_block_size\s*%\s*(\d+)\s*=="),
        lambda v: v.rules.page_multiple,
    ),
    Check(
        "the group is swapped for one query token, no window and no ALiBi", _FA2_API,
        Mentions(
            r"seqlenq_ngroups_swapped\s*=\s*(?:max_)?seqlen_q\s*==\s*1\s*&&\s*num_heads\s*>\s*num_heads_k\s*&&\s*"
            r"window_size_left\s*<\s*0\s*&&\s*window_size_right\s*<\s*0"
        ),
        lambda v: True,
    ),
)  # fmt: skip

FLASH_ATTENTION_3 = (
    Check(
        "share of the SMs that needs no split", _RULE, Text(r"total_mblocks\s*>=\s*([\d.]+)f?\s*\*\s*num_SMs"),
        lambda v: 0.8,
    ),
    Check("bytes of L2 that the rule assumes, in MiB", _RULE, Text(r"size_l2\s*=\s*(\d+)\s*\*\s*1024\s*\*\s*1024"),
          lambda v: fa3.L2_BYTES >> 20),
    Check("key blocks that are never split", _RULE, Text(r"num_n_blocks\s*<=\s*(\d+)\)"), lambda v: fa3.FEWEST_BLOCKS),
    Check(
        "share of the best efficiency that is enough", _RULE,
        Text(r"efficiency\[num_splits - 1\]\s*>=\s*([\d.]+)\s*\*\s*max_efficiency"), lambda v: 0.85,
    ),
    Check(
        "a split count must change the blocks per split", _RULE, Mentions(r"is_split_eligible"), lambda v: False,
    ),
    Check(
        "most splits of the rule", _FA3_API,
        Text(r"return num_splits_heuristic\([^;]*,\s*(\d+)\);"), lambda v: MAX_SPLITS,
    ),
    Check("most splits", _FA3_API, Text(r"params\.num_splits\s*<=\s*(\d+)"), lambda v: fa3.MOST_SPLITS),
    Check("margin of the per-request counts", _SCHEDULER, Text(r"\*\s*([\d.]+)f\s*\*\s*float\(num_head\)"),
          lambda v: 1.1),
    Check("requests of a scheduler block", _SCHEDULER, Text(r"blockIdx\.x\)\s*\*\s*(\d+)\s*;"),
          lambda v: fa3.BATCHES_PER_BLOCK),
    Check(
        "batch counts as one when lengths are passed", _FA3_API,
        Text(r"total_mblocks\s*=\s*\(params\.num_splits_dynamic_ptr\s*\?\s*(\d+)\s*:\s*params\.b\)"), lambda v: 1,
    ),
)  # fmt: skip

_FA4_API, _FA4_CONFIG = ("flash_attn/cute/interface.py",), ("flash_attn/cute/interface.py", "flash_attn/cute/config.py")
# (blocks before splitting, SMs, key blocks)
_FA4_STEPS = ((8, 148, 4), (8, 148, 5), (8, 148, 400), (1, 148, 400), (200, 148, 64), (0, 148, 64), (3, 132, 20))


def _fa4_splits(version: PolicyVersion) -> tuple[int, ...]:
    blocks, sms, keys = (np.array(column, dtype=np.int64) for column in zip(*_FA4_STEPS))
    found = [
        int(fa4_mla.num_splits(blocks[[n]], int(sms[n]), keys[[n]], MAX_SPLITS, not version.rules.vllm)[0])
        for n in range(len(_FA4_STEPS))
    ]
    return tuple(found)


FLASH_ATTENTION_4 = (
    Check(
        "split count", _FA4_API,
        Computes(
            "num_splits_heuristic", "return",
            tuple({"total_mblocks": m, "num_SMs": s, "num_n_blocks": n} for m, s, n in _FA4_STEPS),
            {"max_splits": MAX_SPLITS},
        ),
        _fa4_splits, cases=tuple(f"{m} blocks on {s} SMs, {n} key blocks" for m, s, n in _FA4_STEPS),
    ),
    Check(
        "most splits of the combine kernel", _FA4_API, Text(r"assert num_splits <= (\d{2,})"),
        lambda v: fa4.MOST_SPLITS,
    ),
    Check(
        "key blocks of a split for two score buffers", _FA4_CONFIG,
        Text(r"S_PING_PONG_MIN_N_BLOCKS_PER_SPLIT\s*=\s*(\{[\d:, ]+\})"), lambda v: str(fa4.PING_PONG_BLOCKS),
    ),
    Check("a list's width is a multiple of this", _FA4_API, Text(r"gather_kv_length % (\d+) == 0"), lambda v: 128),
    Check(
        "key blocks of a split of the 64-key MLA kernel", ("flash_attn/cute/flash_fwd_mla_1cta_kb64_sm100.py",),
        Text(r"MIN_BLOCKS_PER_SPLIT\s*=\s*(\d+)"), lambda v: fa4_mla.KB64_BLOCKS_PER_SPLIT,
    ),
    Check(
        "requests of a scheduler block", ("flash_attn/cute/prepare_scheduler.py",),
        Text(r"num_batch \+ \(([\d* ]+) - 1\)\)"), lambda v: "31 * 32",
    ),
)  # fmt: skip

# The policies hold two code bases: upstream's versions, and those of vLLM's fork under names that start with this.
_FORK = "vllm-"

PACKAGES = (
    Package(
        name="vllm-flash-attn",
        distributions=("vllm-flash-attn",),
        probes=("vllm_flash_attn/flash_attn_interface.py",),
        follows=(
            Followed(engine="flash-attention-2", checks=FLASH_ATTENTION_2, versions=_FORK, fixed="vllm-0.33"),
            Followed(engine="flash-attention-3", checks=FLASH_ATTENTION_3, versions=_FORK, fixed="vllm-0.33"),
        ),
        contains=("flash-attn", "flash-attn-3"),
    ),
    Package(
        name="flash-attn",
        distributions=("flash-attn",),
        probes=("csrc/flash_attn/flash_api.cpp", "flash_attn/flash_attn_interface.py"),
        follows=(Followed(engine="flash-attention-2", checks=FLASH_ATTENTION_2, not_versions=_FORK),),
        version_files=("flash_attn/__init__.py",),
    ),
    Package(
        name="flash-attn-4",
        distributions=("flash-attn-4",),
        probes=("flash_attn/cute/interface.py",),
        follows=(Followed(engine="flash-attention-4", checks=FLASH_ATTENTION_4, not_versions=_FORK),),
    ),
    Package(
        name="flash-attn-3",
        distributions=("flash-attn-3",),
        probes=("hopper/heuristics.h", "hopper/flash_api.cpp"),
        follows=(Followed(engine="flash-attention-3", checks=FLASH_ATTENTION_3, not_versions=_FORK),),
        version_files=("hopper/__init__.py",),
    ),
)

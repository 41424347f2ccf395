"""What decides FlashMLA's launches, and where its C++ says so (source trees and archives only)."""

from __future__ import annotations

from decodecalc.drift.checks import Check, Mentions, Text
from decodecalc.drift.package import Followed, Package
from decodecalc.engines.flashmla.walk import BLOCK_KEYS, OVERHEAD_BLOCKS

_DENSE = ("csrc/api/dense_decode.h", "csrc/pybind.cpp", "csrc/flash_api.cpp")
_METADATA = (
    "csrc/smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu", "csrc/smxx/get_mla_metadata.cu",
    "csrc/kernels/get_mla_metadata.cu",
)  # fmt: skip
_COMBINE = ("csrc/smxx/decode/combine/combine.cu", "csrc/smxx/mla_combine.cu", "csrc/kernels/mla_combine.cu")

FLASHMLA = (
    Check(
        "keys of a page", _DENSE, Text(r"page_block_size must be (\d+)"), lambda v: 64,
        lambda r: r.combine_axes != "packed",
    ),
    Check(
        "query rows of a block", _DENSE, Text(r"num_heads_k\s*/\s*cutlass::ceil_div\([^;]*?,\s*(\d+)\)"), lambda v: 64,
        lambda r: r.combine_axes != "packed",
    ),
    Check(
        "keys of a block", _DENSE,
        Text(r"GetDecodeSchedMetaParams \w+\s*=\s*\{[^}]*?seqlen_q_ori,\s*(\d+)\s*,"), lambda v: BLOCK_KEYS,
        lambda r: r.combine_axes != "packed",
    ),
    Check(
        "blocks that a request costs beside its own", _DENSE,
        Text(r"GetDecodeSchedMetaParams \w+\s*=\s*\{[^}]*?seqlen_q_ori,\s*\d+\s*,\s*(\d+)\s*,"),
        lambda v: OVERHEAD_BLOCKS, lambda r: r.combine_axes != "packed",
    ),
    Check(
        "payload of an SM part", _METADATA,
        Mentions(r"payload\s*=\s*(?:max\()?(?:cutlass::)?ceil_div\(total_num_blocks,\s*num_sm_parts\)\s*\+\s*fixed_overhead"),
        lambda v: True,
    ),
    Check(
        "lower bound of the payload", _METADATA, Mentions(r"max\([^;]*2\s*\*\s*fixed_overhead_num_blocks"),
        lambda v: v.rules.least_payload > 0,
    ),
    Check(
        "most SM parts of the combine kernel", _COMBINE, Text(r"<=\s*(160)\b"), lambda v: 160,
    ),
    Check("heads of a combine block", _COMBINE, Text(r"constexpr int BLOCK_SIZE_M\s*=\s*(\d+)"), lambda v: 8),
)  # fmt: skip

PACKAGES = (
    Package(
        name="flash-mla",
        distributions=("flash-mla",),
        probes=("csrc/api/dense_decode.h", "csrc/kernels/get_mla_metadata.cu", "flash_mla/flash_mla_interface.py"),
        follows=(Followed(engine="flashmla", checks=FLASHMLA),),
    ),
)

"""Decode context parallelism in servers: which releases and backends take it, and how they deal keys and merge.

Read from the wheels of vLLM 0.10.2 to 0.33.0 (vllm/engine/arg_utils.py, config/parallel.py, config/model.py,
v1/attention/backend.py, v1/attention/ops/dcp.py or common.py and dcp_alltoall.py, v1/attention/backends/utils.py:
get_dcp_local_seq_lens, the backends' `can_return_lse_for_decode`) and of SGLang 0.5.10 to 0.5.23 (srt/server_args.py,
srt/arg_groups/parallel_hook.py and overrides.py, srt/layers/dcp/, srt/models/deepseek_common, the attention backends).

Both deal runs of keys to the ranks in turn. vLLM's runs have one key unless `--cp-kv-cache-interleave-size` says
otherwise (0.11.2 has it as `--dcp-kv-cache-interleave-size`); SGLang's always have one on GPUs. Both gather the queries
over the heads, unless the query projection is replicated. vLLM merges by `ag_rs` unless asked (a2a from 0.18 on, over
symmetric memory within a node from 0.28 on); SGLang picks `a2a` on CUDA from 0.5.20 on, and `ag_rs` before. For
ordinary layers SGLang's Triton backend adds the weighted outputs by an all-reduce and keeps its heads.

vLLM's FlashAttention attends the keys of the cache divided, with the gathered heads, and the step's own keys in a
second launch on the rank's heads, and merges the two (`_forward_with_dcp`).
"""

from __future__ import annotations

from decodecalc.launch.policy import version_key

# vLLM's backends by the release from which on they hand out what the merge needs.
_VLLM_BACKENDS = (
    ((0, 10, 2), ("FLASHMLA", "FLASH_ATTN_MLA", "CUTLASS_MLA")),
    ((0, 11, 0), ("TRITON_MLA",)),
    ((0, 11, 2), ("FLASH_ATTN", "FLASHINFER")),
    ((0, 25), ("FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE")),
    ((0, 26), ("TOKENSPEED_MLA",)),
    ((0, 29), ("FLASHMLA_SPARSE", "ROCM_AITER_MLA")),
)
# From this release on backends that cannot merge are left out of vLLM's choice; before, the server stops at start-up.
VLLM_SELECTS = (0, 29)
# SGLang's decode backends by release. The flag came with 0.5.15.
_SGLANG_BACKENDS = (
    ((0, 5, 15), ("flashinfer", "flashmla", "triton")),
    ((0, 5, 18), ("trtllm_mla", "cutedsl_mla")),
    ((0, 5, 20), ("aiter",)),
    ((0, 5, 22), ("dsa",)),
)
SGLANG_FIRST = (0, 5, 15)


def vllm_backends(version: str) -> tuple[str, ...]:
    """Backends of this release of vLLM that can divide keys over ranks."""
    return _from(_VLLM_BACKENDS, version)


def vllm_selects(version: str) -> bool:
    """Whether this release leaves backends that cannot out of its choice."""
    return version_key(version) >= VLLM_SELECTS


def sglang_backends(version: str) -> tuple[str, ...]:
    """Decode backends of this release of SGLang that can divide keys over ranks; empty before the flag came."""
    return _from(_SGLANG_BACKENDS, version)


def _from(table: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...], version: str) -> tuple[str, ...]:
    key = version_key(version)
    return tuple(name for first, names in table if first <= key for name in names)

"""The differences between the versions of vLLM's Triton attention backend.

Read from the vLLM wheels on PyPI: vllm/v1/attention/backends/triton_attn.py (`TritonAttentionMetadataBuilder`,
`TritonAttentionBackend`, `TritonAttentionImpl`), triton_unified_attention.py (`unified_attention`, `_get_tile_size`,
`kernel_unified_attention`, `reduce_segments`), triton_attention_helpers.py (`compute_tile_loop_bounds`) and
int4_per_token_head.py (`_launch_packed_attn`), of every minor release from 0.11 to 0.33.
"""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.engines.vllm.capture import NEWEST_CAPTURE_RULES, CaptureRules
from decodecalc.launch.policy import PolicyVersion

SEGMENTS = 16  # NUM_PAR_SOFTMAX_SEGMENTS
MIN_BLOCKS_2D = 128  # MIN_LAUNCH_GRID_SIZE_2D: with fewer blocks than this the 2D grid counts as too small


class VllmTritonRules(NamedTuple):
    """One version's parameters.

    max_query_len_3d: longest query of a request that the split path takes.
    scratch_per_query: scratch has rows for drafts and is bounded by max_num_seqs; its rows are a gate of their own.
    small_grid_segments: segments where 16 of them leave an SM120 idle (16: no such rule).
    tuned_large_head: head dim 256 with several query tokens has tiles of its own on compute capability 10.x.
    gates_on_grid: the split path is taken while the 2D grid has at most 128 blocks, instead of by a request count.
    batch_invariant_gate: the launcher looks at VLLM_BATCH_INVARIANT.
    prunes_segments: split kernels skip tiles outside the window. gemma3_tile: 32 keys for Gemma 3's shapes.
    int4_launcher: packed INT4 caches have a launcher of their own. non_causal: masks may be non-causal.
    kernels: names of the 2D and 3D kernel.
    cache_dtypes: cache element types that the backend takes. fp8_needs_sm89: it says so at start-up.
    rocm_fp8_query: FP8 caches quantise Q on AMD too. model_runner: the default one (V1 rounds capture sizes).
    """

    max_query_len_3d: int = 8
    scratch_per_query: bool = True
    small_grid_segments: int = 64
    tuned_large_head: bool = True
    gates_on_grid: bool = False
    batch_invariant_gate: bool = True
    prunes_segments: bool = True
    gemma3_tile: bool = True
    int4_launcher: bool = True
    non_causal: bool = True
    kernels: tuple[str, str] = ("kernel_unified_attention", "kernel_unified_attention")
    cache_dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp8", "int8", "int4")
    fp8_needs_sm89: bool = True
    rocm_fp8_query: bool = True
    model_runner: str = "v2"
    capture: CaptureRules = NEWEST_CAPTURE_RULES


_V33 = VllmTritonRules()
_V32 = _V33._replace(max_query_len_3d=1, scratch_per_query=False, rocm_fp8_query=False)
_V31 = _V32._replace(small_grid_segments=SEGMENTS)
_V30 = _V31._replace(capture=CaptureRules(append_max_seqs=False))
_V28 = _V30._replace(capture=CaptureRules(append_max_seqs=False, append_decode_sizes=False), model_runner="v1")
_V27 = _V28._replace(capture=_V28.capture._replace(blackwell_ceiling=512))
_V24 = _V27._replace(int4_launcher=False, cache_dtypes=("bf16", "fp16", "fp32", "fp8", "int8"))
_V23 = _V24._replace(tuned_large_head=False, non_causal=False, fp8_needs_sm89=False)
_V20 = _V23._replace(capture=_V23.capture._replace(append_max_tokens=False))
_V19 = _V20._replace(
    kernels=("kernel_unified_attention_2d", "kernel_unified_attention_3d"),
    cache_dtypes=("bf16", "fp16", "fp32", "fp8"),
)
_V16 = _V19._replace(capture=_V19.capture._replace(interactivity=False))
_V15 = _V16._replace(batch_invariant_gate=False)
_V13 = _V15._replace(prunes_segments=False)
_V12 = _V13._replace(gates_on_grid=True, gemma3_tile=False, capture=_V13.capture._replace(ceiling_counts_drafts=False))

_SOURCE = (
    "vLLM wheel {}: vllm/v1/attention/backends/triton_attn.py (TritonAttentionMetadataBuilder), "
    "triton_unified_attention.py (unified_attention), vllm/config/vllm.py (_set_cudagraph_sizes)"
)


def _version(name: str, first: str, last: str, rules: VllmTritonRules, note: str) -> PolicyVersion:
    return PolicyVersion(name, _SOURCE.format(name), covers=(first, last), rules=rules, note=note)


VERSIONS: tuple[PolicyVersion, ...] = (
    _version("0.33.0", "0.33.0", "0.33.0", _V33, "split path for up to 8 query tokens; scratch rows are a gate"),
    _version("0.32.0", "0.32.0", "0.32.0", _V32, "64 segments on SM120 while 16 leave it idle"),
    _version("0.31.0", "0.31.0", "0.31.0", _V31, "max_num_seqs is a capture size"),
    _version("0.30.0", "0.29.0", "0.30.0", _V30, "whole speculative batches are capture sizes"),
    _version("0.28.0", "0.28.0", "0.28.0", _V28, "capture sizes to 1024 on compute capability 10.x"),
    _version("0.27.1", "0.25.0", "0.27.1", _V27, "packed INT4 caches"),
    _version("0.24.0", "0.24.0", "0.24.0", _V24, "head dim 256 tuned for compute capability 10.x"),
    _version("0.23.0", "0.20.1", "0.23.0", _V23, "max_num_batched_tokens is a capture size"),
    _version("0.20.0", "0.20.0", "0.20.0", _V20, "one kernel for both paths"),
    _version("0.19.1", "0.17.0", "0.19.1", _V19, "interactivity mode"),
    _version("0.16.0", "0.16.0", "0.16.0", _V16, "the launcher honours VLLM_BATCH_INVARIANT"),
    _version("0.15.1", "0.14.0", "0.15.1", _V15, "split kernels skip tiles outside the window"),
    _version("0.13.0", "0.13.0", "0.13.0", _V13, "threshold on requests, snapped to a capture size"),
    _version("0.12.0", "0.11.0", "0.12.0", _V12, "split path while the 2D grid has at most 128 blocks"),
)

"""Options, versions and reported quantities of the sglang-triton policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.policy import PolicyVersion

MIN_BLOCK_KV = 32  # decode_attention.py:_MIN_BLOCK_KV, the keys every split length is rounded up to
BLOCK_H = 16  # query heads of a grouped tile
DEFAULT_CAP, DEFAULT_CAP_HIP = 8, 16  # server_args.py:triton_attention_num_kv_splits, _handle_amd_specifics
DETERMINISTIC_TILE = 256  # SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE
ASSUMED_CONTEXT = 131072  # the model's context length where the user gives none
KV_SPLIT_WARPS = 4  # Triton's default, which the scheduler kernel is launched with

# gfx950 stage-1 geometry (decode_attention.py:_MLA_BUCKETS): up to this many rows, warps, most splits.
MLA_BUCKETS: tuple[tuple[int | None, int, int], ...] = ((5, 4, 112), (24, 2, 256), (None, 1, 256))
MLA_BATCH_FREE_WARPS = 2  # _MLA_BUCKET_BATCH_FREE
MLA_TUNED_TILE = 32  # _MLA_BLOCK_N


class SglangRules(NamedTuple):
    """What differs between releases.

    mla_cap: MLA raises the cap so that one row can fill the GPU. mla_cap_gfx942: most splits it may reach on gfx942.
    value_is_view: MLA takes V from the K tile in registers instead of loading it again. page_aware: kernels split an
    index into page and offset when the page is larger than 1. mla_tune: the opt-in gfx950 geometry exists. lean: AMD
    GPUs may run the persistent "lean" kernel. lean_when_deterministic: even in deterministic mode.
    draft_window: multi-step drafts of models with a window build window indices of their own (without them the launch
    fails). rotate: AMD blocks of uneven batches rotate.
    """

    mla_cap: bool = False
    mla_cap_gfx942: int | None = None
    value_is_view: bool = False
    page_aware: bool = False
    mla_tune: bool = False
    lean: bool = False
    lean_when_deterministic: bool = False
    draft_window: bool = False
    rotate: bool = False


@dataclass(frozen=True, slots=True)
class SglangOptions(EngineOptions):
    """SGLang's server flags and environment variables that decide the launch, and the state of the step."""

    max_kv_splits_arg: int | None = option(
        None,
        "int?",
        "most splits of a row; 8, or 16 on AMD, where SGLang overwrites the flag",
        flag="--triton-attention-num-kv-splits",
        low=1,
    )
    static_kv_splits: bool = option(
        False, "bool", "every row uses the cap", flag="SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS"
    )
    deterministic: bool = option(
        False,
        "bool",
        "split counts depend on the row's own length only",
        flag="--enable-deterministic-inference",
    )
    split_tile_size: int | None = option(
        None,
        "int?",
        "keys per split; 256 in deterministic mode, otherwise off; when set, the cap is ceil(max_context_len / tile)",
        flag="--triton-attention-split-tile-size / SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE",
        low=1,
    )
    max_context_len: int | None = option(
        None,
        "int?",
        "the model's context length; 131072, or the longest request if that is more, when not given",
        flag="--context-length",
        low=1,
    )
    padded_batch: int | None = option(
        None, "int?", "CUDA-graph batch size that is replayed; the rows that fill it up have length 1", low=1
    )
    draft_topk: int | None = option(
        None,
        "int?",
        "multi-step draft decoding: query tokens (branches) of each request",
        flag="--speculative-eagle-topk",
        low=1,
    )
    draft_step: int | None = option(
        None,
        "int?",
        "draft step: a row has this many keys beyond the request's; 1 when only draft_topk is given",
        low=0,
    )
    graph_max_tokens: int | None = option(
        None, "int?", "rows that the CUDA-graph scratch buffers are allocated for", flag="--cuda-graph-max-bs", low=1
    )
    enable_lean_attention: bool | None = option(
        None,
        "bool?",
        "AMD: force the persistent lean kernel on or off; decided by batch and length when not given",
        flag="--enable-lean-attention",
    )
    mla_decode_tune: bool = option(
        False, "bool", "take the gfx950 geometry tuned for 576-wide MLA", flag="SGLANG_MLA_DECODE_TUNE"
    )


class SglangDetail(NamedTuple):
    """SGLang's own quantities, under its names where it has one.

    rows: rows of the launch, padding and draft branches included. head_blocks: grid y. num_kv_splits and kv_len_per_row
    are per request (each of its draft branches has the same). window_num_kv_splits: counts that SGLang computes from
    window lengths and does not use; None without a window. padded_*: what one padding row gets. max_kv_splits_1 and
    kv_chunk_size_1 come from the spread of the lengths, _2 from the grid and the SMs; 0 when the mode is not adaptive.
    """

    mode: str
    kernel: str
    rows: Any
    head_blocks: int
    max_kv_splits: Any
    num_kv_splits: Any
    window_num_kv_splits: Any
    kv_len_per_row: Any
    kv_len_per_split: Any
    padded_requests: Any
    padded_num_kv_splits: Any
    padded_kv_len: int
    padded_kv_len_per_split: Any
    padded_live_splits: Any
    draft_topk: int
    ext_device_core_count: Any
    token_grid: Any
    max_kv_splits_1: Any
    kv_chunk_size_1: Any
    max_kv_splits_2: Any
    kv_chunk_size_2: Any
    heads_with_wrong_kv_head: int
    loads_latent_twice: bool


class Counts(NamedTuple):
    """Outcome of the split rule: counts [N, R], the padding row's count, and how they came about [N]."""

    splits: Any
    padded: Any
    ext_cores: Any = 0
    token_grid: Any = 0
    max_1: Any = 0
    chunk_1: Any = 0
    max_2: Any = 0
    chunk_2: Any = 0
    near_equal: Any = False


# Newest first. Found by comparing the wheels of every release in between.
VERSIONS = (
    PolicyVersion(
        "0.5.23",
        "sglang 0.5.23: triton_backend.py, kernels/ops/attention/{metadata,decode_attention}.py",
        ("0.5.23", "0.5.23"),
        SglangRules(
            mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True, mla_tune=True, lean=True,
            draft_window=True, rotate=True,
        ),
        "drafts of models with a window get window indices; AMD rotates the blocks of uneven batches",
    ),
    PolicyVersion(
        "0.5.22",
        "sglang 0.5.21 to 0.5.22: triton_backend.py, kernels/ops/attention/{metadata,decode_attention}.py",
        ("0.5.21", "0.5.22"),
        SglangRules(
            mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True, mla_tune=True, lean=True
        ),
        "AMD: deterministic inference keeps the standard kernel",
    ),
    PolicyVersion(
        "0.5.20",
        "sglang 0.5.19 to 0.5.20: triton_backend.py, kernels/ops/attention/{metadata,decode_attention}.py",
        ("0.5.19", "0.5.20"),
        SglangRules(
            mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True, mla_tune=True, lean=True,
            lean_when_deterministic=True
        ),
        "AMD: persistent lean kernel for long contexts and large graph batches",
    ),
    PolicyVersion(
        "0.5.18",
        "sglang 0.5.18: triton_backend.py, kernels/ops/attention/{metadata,decode_attention}.py",
        ("0.5.18", "0.5.18"),
        SglangRules(mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True, mla_tune=True),
        "gfx950: opt-in MLA geometry with a batch-wide split count",
    ),
    PolicyVersion(
        "0.5.17",
        "sglang 0.5.15 to 0.5.17: triton_backend.py, triton_ops/ (0.5.16: kernels/ops/attention/)",
        ("0.5.15", "0.5.17"),
        SglangRules(mla_cap=True, mla_cap_gfx942=256, value_is_view=True, page_aware=True),
        "page-aware key addresses",
    ),
    PolicyVersion(
        "0.5.14",
        "sglang 0.5.13 to 0.5.14: triton_backend.py, triton_ops/{metadata,decode_attention}.py",
        ("0.5.13", "0.5.14"),
        SglangRules(mla_cap=True, mla_cap_gfx942=256, value_is_view=True),
        "gfx942: MLA cap at most 256",
    ),
    PolicyVersion(
        "0.5.12",
        "sglang 0.5.12 to 0.5.12.post1: triton_backend.py, triton_ops/decode_attention.py",
        ("0.5.12", "0.5.12.post1"),
        SglangRules(mla_cap=True, value_is_view=True),
        "MLA: cap follows SMs and context; V is a view of the K tile",
    ),
    PolicyVersion(
        "0.5.10",
        "sglang 0.5.3.post3 to 0.5.11 (mainly 0.5.10.post1): triton_backend.py, triton_ops/decode_attention.py",
        ("0.5.3.post3", "0.5.11"),
        SglangRules(),
        "page size 1 in the kernels; one cap for all models",
    ),
)  # fmt: skip

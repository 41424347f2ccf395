"""Launch decisions of FlashAttention 4 recorded from the wheel's and vLLM's own interface: ours are the same."""

from __future__ import annotations

import decodecalc as dc
from decodecalc.engines import load_policy
from decodecalc.errors import GateError

GOLDEN = "flash_attention4"
LEFT_OUT: dict[str, str] = {}
VERSIONS = {"flash-attn-4 4.0.0b36": "4.0.0b36", "vllm 0.33.0": "vllm-0.33"}
# The recording replaced the package's `utils`: its three environment switches all read as set.
SWITCHES = {"clc_scheduler": True, "disable_2cta": True, "disable_s_ping_pong": True}
WHY = {  # the interface's words for our codes
    "head_dim": "AssertionError (head_dim, head_dim_v)=({head_dim}, {v_head_dim}) is not supported on {widths}.",
    "dtypes_differ": "AssertionError q, k, v, and qv must have the same dtype",
    "mla_arch": "AssertionError only support Blackwell arch with qv",
    "mla_window": "AssertionError local not yet supported with qv",
    "split_sm120": "AssertionError SM120 forward only supports num_splits=1",
    "split_sm80": "AssertionError SplitKV not supported on SM 8.0",
    "split_sm90": "AssertionError SplitKV not supported on SM 9.0",
    "paged_sm80": "AssertionError paged KV not supported on SM 8.0",
    "paged_sm120": "AssertionError Paged KV not supported on SM 12.0 in this PR",
    "sparse_split": "ValueError num_splits={num_splits_arg} is not supported with gather_kv_indices (sparse MLA runs "
    "without split-KV)",
    "dequant_page_size": "AssertionError FA4 SM90 fp8-KV-dequant requires the paged-KV page_size == tile_n ({tile_n}); "
    "got page_size={page_size}.",
    "fp8_arch": "AssertionError FP8 is only supported on SM100 (compute capability 10.x) for FA4 CuTe.",
}
WIDTHS = {  # by architecture; 16-bit elements come in steps of 8
    9: "SM90. head_dim and head_dim_v must be between 8 and 256 and divisible by {step}",
    10: "SM100/SM110. head_dim and head_dim_v must be between 8 and 128 and divisible by {step}, or (192, 128) for "
    "DeepSeek, or (256, 256) for hd256",
}
BEFORE_THE_RULE = ("head_dim", "dtypes_differ", "split_sm120", "fp8_arch")


def test_launch_is_the_recorded_one(case, check):
    """Splits, tiles, kernels, their variants, per-request counts and buffers; refusals with the engine's reason."""
    check(case["out"], ours(case["in"]), LEFT_OUT)


def ours(given):
    """Our plan in the recording's words."""
    version = VERSIONS[given["version"]]
    d, dv, mla = given["head_dim"], given["v_head_dim"], given["mla"]
    geo = dc.Geometry(given["q_heads"], given["kv_heads"], d + dv if mla else d, dv, mla=mla)
    batch = dc.Batch(given["kv_lens"], given["q_len"])
    kv = dc.KvCache(dtype=given["kv_dtype"], query_dtype=given["q_dtype"], page_size=given["page_size"] or 1)
    gpu = dc.Gpu(name="recorded", sm_count=given["sm_count"], compute_capability=divmod(given["arch"], 10))
    options = {
        "varlen": given["varlen"],
        "seqused_k": given["seqused_k"],
        "paged": given["page_size"] is not None,
        "pages": given["pages"],
        "page_table_width": given["page_table_width"],
        "max_seqlen_given": given["max_seqlen_given"],
        "max_seqlen_k": given["max_seqlen_k"],
        "causal": given["causal"],
        "window_left": given["window_left"],
        "window_right": given["window_right"],
        "num_splits_arg": given["num_splits_arg"],
        "pack_gqa_arg": given["pack_gqa_arg"],
        "sparse_topk": given["sparse_topk"],
        **SWITCHES,
    }
    try:
        plan = dc.plan(f"flash-attention-4@{version}", geo, batch, kv=kv, gpu=gpu, **options)
    except GateError as refusal:
        return refused(refusal.code, given, version, geo, batch, kv, gpu, options)
    return supported(plan)


def refused(code, given, version, geo, batch, kv, gpu, options):
    """The refusal, and what the rule had picked by then."""
    policy = load_policy("flash-attention-4")
    config = None
    if code not in BEFORE_THE_RULE:
        typed = policy.options_type.from_mapping(policy.name, options)
        config = policy.config(geo, batch, kv, gpu, typed, version)
    tile_n = None if config is None else int(config.n_block_size[0])
    widths = WIDTHS.get(given["arch"] // 10, "").format(step=16 if given["kv_dtype"] == "fp8" else 8)
    return {
        "supported": False,
        "why": WHY[code].format(**given, tile_n=tile_n, widths=widths),
        "num_splits_chosen": None if config is None else int(config.num_splits[0]),
    }


def supported(plan):
    """The launch, with what the scheduler and combine kernels get where they run."""
    d = plan.detail
    prepared, merged = d.prepare_kernel_launched, plan.merge is not None
    return {
        "supported": True,
        "num_splits": plan.splits.launched,
        "kernel": plan.stage1.name,
        "tile_m": d.tile_m,
        "tile_n": d.tile_n,
        "config_tile_m": d.tile_m,
        "config_tile_n": d.tile_n,
        "config_num_splits": d.config_num_splits,
        "q_stage": d.q_stage,
        "pack_gqa": d.pack_gqa,
        "head_groups": d.head_groups,
        "split_kv_kernel": plan.path == "split",
        "two_cta": d.two_cta,
        "static_persistent": d.static_persistent,
        "clc_scheduler": d.clc_scheduler,
        "s_ping_pong": d.s_ping_pong,
        "paged_non_tma": d.paged_non_tma,
        "prepare_kernel_launched": any(kernel.role == "scheduler" for kernel in plan.kernels),
        "dynamic_splits_per_request": list(plan.splits.requested) if prepared else None,
        "m_blocks_per_request": list(d.m_blocks) if prepared else None,
        "combine_launched": merged,
        "combine_tile_m": d.combine_tile_m if merged else None,
        "combine_k_block": d.combine_k_block if merged else None,
        "combine_log_max_splits": d.combine_log_max_splits if merged else None,
        "partial_bytes": plan.scratch_bytes if merged else None,
    }

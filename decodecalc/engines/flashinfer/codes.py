"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "cache_dtype": "The cache is of no type that the kernel is compiled for.",
        "fixed_split_needs_tensor_cores": "A fixed split size needs the tensor-core planner.",
        "fp8_keys": "FP8 keys need Hopper, bf16 queries and a latent of 512.",
        "group_size_not_compiled_for_cuda_cores": "The CUDA-core kernel is not compiled for this group.",
        "hopper_group": "The Hopper kernel cannot hold this group in a block.",
        "kv_shorter_than_q_len": "A request has fewer keys than query tokens.",
        "no_fixed_split": "This version has no fixed split size and cannot forbid splitting.",
        "nvfp4_needs_sm12x": "An NVFP4 cache needs compute capability 12.x.",
        "q_len_needs_tensor_cores": "Several query tokens need the tensor-core planner.",
        "query_tile": "The kernel is not compiled for tiles of this many query rows.",
        "ragged_q": "With packed queries, the promised query length has to be that of the longest draft.",
        "too_few_sms": "The device has too few SMs for a cluster.",
        "too_many_work_items": "The work items exceed the plan's arrays.",
        "wide_head_draft": "Heads wider than 256 have no speculative decoding.",
        "wide_head_group": "Heads wider than 256 take groups of up to 16 only.",
        "window_sinks_or_softcap": "The engine has no sliding window, no sinks and no soft cap.",
        "work_items_exceed_padded_batch_size": "The work items exceed the grid that the CUDA graph is padded to.",
    },
    gates={
        "backend_is_fa2": "The wrapper runs fa2, whose plan this is.",
        "backend_is_planned": "The wrapper tries the planned backend first.",
        "both_kernels_compile": "The build compiles, the kernel that does not run included.",
        "causal_tile_bound": "The kernel walks every key that the planner counts.",
        "cuda_graph": "The plan is made for capture in a CUDA graph.",
        "fits_padded_grid": "The work items fit the padded grid.",
        "hopper_fp8_kernel": "Hopper's own FP8 kernel runs.",
        "keys_hold_queries": "Every request has at least as many keys as query tokens.",
        "merge_in_kernel": "Partial states are merged inside the kernel.",
        "tensor_cores": "The tensor-core planner and kernel run.",
        "work_items_fit": "The work items fit the plan's arrays.",
    },
)

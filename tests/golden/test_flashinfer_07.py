"""Our plans against launches recorded from the wrapper and the planners of FlashInfer 0.7.2.post1 and 0.7.4."""

from __future__ import annotations

import pytest

import decodecalc as dc

GOLDEN = "flashinfer_07"
LEFT_OUT: dict[str, str] = {}

# Shared memory that a block may opt in to, by compute capability, as the recording set it.
OPT_IN_KIB = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227}


def gpu_of(given):
    """The recorded device: SM count, compute capability and opt-in shared memory."""
    capability = tuple(given["compute_capability"])
    return dc.load_gpu("h100-sxm").with_(
        sm_count=given["sm_count"],
        compute_capability=capability,
        max_smem_bytes_per_block=OPT_IN_KIB.get(capability, 99) * 1024,
    )


def plan_of(given):
    """The plan of one recorded call. The recording reports cuDNN as absent."""
    window = None if given["window_left"] < 0 else given["window_left"] + 1
    names = ("path", "backend", "cuda_graph", "fixed_split_size_pages", "disable_split_kv", "blocks_per_sm")
    return dc.plan(
        f"flashinfer@{given['version']}",
        dc.Geometry(given["q_heads"], given["kv_heads"], given["head_dim"], window=window),
        dc.Batch(given["kv_lens"], given["q_len"]),
        kv=dc.KvCache(given["kv_dtype"], given["page_size"], query_dtype=given["q_dtype"]),
        gpu=gpu_of(given),
        cudnn_frontend="absent",
        **{name: given[name] for name in names},
    )


def code_of(why):
    """The code of the refusal that FlashInfer words as `why`."""
    if why.startswith("Unsupported group_size"):
        return "group_size_not_compiled_for_cuda_cores"
    if "padded batch size" in why:
        return "work_items_exceed_padded_batch_size"
    if "requires kv_len" in why:
        return "kv_shorter_than_q_len"
    if "q_len_per_req" in why:
        return "q_len_needs_tensor_cores"
    return "fixed_split_needs_tensor_cores" if "fixed_split_size" in why else f"no code for {why}"


def test_plans_what_flashinfer_launches(case, check):
    """Plan arguments, chunk, work items, padded grid, merge and both workspaces are those of the recorded version."""
    given, recorded = case["in"], case["out"]
    if not recorded["supported"]:
        with pytest.raises(dc.GateError) as refused:
            plan_of(given)
        assert refused.value.code == code_of(recorded["why"])
        return
    plan = plan_of(given)
    detail = plan.detail
    tensor_cores = detail.kernel_path == "tensor_cores"
    arguments = {
        name: getattr(detail, name) for name in ("total_num_rows", "uniform_q_len", "fixed_uniform_q_len", "causal")
    }
    ours = {
        "supported": True,
        "split_kv": plan.is_split,
        "kv_chunk_tokens": detail.kv_chunk_tokens or None,
        "chunks_per_request": list(plan.splits.requested),
        "q_tiles_per_request": list(detail.q_tiles_per_request) if tensor_cores else None,
        "cta_tile_q": detail.cta_tile_q,
        "work_items": detail.work_items,
        "padded_batch_size": detail.padded_batch_size,
        "grid": list(plan.stage1.grid),
        "merge_launched": plan.merge is not None,
        "partial_rows": detail.partial_rows or None,
        "float_workspace_bytes": detail.float_workspace_bytes,
        "int_workspace_bytes": detail.int_workspace_bytes,
        "plan_args": arguments if tensor_cores else {},
    }
    check(recorded, ours, LEFT_OUT)
    if tensor_cores:
        assert plan.scratch_bytes == recorded["float_workspace_bytes"]

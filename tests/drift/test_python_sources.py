"""Checks of packages whose rules are Python: small trees of our own that hold, and that differ in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from decodecalc.drift import inspect_path

Build = Callable[[Mapping[str, str]], Path]

FA4 = """
S_PING_PONG_MIN_N_BLOCKS_PER_SPLIT = {64: 16, 128: 64}

def num_splits_heuristic(total_mblocks, num_SMs, num_n_blocks, max_splits):
    if num_n_blocks <= 4 or total_mblocks == 0:
        return 1
    return max(1, min(num_SMs // total_mblocks, max_splits, num_n_blocks))

def forward(gather_kv_length, num_splits):
    assert gather_kv_length % 128 == 0
    assert num_splits <= 256
"""
FA4_TREE = {
    "flash_attn/cute/interface.py": FA4,
    "flash_attn/cute/flash_fwd_mla_1cta_kb64_sm100.py": "class Kernel:\n    MIN_BLOCKS_PER_SPLIT = 4\n",
    "flash_attn/cute/prepare_scheduler.py": "blocks = (num_batch + (31 * 32 - 1)) // (31 * 32)\n",
    "flash_attn_4-4.0.0b36.dist-info/METADATA": "Name: flash-attn-4\nVersion: 4.0.0b36\n",
}
XQA_BUILD = """
if page_size not in [16, 32, 64, 128]:
    raise ValueError
if head_dim % 16 != 0 or head_dim > 512 or head_dim < 16:
    raise ValueError
if head_dim > 256:
    pass
"""
XQA_CALL = """
q_cu_seq_lens = None
assert capability in [12], (
    "XQA NVFP4 KV is only supported on SM12x GPUs"
)
if capability not in [9, 10, 12]:
    raise RuntimeError("XQA is only supported on SM90, SM100, SM120/SM121 GPUs")
"""
WRAPPER = """
_CUDNN_DECODE_MAX_KV_BUCKET = 2048
_AUTO_CUDNN_MIN_ROWS = 32
_AUTO_CUDNN_MAX_ROWS = 128
_AUTO_CUDNN_MIN_UNITS = 64
_AUTO_CUDNN_D256_MIN_UNITS = 96
_AUTO_CUDNN_D256_MIN_UNITS_REPLAY = 64
_AUTO_CUDNN_D256_MAX_UNITS = 256
_AUTO_CUDNN_D256_GROUPS = (4, 8, 16)

def measured(head_dim, page_size, num_qo_heads, num_kv_heads, batch_size, q_len_per_req):
    if (head_dim, page_size, num_qo_heads, num_kv_heads) != (128, 16, 32, 8):
        return False
    if batch_size not in (4, 16, 64):
        return False
    return not (q_len_per_req not in (4, 8))
"""
SCHEDULER = """
int kv_len_limit = f(std::max(ceil_div(total_kv_lens, num_clusters), 1L));
if (fixed_uniform_q_len && uniform_q_len > 0 && total_num_tiles_q > max_batch_size_if_split) {}
"""
FLASHINFER_TREE = {
    "flashinfer/data/include/flashinfer/attention/scheduler.cuh": SCHEDULER,
    "flashinfer/decode.py": WRAPPER,
    "flashinfer/cudnn/utils.py": "CUDNN_FRONTEND_FROST_DECODE_MIN_VERSION = (1, 30, 0)\n",
    "flashinfer/jit/xqa.py": XQA_BUILD,
    "flashinfer/xqa.py": XQA_CALL,
    "flashinfer/mla/_batch_mla/_backends/_fa_common.py": "_FA_MAX_WORK_ITEMS = 16384  # work items\n",
    "flashinfer_python-0.7.4.dist-info/METADATA": "Name: flashinfer-python\nVersion: 0.7.4\n",
}
AITER_MLA = """
_MLA_DECODE_PERSISTENT_MAX_BATCH_DEFAULT = 32

def get_meta_param(num_kv_splits, bs, total_kv):
    overhead = 84.1
    return max((score(i, overhead), i) for i in range(1, 17))[1]
"""


def differing(path: Path) -> dict[str, dict[str, tuple[object, object]]]:
    """Engine -> what differs -> (expected, found), of all packages in a tree."""
    return {
        verdict.engine: {outcome.what: (outcome.expected, outcome.found) for outcome in verdict.differences}
        for verdict in inspect_path(str(path))
    }


def test_flash_attention_4_is_followed_through_its_interface(tree: Build) -> None:
    """The wheel's split rule, its bounds and its scheduler's share are those of the policy."""
    (verdict,) = inspect_path(str(tree(FA4_TREE)))
    assert (verdict.engine, verdict.policy_version, verdict.status) == ("flash-attention-4", "4.0.0b36", "same")
    assert len(verdict.outcomes) == 6


def test_another_split_rule_is_found_by_what_it_computes(tree: Build) -> None:
    """A floor of 3 key blocks instead of 4 changes one of the steps that are compared."""
    files = {**FA4_TREE, "flash_attn/cute/interface.py": FA4.replace("num_n_blocks <= 4", "num_n_blocks <= 5")}
    found = differing(tree(files))["flash-attention-4"]
    assert list(found) == ["split count"]


def test_xqa_and_mla_follow_the_same_package(tree: Build) -> None:
    """FlashInfer's wheel decides three policies; the ones that read Python here agree with it."""
    found = differing(tree(FLASHINFER_TREE))
    assert found["flashinfer-xqa"] == found["flashinfer-mla"] == {}
    routes = {what for what in found["flashinfer"] if "route" in what or "graph" in what or "replayed" in what}
    assert routes == set()


def test_routing_constants_that_moved_are_named(tree: Build) -> None:
    """A wider band of units, another page of XQA and a smaller plan each show up under the engine they decide."""
    files = dict(FLASHINFER_TREE)
    files["flashinfer/decode.py"] = WRAPPER.replace("MAX_UNITS = 256", "MAX_UNITS = 300").replace("(4, 16, 64)", "(4,)")
    files["flashinfer/jit/xqa.py"] = XQA_BUILD.replace("[16, 32, 64, 128]", "[32, 64]")
    files["flashinfer/mla/_batch_mla/_backends/_fa_common.py"] = "_FA_MAX_WORK_ITEMS = 8192  # work items\n"
    files["flashinfer/data/include/flashinfer/attention/scheduler.cuh"] = SCHEDULER.replace(
        "fixed_uniform_q_len && ", ""
    )
    found = differing(tree(files))
    assert found["flashinfer-xqa"]["pages that the kernel compiles for"] == ("16, 32, 64, 128", "32, 64")
    assert found["flashinfer-mla"]["most work items of the plan"] == (16384, 8192)
    assert found["flashinfer"]["requests x KV heads of the cuDNN route at head dim 256, at most"] == (256, 300)
    assert any("unsplit" in what for what in found["flashinfer"])


def test_aiters_mla_is_followed(tree: Build) -> None:
    """The cost of a split, the most splits and the batch that drops a plan; another cost differs."""
    files = {
        "aiter/mla.py": AITER_MLA,
        "aiter/ops/triton/attention/unified_attention.py": "",
        "amd_aiter-0.1.20.dist-info/METADATA": "Name: amd-aiter\nVersion: 0.1.20\n",
    }
    assert differing(tree(files))["aiter-mla"] == {}
    files["aiter/mla.py"] = AITER_MLA.replace("84.1", "90.0")
    assert list(differing(tree(files))["aiter-mla"]) == ["cost of a split without a plan, in keys"]

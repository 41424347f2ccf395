"""What decides aiter's unified attention, and where its Python says so."""

from __future__ import annotations

from typing import Any

from decodecalc.batch import Batch
from decodecalc.drift.checks import Check, Computes, Constant, Text
from decodecalc.drift.package import Followed, Package
from decodecalc.engines.aiter import mla
from decodecalc.geometry import Geometry
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import PolicyVersion


def _plan(version: PolicyVersion, geo: Geometry, batch: Batch, **options: Any) -> LaunchPlan:
    from decodecalc.engines import plan

    return plan(f"aiter-unified@{version.name}", geo, batch, **options)


_AITER = ("aiter/ops/triton/attention/unified_attention.py", "aiter/ops/triton/unified_attention.py")
_CUS = 304
# (head_dim, window, query tokens, longest, 2D blocks)
_AITER_STEPS = (
    (128, 0, 1, 4096, 64), (128, 0, 1, 512, 8), (128, 0, 1, 513, 8), (128, 128, 1, 4096, 8), (128, 0, 1, 4096, 1218),
    (128, 0, 1, 4096, 1216),
)  # fmt: skip
_AITER_GIVEN = {
    "IS_DEVICE_ARCH_GFX12": False, "arch.is_rdna": False, "get_arch().is_rdna": False, "arch.name": "gfx942",
    "DEVICE_ARCH": "gfx942", "shuffled_kv_cache": False, "kv_cache_dtype": "bf16", "q_dtype": "bf16",
    "e4m3_dtype": "fp8", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.uint8": "fp4",
    "NUM_BLOCKS_GATHER_PER_TILE": 1, "SLIDING_WINDOW": 0, "element_size": 2,
}  # fmt: skip


def _aiter_unsplit(version: PolicyVersion) -> tuple[bool, ...]:
    # Groups of 16: a request is one query block, or two where the grid is an upper bound.
    found = []
    for d, window, q, longest, blocks in _AITER_STEPS:
        geo = Geometry(16, 1, d, window=window or None)
        batch = blocks if version.rules.exact_decode_blocks else blocks // 2
        p = _plan(version, geo, Batch.uniform(batch, longest, q), gpu="mi300x")
        found.append(not p.is_split)
    return tuple(found)


_SEGMENT_STEPS = ((4096, 1), (4096, 64), (131_072, 8), (600, 8), (131_072, 700))  # (longest, blocks)


def _aiter_segments(version: PolicyVersion) -> tuple[int, ...]:
    from decodecalc.engines.aiter.unified import _segments

    return tuple(
        int(_segments(longest, 16, 4 * _CUS, blocks, version.rules, False)) for longest, blocks in _SEGMENT_STEPS
    )


AITER = (
    Check(
        "2D or 3D", _AITER,
        Computes(
            "use_2d_kernel", "return",
            tuple(
                {
                    "head_size": d, "sliding_window": w, "all_decode": q == 1, "max_seqlen_q": q, "max_seqlen_k": n,
                    "num_2d_prgms": blocks, "target_num_prgms": 4 * _CUS,
                }
                for d, w, q, n, blocks in _AITER_STEPS
            ),
            _AITER_GIVEN,
        ),
        _aiter_unsplit,
        cases=tuple(f"window {w}, {n} keys, {b} blocks" for _, w, _, n, b in _AITER_STEPS),
    ),
    Check(
        "segments", _AITER,
        Computes(
            "select_3d_config", "num_segments",
            tuple(
                {
                    "max_seqlen_k": n, "num_2d_prgms": blocks, "head_size": 128, "block_size": 16,
                    "target_num_prgms": 4 * _CUS,
                }
                for n, blocks in _SEGMENT_STEPS
            ),
            _AITER_GIVEN,
        ),
        _aiter_segments, cases=tuple(f"{n} keys, {b} blocks" for n, b in _SEGMENT_STEPS),
    ),
    Check(
        "keys of a split tile, pages of 128", _AITER,
        Computes(
            "select_3d_config", "TILE_SIZE", ({"block_size": 128},),
            {
                **_AITER_GIVEN, "max_seqlen_k": 4096, "num_2d_prgms": 8, "head_size": 128,
                "target_num_prgms": 4 * _CUS,
            },
        ),
        lambda v: (128 if v.rules.page_tile else 64,),
    ),
    Check(
        "query blocks of a decode step of 64 requests, group 8", _AITER,
        Computes(
            "unified_attention", "total_num_q_blocks", ({},),
            {
                **_AITER_GIVEN, "q.shape": (64, 8, 128), "k.shape": (99, 16, 1, 128), "v.shape": (99, 16, 1, 128),
                "num_seqs": 64, "max_seqlen_q": 1, "max_seqlen_k": 400, "window_size": (-1, -1), "sinks": None,
                "get_num_sms()": _CUS, "use_gluon_2d": False, "block_size": 16,
            },
        ),
        lambda v: (
            _plan(v, Geometry(8, 1, 128), Batch.uniform(64, 400), gpu="mi300x").stage1.grid[1],
        ),
    ),
)  # fmt: skip

_MLA = ("aiter/mla.py",)

AITER_MLA = (
    Check("cost of a split without a plan, in keys", _MLA, Text(r"\boverhead\s*=\s*([\d.]+)"),
          lambda v: mla.SPLIT_OVERHEAD),
    Check("most splits without a plan", _MLA, Text(r"for i in range\(1, (\d+)\)"), lambda v: mla.MOST_SPLITS + 1),
    Check(
        "batch from which a plan is dropped", _MLA, Constant("_MLA_DECODE_PERSISTENT_MAX_BATCH_DEFAULT"),
        lambda v: mla.PERSISTENT_MAX_BATCH, when=lambda rules: rules.causal_option,
    ),
)  # fmt: skip

PACKAGES = (
    Package(
        name="aiter",
        distributions=("amd-aiter", "aiter"),
        probes=("aiter/ops/triton/attention/unified_attention.py", "aiter/ops/triton/unified_attention.py"),
        follows=(
            Followed(engine="aiter-unified", checks=AITER),
            Followed(engine="aiter-mla", checks=AITER_MLA, needs=("aiter/mla.py", "get_meta_param")),
        ),
        version_files=("aiter/_version.py",),
    ),
)

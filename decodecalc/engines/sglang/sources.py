"""What decides the launches of SGLang's Triton backend, and where its Python says so (0.5.3.post3 to 0.5.23)."""

from __future__ import annotations

from typing import Any

from decodecalc.batch import Batch
from decodecalc.drift.checks import (
    AnyOf,
    Argument,
    Check,
    Computes,
    Constant,
    Defined,
    Keyword,
    LaunchCalls,
    SetTo,
    Uses,
)
from decodecalc.drift.package import Followed, Package
from decodecalc.engines.sglang import options as ours
from decodecalc.geometry import Geometry
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import PolicyVersion

BACKEND = ("sglang/srt/layers/attention/triton_backend.py",)
RULE = (
    "sglang/kernels/ops/attention/metadata.py",
    "sglang/srt/layers/attention/triton_ops/metadata.py",
    *BACKEND,
)
KERNEL = (
    "sglang/kernels/ops/attention/decode_attention.py",
    "sglang/srt/layers/attention/triton_ops/decode_attention.py",
)
ARGUMENTS = (
    "sglang/srt/arg_groups/fields/exec_.py",
    "sglang/srt/server_args.py",
)
AMD = (
    "sglang/srt/arg_groups/platform_hook.py",
    "sglang/srt/arg_groups/overrides.py",
    "sglang/srt/server_args.py",
)


def _plan(version: PolicyVersion, geo: Geometry, batch: Batch, gpu: str = "h100-sxm", **options: Any) -> LaunchPlan:
    from decodecalc.engines import plan

    return plan(f"sglang-triton@{version.name}", geo, batch, gpu=gpu, **options)


# (requests, q_heads, kv_heads, shortest, longest, cap): the count of the longest request is compared.
_STEPS = (
    (1, 32, 8, 2560, 2560, 8),
    (16, 32, 32, 4096, 4096, 8),
    (2, 32, 8, 128, 8192, 8),
    (2, 32, 8, 8000, 9900, 8),
    (2, 32, 8, 8000, 10_100, 8),
    (32, 64, 8, 512, 32_768, 8),
    (256, 8, 1, 1000, 1000, 8),
    (40, 28, 4, 5000, 5000, 16),
    (3, 128, 1, 30, 50, 64),
)


def _counts(version: PolicyVersion) -> tuple[int, ...]:
    found = []
    for b, q, kv, shortest, longest, cap in _STEPS:
        lens = [shortest, *[longest] * (b - 1)] if b > 1 else [longest]
        found.append(_plan(version, Geometry(q, kv, 128), Batch(lens), max_kv_splits_arg=cap).splits.requested[-1])
    return tuple(found)


_CONTEXTS = (4096, 32_768, 131_072)


def _mla_caps(version: PolicyVersion, gpu: str) -> tuple[int, ...]:
    mla = Geometry(16, 1, 576, 512, mla=True)
    return tuple(
        _plan(version, mla, Batch.uniform(1, 64), gpu, max_context_len=n).detail.max_kv_splits for n in _CONTEXTS
    )


def _cap_reader(sm_count: int, amd: bool, gfx942: bool) -> Computes:
    start = 16 if amd else 8
    return Computes(
        "TritonAttnBackend.__init__",
        "self.max_kv_splits",
        tuple({"self.max_context_len": n} for n in _CONTEXTS),
        {
            "self.use_mla": True, "_is_xpu": False, "_is_gfx942": gfx942, "self.device_core_count": sm_count,
            "model_runner.server_args.triton_attention_num_kv_splits": start,
            "get_global_server_args().triton_attention_num_kv_splits": start,
            "get_exec().kernel.triton_attention_num_kv_splits": start,
            "self.split_tile_size": None,
        },
    )  # fmt: skip


# (rows, q_heads, kv_heads, head_dim, cap)
_SHAPES = ((4, 32, 8, 128, 8), (1, 71, 1, 64, 8), (3, 40, 2, 128, 16), (2, 16, 1, 576, 8))
_GROUPED_GIVEN = {
    "tune_mla": False, "forced_kv_splits": 0, "page_size": 1, "has_mla": False, "use_pdl": False,
    "uneven_batch": None, "score_mod": None, "aux_tensors": None,
}  # fmt: skip


def _shape_names(shape: tuple[int, ...]) -> dict[str, Any]:
    rows, q, kv, d, cap = shape
    return {
        "q.shape": (rows, q, d), "k_buffer.shape": (99, kv, d), "v_buffer.shape": (99, kv, min(d, 512)),
        "max_kv_splits": cap,
    }  # fmt: skip


def _grids(version: PolicyVersion, shapes: tuple[tuple[int, ...], ...], gpu: str) -> tuple[Any, ...]:
    found = []
    for rows, q, kv, d, cap in shapes:
        geo = Geometry(q, kv, d, 512, mla=True) if d == 576 else Geometry(q, kv, d)
        # MLA raises the cap in some releases: the grid's last extent is the cap that the launcher is given.
        p = _plan(version, geo, Batch.uniform(rows, 999), gpu, max_kv_splits_arg=cap, enable_lean_attention=False)
        stage1 = p.stage1
        found.append(((stage1.name, (*stage1.grid[:2], cap), p.tile_keys),))
    return tuple(found)


def _grouped(hip: bool) -> LaunchCalls:
    return LaunchCalls(
        "_decode_grouped_att_m_fwd", tuple(_shape_names(s) for s in _SHAPES), {**_GROUPED_GIVEN, "_is_hip": hip},
        ("BLOCK_N",), True,
    )  # fmt: skip


_MHA_SHAPES = ((2, 16, 16, 128, 8),)
_SHAPE_NAMES = tuple(f"{r} rows, {q}/{kv}/{d}, cap {cap}" for r, q, kv, d, cap in _SHAPES)

TRITON = (
    Check("keys that a split length is a multiple of", KERNEL, Constant("_MIN_BLOCK_KV"), lambda v: ours.MIN_BLOCK_KV),
    Check(
        "default cap", ARGUMENTS,
        AnyOf((
            Constant("ServerArgs.triton_attention_num_kv_splits"),
            SetTo("triton_attention_num_kv_splits"),
        )),
        lambda v: ours.DEFAULT_CAP,
    ),
    Check(
        "default cap on AMD", AMD,
        AnyOf((
            Keyword("declare_resolution", "triton_attention_num_kv_splits"),
            SetTo("self.triton_attention_num_kv_splits"),
        )),
        lambda v: ours.DEFAULT_CAP_HIP,
    ),
    Check(
        "keys per split when deterministic", BACKEND, Argument("SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE"),
        lambda v: ours.DETERMINISTIC_TILE,
    ),
    Check(
        "adaptive split count", RULE,
        Computes(
            "get_num_kv_splits_triton", "num_kv_splits",
            tuple(
                {
                    "num_seq": b, "num_head": q, "num_kv_head": kv, "tl.max()": longest, "tl.min()": shortest,
                    "tl.load()": longest, "max_kv_splits": cap,
                }
                for b, q, kv, shortest, longest, cap in _STEPS
            ),
            {"num_group": 1, "device_core_count": 132, "uneven_batch_ptr": None},
        ),
        _counts, cases=tuple(f"batch {b}, {q}/{kv}, {lo} to {hi} keys, cap {c}" for b, q, kv, lo, hi, c in _STEPS),
    ),
    Check(
        "cap of MLA models on an H100", BACKEND, _cap_reader(132, False, False), lambda v: _mla_caps(v, "h100-sxm"),
        cases=tuple(f"context {n}" for n in _CONTEXTS),
    ),
    Check(
        "cap of MLA models on an MI300X", BACKEND, _cap_reader(304, True, True), lambda v: _mla_caps(v, "mi300x"),
        cases=tuple(f"context {n}" for n in _CONTEXTS),
    ),
    Check(
        "grouped kernel, grid and tile", KERNEL, _grouped(False), lambda v: _grids(v, _SHAPES, "h100-sxm"),
        cases=_SHAPE_NAMES,
    ),
    Check(
        "grouped kernel, grid and tile on AMD", KERNEL, _grouped(True), lambda v: _grids(v, _SHAPES, "mi300x"),
        cases=_SHAPE_NAMES,
    ),
    Check(
        "kernel of MHA, grid and tile", KERNEL,
        LaunchCalls(
            "_decode_att_m_fwd", tuple(_shape_names(s) for s in _MHA_SHAPES), {**_GROUPED_GIVEN, "_is_hip": False},
            ("BLOCK_N",), True,
        ),
        lambda v: _grids(v, _MHA_SHAPES, "h100-sxm"),
    ),
    Check(
        "page-aware key addresses", KERNEL, Uses("_decode_grouped_att_m_fwd", "page_size"),
        lambda v: v.rules.page_aware,
    ),
    Check("tuned MLA geometry exists", KERNEL, Defined("_MLA_BUCKETS"), lambda v: v.rules.mla_tune),
    Check(
        "tuned MLA tile", KERNEL, Constant("_MLA_BLOCK_N"), lambda v: ours.MLA_TUNED_TILE, lambda r: r.mla_tune,
    ),
    Check(
        "tuned MLA splits", KERNEL,
        Computes(
            "_mla_kv_splits", "return",
            tuple({"batch": b, "head_tiles": 1, "max_kv_splits": 256, "core_count": 256} for b in (1, 4, 6, 24, 25)),
        ),
        lambda v: tuple(
            _plan(
                v, Geometry(16, 1, 576, 512, mla=True), Batch.uniform(b, 60_000), "mi355x", mla_decode_tune=True,
                max_kv_splits_arg=256, enable_lean_attention=False,
            ).splits.requested[0]
            for b in (1, 4, 6, 24, 25)
        ),
        lambda r: r.mla_tune, tuple(f"{b} rows" for b in (1, 4, 6, 24, 25)),
    ),
    Check(
        "persistent lean kernel of AMD", KERNEL, Defined("_lean_attention_decode_kernel"), lambda v: v.rules.lean,
    ),
    Check(
        "AMD rotates the blocks of uneven batches", KERNEL, Defined("_rotate_batch"), lambda v: v.rules.rotate,
    ),
)  # fmt: skip

PACKAGES = (
    Package(
        name="sglang",
        distributions=("sglang",),
        probes=("sglang/srt/layers/attention/triton_backend.py",),
        follows=(Followed(engine="sglang-triton", checks=TRITON),),
        roots=("", "python/"),
        version_files=("sglang/_version.py", "sglang/version.py", "pyproject.toml"),
    ),
)

"""What decides the launches of PyTorch's FlexAttention, and where its Python says so."""

from __future__ import annotations

from typing import Any

from decodecalc.batch import Batch
from decodecalc.drift.checks import Check, Computes, Text
from decodecalc.drift.package import Followed, Package
from decodecalc.geometry import Geometry
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import PolicyVersion


def _plan(version: PolicyVersion, geo: Geometry, batch: Batch, **options: Any) -> LaunchPlan:
    from decodecalc.engines import plan

    return plan(f"flex-decoding@{version.name}", geo, batch, **options)


_FLEX = ("torch/_inductor/kernel/flex/flex_decoding.py", "torch/_inductor/kernel/flex_decoding.py")
_FLEX_STEPS = ((1, 8), (4, 8), (16, 8), (64, 8), (300, 8), (1, 1))


def _flex_splits(version: PolicyVersion) -> tuple[int, ...]:
    return tuple(_plan(version, Geometry(kv, kv, 128), Batch.uniform(b, 999)).detail.SPLIT_KV for b, kv in _FLEX_STEPS)


FLEX_DECODING = (
    Check(
        "SPLIT_KV", _FLEX,
        Computes(
            "get_split_k", "return",
            tuple({"B": b, "H": kv} for b, kv in _FLEX_STEPS),
            {"num_SM": 132, "torch.xpu.is_available()": False, "Mk": 999, "torch.version.hip": None},
        ),
        _flex_splits, cases=tuple(f"{b} requests, {kv} KV heads" for b, kv in _FLEX_STEPS),
    ),
    Check(
        "query tokens from which the unsplit kernel runs", _FLEX,
        Text(r"(?:Lt|statically_known_lt|evaluate_expr)\(\s*(?:sympy\.Lt\()?query\.get_size\(\)\[-2\],\s*(\d+)\)"),
        lambda v: 128,
    ),
    Check(
        "grid", _FLEX,
        Computes(
            "flex_decoding_grid", "return",
            ({"batch_size": 3, "kv_heads": 8, "gqa_group_size": 4, "seq_len_q": 1},),
            {"meta": {"BLOCK_M": 16, "SPLIT_KV": 10}, "num_queries": 1, "d_model": 128, "n_keys": 4096},
        ),
        lambda v: (((1, 24, 10) if v.rules.rows_first else (24, 10, 1)),),
    ),
)  # fmt: skip

PACKAGES = (
    Package(
        name="torch",
        distributions=("torch",),
        probes=("torch/_inductor/kernel/flex/flex_decoding.py", "torch/_inductor/kernel/flex_decoding.py"),
        follows=(Followed(engine="flex-decoding", checks=FLEX_DECODING),),
        version_files=("torch/version.py", "version.txt"),
    ),
)

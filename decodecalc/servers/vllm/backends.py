"""What every backend of every release accepts: the newest table, and the steps back from one release to the one before.

Each `before_N` takes the table of the release N and gives that of the release before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodecalc.servers.vllm import flash_attn
from decodecalc.servers.vllm.accepts import HALF, PLAIN_DTYPES, Accepts, Size, multiple_of, no, sizes
from decodecalc.servers.vllm.amd import AMD
from decodecalc.servers.vllm.ask import Ask
from decodecalc.servers.vllm.dense import DENSE, FP8, FP8_ANY, TRITON_ATTN
from decodecalc.servers.vllm.latent import LATENT

Table = Mapping[str, Accepts]
_DENSE_MLA = ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA")

NEWEST: Table = {**DENSE, **LATENT, **AMD}


def _step(table: Table, without: tuple[str, ...] = (), **changes: Mapping[str, Any]) -> Table:
    """The table without some backends and with some fields of others changed."""
    out = {name: accepts for name, accepts in table.items() if name not in without}
    for name, fields in changes.items():
        out[name] = out[name]._replace(**fields)
    return out


def before_33(table: Table) -> Table:
    """0.32.0."""
    return _step(table, without=("FLASH_ATTN_MLA_SPARSE_FA4", "ROCM_OCTAVE"))


def before_32(table: Table) -> Table:
    """0.31.0."""
    return _step(
        table,
        without=("ROCM_SEGMENTED_ATTN", "ULTRAQUANT"),
        FLASH_ATTN_MLA_SPARSE={"pages": lambda _: sizes(64)},
        FLASHINFER_MLA_SPARSE={"pages": lambda _: sizes(32, 64), "cuda_graphs": lambda _: "ALWAYS"},
        FLASHINFER_MLA_SPARSE_SM120={"pages": lambda _: sizes(64, 256)},
        FLASHMLA_SPARSE={"pages": lambda _: sizes(64)},
    )


def before_31(table: Table) -> Table:
    """0.30.0."""
    return _step(
        table,
        FLASHMLA_SPARSE={"head_dims": (576,)},
        FLASHINFER_MLA={"cuda_graphs": lambda _: "UNIFORM_BATCH"},
        TRITON_MLA={"cuda_graphs": lambda _: "UNIFORM_SINGLE_TOKEN_DECODE"},
    )


def before_30(table: Table) -> Table:
    """0.29.0."""
    narrow = {name: {"head_dims": (320, 576)} for name in _DENSE_MLA}
    return _step(
        table,
        without=("B12X", "FLASHINFER_MLA_SPARSE_SM90", "TRITON_FLASH_ATTN", "TRITON_FLASHINFER"),
        **narrow,
        FLASHINFER_MLA_SPARSE={"head_dims": (576,)},
        FLASHINFER_MLA_SPARSE_SM120={"head_dims": (576,)},
        FLASHMLA_SPARSE={"kv_dtypes": ("auto", "bfloat16", "fp8_ds_mla", "fp8")},
        ROCM_AITER_MLA_SPARSE={"sinks": no},
    )


def before_28(table: Table) -> Table:
    """0.27.1."""
    return _step(
        table,
        FLASHINFER={"kv_dtypes": (*PLAIN_DTYPES, *FP8_ANY, "nvfp4")},
        FLASHINFER_MLA_SPARSE={"cuda_graphs": lambda _: "UNIFORM_BATCH"},
        HPC_ATTN={"capability": lambda ask: ask.device.capability >= (9, 0)},
        ROCM_AITER_MLA_SPARSE={"pages": lambda _: sizes(1, 64)},
    )


def before_26(table: Table) -> Table:
    """0.25.1."""
    return _step(
        table,
        TRITON_MLA={"cuda_graphs": lambda _: "UNIFORM_BATCH"},
        ROCM_AITER_UNIFIED_ATTN={"dtypes": ("bfloat16",), "kv_dtypes": ("auto", "bfloat16", *FP8)},
        ROCM_AITER_MLA_SPARSE={"cuda_graphs": lambda _: "UNIFORM_SINGLE_TOKEN_DECODE"},
    )


def before_25(table: Table) -> Table:
    """0.24.0."""
    return _step(
        table,
        without=("FLASH_ATTN_MLA_SPARSE", "HPC_ATTN"),
        ROCM_AITER_UNIFIED_ATTN={"dtypes": (*HALF, "float32"), "kv_dtypes": (*PLAIN_DTYPES, *FP8_ANY)},
        TRITON_ATTN={"kv_dtypes": tuple(k for k in TRITON_ATTN.kv_dtypes if k != "int4_per_token_head")},
    )


def before_24(table: Table) -> Table:
    """0.23.0."""
    return _step(
        table,
        without=("FLASHINFER_MLA_SPARSE_SM120",),
        FLASHINFER={"capability": lambda ask: (7, 5) <= ask.device.capability <= (12, 1)},
        FLASHINFER_MLA_SPARSE={"combination": _old_flashinfer_sparse},
    )


def before_23(table: Table) -> Table:
    """0.22.1."""
    return _step(table, ROCM_AITER_FA={"sinks": no})


def before_22(table: Table) -> Table:
    """0.21.0."""
    quantised = (*FP8_ANY, "fp8_ds_mla", "fp8_inc", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
    return _step(
        table,
        FLASH_ATTN={
            "kv_dtypes": (*PLAIN_DTYPES, *quantised),
            "kv_dtype_rule": lambda ask: not ask.is_quantized or _fa3_on_hopper(ask),
        },
        FLASHINFER={"head_dims": (64, 128, 256)},
        FLASHMLA_SPARSE={"head_dims": (512, 576)},
    )


def before_21(table: Table) -> Table:
    """0.20.2."""
    return _step(
        table,
        without=("TOKENSPEED_MLA",),
        FLASHINFER={"kv_dtypes": (*PLAIN_DTYPES, *FP8_ANY)},
        FLEX_ATTENTION={"batch_invariant": False, "pages": lambda _: multiple_of(1)},
        ROCM_AITER_MLA_SPARSE={"kv_dtypes": PLAIN_DTYPES, "pages": lambda _: (Size(1),)},
    )


def _fa3_on_hopper(ask: Ask) -> bool:
    return flash_attn.version(ask) == 3 and ask.device.family(90)


def _old_flashinfer_sparse(ask: Ask) -> str | None:
    from decodecalc.servers.vllm.latent import flashinfer_sparse_dims

    return flashinfer_sparse_dims(ask)

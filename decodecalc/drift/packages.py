"""The packages that decide launches: how to recognise them in a tree, and which policies follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decodecalc.drift import flash, others, sglang, vllm
from decodecalc.drift.checks import Check


@dataclass(frozen=True)
class Followed:
    """A policy that follows a package.

    versions: prefix of the names of the policy's versions that are this package's (two code bases can share a policy).
    fixed: the only version that can be meant, where the package has no release number. needs: a file, and a word in it,
    without which the package does not contain the engine (any more).
    """

    engine: str
    checks: tuple[Check, ...]
    versions: str = ""
    fixed: str | None = None
    needs: tuple[str, str] | None = None


@dataclass(frozen=True)
class Package:
    """One Python package or source repository.

    name: what messages call it. distributions: names on the package index, normalised. probes: files, any of which
    shows that a tree has it. roots: folders that those paths may start from. version_files: files of a checkout that
    may name its version.
    """

    name: str
    distributions: tuple[str, ...]
    probes: tuple[str, ...]
    follows: tuple[Followed, ...]
    roots: Sequence[str] = field(default=("",))
    version_files: Sequence[str] = field(default=())


PACKAGES = (
    Package(
        "vllm",
        ("vllm",),
        ("vllm/v1/attention/backends/triton_attn.py", "vllm/platforms/rocm.py"),
        (
            Followed("vllm-triton", vllm.TRITON),
            Followed("vllm-triton-mla", vllm.TRITON_MLA),
            Followed("flash-attention-3", vllm.FLASH_ATTENTION_3, versions="vllm-"),
            Followed("rocm-paged", vllm.ROCM_PAGED_CHECKS),
            Followed("paged-attention-v1", vllm.PAGED_ATTENTION, needs=(vllm.PAGED[0], "paged_attention_v2")),
            Followed("paged-attention-v2", vllm.PAGED_ATTENTION, needs=(vllm.PAGED[0], "paged_attention_v2")),
        ),
        version_files=("vllm/_version.py",),
    ),
    Package(
        "sglang",
        ("sglang",),
        ("sglang/srt/layers/attention/triton_backend.py",),
        (Followed("sglang-triton", sglang.TRITON),),
        roots=("", "python/"),
        version_files=("sglang/_version.py", "sglang/version.py", "pyproject.toml"),
    ),
    Package(
        "flashinfer",
        ("flashinfer-python", "flashinfer"),
        ("include/flashinfer/attention/scheduler.cuh",),
        (Followed("flashinfer", others.FLASHINFER),),
        roots=("", "flashinfer/data/"),
        version_files=("version.txt",),
    ),
    Package(
        "vllm-flash-attn",
        ("vllm-flash-attn",),
        ("vllm_flash_attn/flash_attn_interface.py",),
        (
            Followed("flash-attention-2", flash.FLASH_ATTENTION_2, versions="vllm-", fixed="vllm-0.33"),
            Followed("flash-attention-3", flash.FLASH_ATTENTION_3, versions="vllm-", fixed="vllm-0.33"),
        ),
    ),
    Package(
        "flash-attn",
        ("flash-attn",),
        ("csrc/flash_attn/flash_api.cpp", "flash_attn/flash_attn_interface.py"),
        (Followed("flash-attention-2", flash.FLASH_ATTENTION_2),),
        version_files=("flash_attn/__init__.py",),
    ),
    Package(
        "flash-attn-3",
        ("flash-attn-3",),
        ("hopper/heuristics.h", "hopper/flash_api.cpp"),
        (Followed("flash-attention-3", flash.FLASH_ATTENTION_3),),
        version_files=("hopper/__init__.py",),
    ),
    Package(
        "flash-mla",
        ("flash-mla",),
        ("csrc/api/dense_decode.h", "csrc/kernels/get_mla_metadata.cu", "flash_mla/flash_mla_interface.py"),
        (Followed("flashmla", others.FLASHMLA),),
    ),
    Package(
        "aiter",
        ("amd-aiter", "aiter"),
        ("aiter/ops/triton/attention/unified_attention.py", "aiter/ops/triton/unified_attention.py"),
        (Followed("aiter-unified", others.AITER),),
        version_files=("aiter/_version.py",),
    ),
    Package(
        "torch",
        ("torch",),
        ("torch/_inductor/kernel/flex/flex_decoding.py", "torch/_inductor/kernel/flex_decoding.py"),
        (Followed("flex-decoding", others.FLEX_DECODING),),
        version_files=("torch/version.py", "version.txt"),
    ),
)

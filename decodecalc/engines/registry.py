"""Which engines there are. Modules load on first use: a start-up should pay for the engines it names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from decodecalc.engines.base import Policy
from decodecalc.errors import UnknownNameError

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu

# name -> module under decodecalc.engines holding `POLICY` (or `POLICIES`, by name, where two share one file).
_MODULES = {
    "vllm-triton": "vllm_triton",
    "sglang-triton": "sglang_triton",
    "flash-attention-2": "flash_attention_2",
    "flash-attention-3": "flash_attention_3",
    "flashinfer": "flashinfer",
    "flashmla": "flashmla",
    "vllm-triton-mla": "vllm_triton_mla",
    "paged-attention-v1": "paged_attention",
    "paged-attention-v2": "paged_attention",
    "rocm-paged": "rocm_paged",
    "aiter-unified": "aiter_unified",
    "flash-decoding": "flash_decoding",
    "flex-decoding": "flex_decoding",
    "bundled": "bundled",
}
DEFAULT_ENGINE = "vllm-triton"
# What an engine is for, where that is narrow: known without loading its module, so that `all` pays for those it can
# use.
_ONLY_MLA = ("flashmla", "vllm-triton-mla")
_ONLY_AMD = ("rocm-paged", "aiter-unified")


def engine_names() -> tuple[str, ...]:
    """Names of all engines, in the order that listings use."""
    return tuple(_MODULES)


def split_version(spec: str) -> tuple[str, str | None]:
    """`vllm-triton@0.27` as (name, version); version None when not given."""
    name, _, version = spec.partition("@")
    return name.strip().lower(), version.strip() or None


def load_policy(name: str) -> Policy:
    """The policy called `name` (without a version). UnknownNameError names the nearest."""
    if name not in _MODULES:
        raise UnknownNameError("engine", name, _MODULES)
    module = importlib.import_module(f"decodecalc.engines.{_MODULES[name]}")
    policies = getattr(module, "POLICIES", None)
    found: Policy = policies[name] if policies else module.POLICY
    return found


def out_of_scope(name: str, geometries: Iterable[Geometry], gpu: Gpu) -> tuple[str, str] | None:
    """(code, reason) when the engine is not for any of these layers, or not for this GPU's vendor; None when it may
    be."""
    if name in _ONLY_AMD and not gpu.is_hip:
        return "not_amd", f"an AMD kernel; {gpu.label} is not an AMD device"
    if name in _ONLY_MLA and not any(geometry.mla for geometry in geometries):
        return "not_mla", "serves MLA layers only (one latent per key that is both key and value)"
    return None


def load_policies(names: Iterable[str]) -> list[tuple[Policy, str | None]]:
    """Policies with the version asked for; `all` stands for every engine at its newest version."""
    out: list[tuple[Policy, str | None]] = []
    for spec in names:
        if spec.strip().lower() == "all":
            out.extend((load_policy(name), None) for name in _MODULES)
        else:
            name, version = split_version(spec)
            policy = load_policy(name)
            policy.version(version)
            out.append((policy, version))
    return out

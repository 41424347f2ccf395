"""Which engines there are. Modules load on first use: a start-up should pay for the engines it names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from decodecalc.errors import UnknownNameError
from decodecalc.launch.policy import Policy
from decodecalc.launch.traits import Traits

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu

# name -> module holding `POLICY` (or `POLICIES`, by name, where two share one file).
_MODULES = {
    "vllm-triton": "decodecalc.engines.vllm.triton",
    "sglang-triton": "decodecalc.engines.sglang.triton",
    "flash-attention-2": "decodecalc.engines.flash_attention.fa2",
    "flash-attention-3": "decodecalc.engines.flash_attention.fa3",
    "flash-attention-4": "decodecalc.engines.flash_attention.fa4",
    "flashinfer": "decodecalc.engines.flashinfer.decode",
    "flashinfer-mla": "decodecalc.engines.flashinfer.mla",
    "flashmla": "decodecalc.engines.flashmla.dense",
    "flashmla-sparse": "decodecalc.engines.flashmla.sparse",
    "cutlass-mla": "decodecalc.engines.cutlass.mla",
    "vllm-triton-mla": "decodecalc.engines.vllm.triton_mla",
    "paged-attention-v1": "decodecalc.engines.vllm.paged_attention",
    "paged-attention-v2": "decodecalc.engines.vllm.paged_attention",
    "rocm-paged": "decodecalc.engines.vllm.rocm_paged",
    "aiter-unified": "decodecalc.engines.aiter.unified",
    "flash-decoding": "decodecalc.engines.textbook.flash_decoding",
    "flex-decoding": "decodecalc.engines.flex.decoding",
    "tensorrt-llm-xqa": "decodecalc.engines.tensorrt_llm.xqa",
    "tensorrt-llm-mmha": "decodecalc.engines.tensorrt_llm.mmha",
    "llama-cpp": "decodecalc.engines.llama_cpp.fattn",
    "turbomind": "decodecalc.engines.lmdeploy.turbomind",
    "bundled": "decodecalc.cost.bundled",
}
DEFAULT_ENGINE = "vllm-triton"
# What an engine is for, where that is narrow: known without loading its module, so that `all` pays for those it can
# use.
_ONLY_MLA = ("flashinfer-mla", "flashmla", "flashmla-sparse", "cutlass-mla", "vllm-triton-mla")
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
    module = importlib.import_module(_MODULES[name])
    policies = getattr(module, "POLICIES", None)
    found: Policy = policies[name] if policies else module.POLICY
    return found


def traits_of(name: str) -> Traits:
    """The traits of the engine called `name`; the defaults for a policy of the user's own, which is not listed here."""
    return load_policy(name).traits if name in _MODULES else Traits()


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

"""Which engines there are. Modules load on first use: a start-up should pay for the engines it names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.launch.codes import SHARED, Codes
from decodecalc.launch.policy import Policy
from decodecalc.launch.traits import Traits

if TYPE_CHECKING:
    from decodecalc.geometry import Geometry
    from decodecalc.gpus import Gpu

# Devices that an engine is written for, where that is narrow.
AMD, SM100 = "AMD", "SM100"


class Entry(NamedTuple):
    """One engine's line: what is known of it without loading its module, so that `all` pays for those it can use."""

    name: str
    """The engine's name on the command line and in the API."""
    module: str
    """The module below `decodecalc` that holds `POLICY` (or `POLICIES`, by name, where two share one file)."""
    mla_only: bool = False
    """Whether it serves MLA layers only."""
    different_widths_only: bool = False
    """Whether servers take it only for layers whose keys and values differ in width."""
    devices: str | None = None
    """AMD or SM100 where it runs on no other device; None for NVIDIA devices in general."""


# In the order that listings use.
ENTRIES = (
    Entry("vllm-triton", "engines.vllm.triton"),
    Entry("sglang-triton", "engines.sglang.triton"),
    Entry("flash-attention-2", "engines.flash_attention.fa2"),
    Entry("flash-attention-3", "engines.flash_attention.fa3"),
    Entry("flash-attention-4", "engines.flash_attention.fa4"),
    Entry("flashinfer", "engines.flashinfer.decode"),
    Entry("flashinfer-mla", "engines.flashinfer.mla", mla_only=True),
    Entry("flashinfer-xqa", "engines.flashinfer.xqa"),
    Entry("flashmla", "engines.flashmla.dense", mla_only=True),
    Entry("flashmla-sparse", "engines.flashmla.sparse", mla_only=True),
    Entry("cutlass-mla", "engines.cutlass.mla", mla_only=True),
    Entry("trtllm-gen", "engines.trtllm_gen.decode", devices=SM100),
    Entry("vllm-triton-mla", "engines.vllm.triton_mla", mla_only=True),
    Entry("vllm-triton-diffkv", "engines.vllm.triton_diffkv", different_widths_only=True),
    Entry("paged-attention-v1", "engines.vllm.paged_attention"),
    Entry("paged-attention-v2", "engines.vllm.paged_attention"),
    Entry("rocm-paged", "engines.vllm.rocm_paged", devices=AMD),
    Entry("aiter-unified", "engines.aiter.unified", devices=AMD),
    Entry("aiter-pa-decode", "engines.aiter.pa_decode", devices=AMD),
    Entry("aiter-mla", "engines.aiter.mla", mla_only=True, devices=AMD),
    Entry("flash-decoding", "engines.textbook.flash_decoding"),
    Entry("flex-decoding", "engines.flex.decoding"),
    Entry("tensorrt-llm-xqa", "engines.tensorrt_llm.xqa"),
    Entry("tensorrt-llm-mmha", "engines.tensorrt_llm.mmha"),
    Entry("llama-cpp", "engines.llama_cpp.fattn"),
    Entry("turbomind", "engines.lmdeploy.turbomind"),
    Entry("bundled", "cost.bundled"),
)
DEFAULT_ENGINE = "vllm-triton"
# Words that stand for several engines: every engine, and those that servers run or can be set to run at a place.
ALL, SERVED_HERE = "all", "served"
BUNDLED = "bundled"
# Engines that listings, figures and verification start from when the user names none: two servers' own kernels (one
# count for every request, and one count for each), the textbook rule, and the libraries that servers call.
SERVED = ("vllm-triton", "sglang-triton")
SERVED_MLA = ("vllm-triton-mla", "sglang-triton")
REFERENCE = "flash-decoding"
LIBRARIES = ("flash-attention-2", "flash-attention-3", "flashinfer")
_BY_NAME = {entry.name: entry for entry in ENTRIES}


def engine_names() -> tuple[str, ...]:
    """Names of all engines, in the order that listings use."""
    return tuple(_BY_NAME)


def split_version(spec: str) -> tuple[str, str | None]:
    """`vllm-triton@0.27` as (name, version); version None when not given."""
    name, _, version = spec.partition("@")
    return name.strip().lower(), version.strip() or None


def load_policy(name: str) -> Policy:
    """The policy called `name` (without a version). UnknownNameError names the nearest."""
    if name not in _BY_NAME:
        raise UnknownNameError("engine", name, _BY_NAME)
    module = importlib.import_module(f"decodecalc.{_BY_NAME[name].module}")
    policies = getattr(module, "POLICIES", None)
    found: Policy = policies[name] if policies else module.POLICY
    return found


def traits_of(name: str) -> Traits:
    """The traits of the engine called `name`; the defaults for a policy of the user's own, which is not listed here."""
    return load_policy(name).traits if name in _BY_NAME else Traits()


def sparse_engines() -> tuple[str, ...]:
    """Engines that plan sparse layers, which gather their keys by a list. Loads every engine's module."""
    return tuple(name for name in engine_names() if load_policy(name).traits.sparse)


def with_sparse_engines(refused: GateError) -> GateError:
    """The refusal of a sparse layer, with the engines that plan it; any other refusal as it is."""
    if refused.code != "sparse_layer":
        return refused
    return GateError(f"{refused}; engines that plan it: {', '.join(sparse_engines())}", refused.code)


def out_of_scope(name: str, geometries: Iterable[Geometry], gpu: Gpu) -> tuple[str, str] | None:
    """(code, reason) when the engine is not for any of these layers, or not for this GPU's vendor; None when it may
    be."""
    entry = _BY_NAME[name]
    if entry.devices == AMD and not gpu.is_hip:
        return "not_amd", f"an AMD kernel; {gpu.label} is not an AMD device"
    if entry.devices == SM100 and (gpu.is_hip or not gpu.is_sm_family(100)):
        return "not_sm100", f"a kernel for SM100 and SM103; {gpu.label} is neither"
    if entry.mla_only and not any(geometry.mla for geometry in geometries):
        return "not_mla", "serves MLA layers only (one latent per key that is both key and value)"
    if entry.different_widths_only and not any(g.v_dim != g.head_dim and not g.mla for g in geometries):
        return "equal_widths", "serves layers whose keys and values differ in width"
    return None


def all_codes() -> Codes:
    """The codes of all refusals and gates, those that engines share and those of every folder."""
    found = SHARED
    for module in folder_modules("codes"):
        found = found.with_(module.CODES, module.__name__)
    return found


def load_policies(names: Iterable[str]) -> list[tuple[Policy, str | None]]:
    """Policies with the version asked for; `all` stands for every engine at its newest version."""
    out: list[tuple[Policy, str | None]] = []
    for spec in names:
        if spec.strip().lower() == ALL:
            out.extend((load_policy(name), None) for name in _BY_NAME)
        else:
            name, version = split_version(spec)
            policy = load_policy(name)
            policy.version(version)
            out.append((policy, version))
    return out


def _folders() -> MutableSequence[str]:
    """Where engine folders lie: `decodecalc/engines`, and what `also` adds."""
    return importlib.import_module("decodecalc.engines").__path__


@contextmanager
def also(entry: Entry, folders: str | Path | None = None) -> Iterator[None]:
    """List one more engine as long as the context lasts: to try a policy that is not part of the package (yet).

    folders: a folder of engine folders; `engines.NAME.policy` is then found in `folders/NAME/policy.py`. InputError
    where the name is taken.
    """
    if entry.name in _BY_NAME:
        raise InputError(f"there is an engine called {entry.name} already")
    before = set(sys.modules)
    if folders is not None:
        _folders().append(str(folders))
        importlib.invalidate_caches()
    _BY_NAME[entry.name] = entry
    try:
        yield
    finally:
        del _BY_NAME[entry.name]
        if folders is not None:
            _folders().remove(str(folders))
            for name in set(sys.modules) - before:
                if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folders):
                    del sys.modules[name]


def folder_modules(name: str) -> list[ModuleType]:
    """The module called `name` of every engine folder that has one: first of the folders that hold registered engines,
    in the listing's order, then of all other folders, by name. A folder is found by being there."""
    import pkgutil

    registered = [f"decodecalc.{entry.module}".rpartition(".")[0] for entry in _BY_NAME.values()]
    present = [f"decodecalc.engines.{found.name}" for found in pkgutil.iter_modules(_folders()) if found.ispkg]
    packages = dict.fromkeys([*registered, *sorted(present)])
    return [
        importlib.import_module(f"{package}.{name}")
        for package in packages
        if importlib.util.find_spec(f"{package}.{name}") is not None
    ]

"""Imports chosen vLLM modules unmodified; everything else under `vllm` is a stand-in that only has to be importable.

The stand-ins carry no arithmetic: a platform object answers what device there is, environment flags are attributes,
and the rest are empty classes. Kernels are replaced by recorders of grid and arguments, so nothing needs a GPU.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types
from enum import IntEnum
from pathlib import Path
from typing import Any

REAL = (
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.attention.ops.triton_unified_attention",
    "vllm.v1.attention.ops.triton_attention_helpers",
    "vllm.v1.attention.ops.int4_per_token_head",
    "vllm.v1.attention.ops.triton_decode_attention",
    "vllm.attention.ops.triton_unified_attention",
    "vllm.attention.ops.triton_decode_attention",
    "vllm.v1.attention.backends.mla.triton_mla",
    "vllm.utils.math_utils",
)


class _AnythingMeta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class Anything(metaclass=_AnythingMeta):
    """A class that can be subclassed, subscripted, called and asked for attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __class_getitem__(cls, item: Any) -> type:
        return cls

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Builder(Anything):
    """The builders' base class: keeps what it is given."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = (
            kv_cache_spec, layer_names, vllm_config, device,
        )  # fmt: skip


class CUDAGraphMode(IntEnum):
    """Whether decode steps are captured whole."""

    NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE = range(5)


class Platform:
    """The device that the code believes to run on."""

    capability: tuple[int, int] = (9, 0)
    sm_count: int = 132

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: False

    def is_cuda(self) -> bool:
        return True

    def is_device_capability(self, capability: Any) -> bool:
        return self._code(capability) == self._code(self.capability)

    def is_device_capability_family(self, capability: Any) -> bool:
        return self._code(capability) // 10 == self._code(self.capability) // 10

    def has_device_capability(self, capability: Any) -> bool:
        return self._code(self.capability) >= self._code(capability)

    @staticmethod
    def _code(capability: Any) -> int:
        return capability[0] * 10 + capability[1] if isinstance(capability, tuple) else int(capability)

    def num_compute_units(self, *args: Any) -> int:
        return self.sm_count

    def fp8_dtype(self) -> Any:
        import torch

        return torch.float8_e4m3fn


PLATFORM = Platform()


class Recorder:
    """Stands in for a kernel: `kernel[grid](…)` is noted instead of launched."""

    def __init__(self, name: str, log: list[Recorder.Call]) -> None:
        self.name, self.log = name, log

    class Call:
        """One launch."""

        def __init__(self, name: str, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.name, self.grid, self.args, self.kwargs = name, tuple(grid), args, kwargs

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **kwargs: self.log.append(self.Call(self.name, grid, args, kwargs))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, source: Path) -> None:
        self.source = source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "vllm" and not name.startswith("vllm."):
            return None
        file = self.source / (name.replace(".", "/") + ".py")
        if name in REAL and file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(_contents(module.__name__, self.source))


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        base = Builder if name.endswith("MetadataBuilder") else Anything
        value = type(name, (base,), {})
        setattr(self, name, value)
        return value


def _contents(name: str, source: Path) -> dict[str, Any]:
    """What a stand-in must hold beyond empty classes."""
    if name == "vllm.triton_utils":
        import triton
        import triton.language as tl

        return {"triton": triton, "tl": tl}
    if name == "vllm.platforms":
        return {"current_platform": PLATFORM}
    if name == "vllm.logger":
        return {"init_logger": lambda name: Anything()}
    if name == "vllm.envs":
        return {"VLLM_BATCH_INVARIANT": False, "VLLM_TRITON_USE_TD": None}
    if name == "vllm.config":
        return {"CUDAGraphMode": CUDAGraphMode}
    if name == "vllm.model_executor.layers.batch_invariant":
        return {"vllm_is_batch_invariant": lambda: sys.modules["vllm.envs"].VLLM_BATCH_INVARIANT}
    if name == "vllm.v1.kv_cache_interface":
        found = definition(source / "vllm/v1/kv_cache_interface.py", "KVQuantMode")
        return {"KVQuantMode": run([found], {"IntEnum": IntEnum})["KVQuantMode"]} if found else {}
    if name.endswith("backends.utils"):
        return {"get_num_attention_heads_from_layers": lambda *args: None}
    if name == "vllm.v1.worker.workspace":
        return {"is_workspace_manager_initialized": lambda: False}
    if name == "vllm.utils" and (source / "vllm/utils/__init__.py").is_file():
        text = source / "vllm/utils/__init__.py"
        return {f: run([node], {})[f] for f in ("cdiv", "next_power_of_2") if (node := definition(text, f))}
    return {}


def definition(file: Path, name: str) -> Any:
    """The syntax tree of a class or function of this file, or None."""
    if not file.is_file():
        return None
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return next((node for node in nodes if isinstance(node, kinds) and node.name == name), None)


def run(nodes: list[Any], names: dict[str, Any]) -> dict[str, Any]:
    """Names after executing these definitions."""
    tree = ast.fix_missing_locations(ast.Module(body=nodes, type_ignores=[]))
    exec(compile(tree, "vllm", "exec"), names)
    return names


def install(source: Path) -> None:
    """From now on `import vllm…` finds this release's files."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    sys.meta_path.insert(0, _Finder(source))
    importlib.import_module("vllm.envs")  # scenarios set its flags


def load(*names: str) -> Any:
    """The first of these modules that the release has."""
    finder = next(f for f in sys.meta_path if isinstance(f, _Finder))
    for name in names:
        if (finder.source / (name.replace(".", "/") + ".py")).is_file():
            return importlib.import_module(name)
    return None

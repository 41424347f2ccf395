"""Imports point one way, files form no circle, and engines are named only where engines are described."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

from decodecalc.engines.registry import engine_names

ROOT = Path(__file__).parents[2] / "decodecalc"

# docs/layers.py is the one home of the layers: the architecture page draws them from there.
_SPEC = importlib.util.spec_from_file_location("decodecalc_docs_layers", ROOT.parent / "docs" / "layers.py")
assert _SPEC is not None
assert _SPEC.loader is not None
layers = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = layers
_SPEC.loader.exec_module(layers)
LAYERS: tuple[tuple[str, ...], ...] = tuple(layer.names for layer in layers.LAYERS)
NAMELESS: tuple[str, ...] = layers.NAMELESS
# Families of kernels and servers whose names are as telling as a policy's.
FAMILIES = (
    "vllm",
    "sglang",
    "flashinfer",
    "flashmla",
    "aiter",
    "tensorrt",
    "trtllm",
    "llama.cpp",
    "turbomind",
    "lmdeploy",
)
# Our own kernel is no engine that others serve with; its name stands for "this project's".
OURS = ("bundled",)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `decodecalc`."""
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def layer_of(module: str) -> int:
    """The number of the module's layer."""
    parts = module.split(".")
    if parts[0] == "engines" and len(parts) == 3 and parts[2] in ("sources", "trace", "run", "fit"):
        wanted = f"engines/*/{parts[2]}"
    else:
        wanted = parts[0]
    found = [i for i, names in enumerate(LAYERS) if wanted in names]
    assert found, f"{module} is in no layer: add its package to LAYERS"
    return found[0]


def imports_of(module: str, within_functions: bool) -> set[str]:
    """Modules of the package that `module` imports; those inside functions only when asked for."""
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(outer)
    }
    typed = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.dump(outer.test)
        for node in ast.walk(outer)
    }
    found = set()
    for node in ast.walk(tree):
        if not within_functions and (id(node) in inside or id(node) in typed):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "decodecalc":
            base = ".".join(node.module.split(".")[1:])
            for alias in node.names:
                full = f"{base}.{alias.name}".strip(".")
                found.add(full if full in modules() else base)
        elif isinstance(node, ast.Import):
            found |= {".".join(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "decodecalc"}
    return found - {""}


def test_no_import_points_back() -> None:
    """A module imports from its own layer and from lower ones, types and late imports included."""
    back = [
        f"{module} -> {target}"
        for module in modules()
        if module
        for target in imports_of(module, within_functions=True)
        if layer_of(target) > layer_of(module)
    ]
    assert back == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Following the imports of any file never leads back to it."""
    graph = {module: imports_of(module, within_functions=True) & set(modules()) for module in modules() if module}
    circles = []
    for start in graph:
        seen, todo = set(), list(graph[start])
        while todo:
            module = todo.pop()
            if module == start:
                circles.append(start)
                break
            if module not in seen:
                seen.add(module)
                todo += graph.get(module, ())
    assert circles == []


def test_an_engine_is_named_only_in_its_folder_in_servers_and_in_data() -> None:
    """No mechanism spells the name of an engine or of a server, in code, text or comment.

    Examples in the help of commands (`epilog=`) are what a user types, so they may name one.
    """
    words = {*engine_names(), *(name.replace("-", "_") for name in engine_names()), *FAMILIES} - set(OURS)
    pattern = re.compile(r"(?<![a-z0-9])(" + "|".join(sorted(map(re.escape, words))) + r")(?![a-z0-9])", re.IGNORECASE)
    found = []
    for module, path in modules().items():
        if module.split(".")[0] not in NAMELESS:
            continue
        text = re.sub(r"epilog=(\(.*?\)|[^\n]*),?\n(\s+\"[^\n]*\n)*", "\n", path.read_text(encoding="utf-8"))
        found += [f"{module}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_only_what_runs_kernels_imports_torch() -> None:
    """torch and triton are imported in verify, calibrate and the engines' runners, and nowhere else but in gpus.detect.

    That module reads the device that is present, which only torch can tell where no driver tool is installed.
    """
    allowed = ("verify", "calibrate")
    found = []
    for module, path in modules().items():
        parts = module.split(".")
        if parts[0] in allowed or parts[-1] == "run" or module == "gpus.detect":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{module}: {name}" for name in names if name.split(".")[0] in ("torch", "triton")]
    assert found == []

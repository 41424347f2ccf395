"""What an engine's test folder says about it, so that the laws of all engines know where they hold.

`tests/engines/FOLDER/laws.py` ends with `LAWS = {"engine": Lawful(...), …}`. The files are found by being there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from strategies import geometries, mla_geometries

from decodecalc.engines import engine_names
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.kvcache import KvCache

ENGINES = Path(__file__).parent / "engines"
PLAIN, MLA, BOTH = "plain", "mla", "both"


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A layer whose trace has to be judged a match."""

    geometry: Geometry
    """The layer."""
    gpu: str
    """The device, as `tests/trace/test_audit_laws.py` describes it in a trace."""
    page_size: int
    """Keys of a page."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's options."""
    version: str | None = None
    """The version; None for the newest."""
    exact_grid: bool = True
    """Whether a first extent that is one too large is a mismatch; False where it makes the launch a prompt's."""
    heads_from_grids: bool = False
    """Whether the grids of a split launch alone give query heads, KV heads and batch back."""
    bounds_context: bool = False
    """Whether an eager grid bounds the longest request."""


@dataclass(frozen=True, kw_only=True)
class Lawful:
    """Where the laws of every policy are tested on one engine."""

    gpus: tuple[str, ...]
    """Devices that it runs on, one of each kind that its rules tell apart."""
    layers: str = PLAIN
    """`plain` (grouped queries), `mla` or `both`."""
    page_size: int = 16
    """A page that it takes."""
    cache_dtype: str = "bf16"
    """A cache type that it takes with bf16 queries."""
    keys_left_out: int = 0
    """Oldest keys of a window that its kernel does not read."""
    dealt: tuple[str, ...] = ()
    """Stage-1 kernels whose work is dealt in turn, so that equal requests are cut in different places and a class of
    them has the most splits of any, or those of its first request."""
    traced: tuple[Traced, ...] = ()
    """Layers whose traces are judged; empty where a trace cannot show the engine."""
    not_in_traces: str = ""
    """Why a trace cannot show it."""

    @property
    def devices(self) -> st.SearchStrategy[Gpu]:
        """Devices that the engine runs on."""
        return st.sampled_from(self.gpus).map(load_gpu)

    def devices_of(self) -> list[Gpu]:
        """The same devices as a list."""
        return [load_gpu(name) for name in self.gpus]

    @property
    def cache(self) -> KvCache:
        """A cache that the engine takes."""
        return KvCache(dtype=self.cache_dtype, page_size=self.page_size, query_dtype="bf16")

    def geometries(self, windows: bool) -> st.SearchStrategy[Geometry]:
        """Layers that the engine may serve."""
        plain = geometries(windows=windows)
        return {PLAIN: plain, MLA: mla_geometries(), BOTH: st.one_of(plain, mla_geometries())}[self.layers]


@cache
def laws() -> dict[str, Lawful]:
    """Every engine's entry, in the order of the registry; entries of engines that are not registered come last."""
    found: dict[str, Lawful] = {}
    for path in sorted(ENGINES.glob("*/laws.py")):
        spec = importlib.util.spec_from_file_location(f"laws_of_{path.parent.name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        both = found.keys() & module.LAWS.keys()
        assert not both, f"{path} repeats {', '.join(both)}"
        found |= module.LAWS
    return dict(sorted(found.items(), key=lambda item: [*engine_names(), item[0]].index(item[0])))


def missing() -> list[str]:
    """Registered engines without an entry."""
    return [name for name in engine_names() if name not in laws()]

"""All knowledge about traces, gathered from the engine folders that there are."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

from decodecalc.engines.registry import folder_modules
from decodecalc.trace.families import SHARED
from decodecalc.trace.knowledge import TraceKnowledge


def knowledge() -> TraceKnowledge:
    """The families that engines share, and `TRACE` of every engine folder that has a `trace.py`.

    >>> knowledge().recognise("kernel_unified_attention").role
    'stage1'
    >>> knowledge().recognise("void at::native::elementwise_kernel<128, 4>()") is None
    True
    """
    return _together(tuple(folder_modules("trace")))


@lru_cache(maxsize=2)
def _together(modules: tuple[ModuleType, ...]) -> TraceKnowledge:
    return TraceKnowledge.together([SHARED, *(module.TRACE for module in modules)])

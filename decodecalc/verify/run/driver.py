"""Asks the CUDA driver about a compiled kernel: how many blocks an SM holds at a time."""

from __future__ import annotations

import ctypes
from typing import Any

from decodecalc.intmath import round_up
from decodecalc.verify.run.profile import ObservedKernel

_REGISTER_STEP = 8  # registers are given to threads in eights; CUPTI may report either number


def driver_blocks_per_sm(kernel: ObservedKernel) -> int | None:
    """cuOccupancyMaxActiveBlocksPerMultiprocessor of the compiled stage-1 kernel with these registers and this shared
    memory. None when Triton has no such kernel or the driver is missing."""
    compiled = _compiled(kernel)
    if compiled is None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found = ctypes.c_int(0)
    error = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(found),
        ctypes.c_void_p(int(compiled.function)),
        ctypes.c_int(kernel.threads),
        ctypes.c_size_t(int(compiled.metadata.shared)),
    )
    return int(found.value) if error == 0 else None


def _compiled(kernel: ObservedKernel) -> Any:
    import torch

    from decodecalc_kernels.launch import stage1_kernels

    variants: list[Any] = []
    for function in stage1_kernels():
        cache = getattr(function, "device_caches", {}).get(torch.cuda.current_device())
        variants += cache[0].values() if isinstance(cache, tuple) and cache and isinstance(cache[0], dict) else ()
    for compiled in variants:
        metadata = getattr(compiled, "metadata", None)
        registers = getattr(compiled, "n_regs", None)
        if metadata is None or registers is None or getattr(compiled, "function", None) is None:
            continue
        same_registers = round_up(registers, _REGISTER_STEP) == round_up(kernel.registers or 0, _REGISTER_STEP)
        if same_registers and metadata.num_warps * 32 == kernel.threads and metadata.shared == kernel.shared_bytes:
            return compiled
    return None

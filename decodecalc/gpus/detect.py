"""Finds the entry of the table for the live device, and corrects it by what the device itself reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decodecalc.errors import InputError, MissingDependencyError
from decodecalc.gpus.gpu import Gpu
from decodecalc.gpus.table import gpu_names, table_gpu

# Several products share these driver names, so the memory size decides. Every Jetson Orin module reports "Orin"; Thor
# boards report "NVIDIA Thor" for every module.
_SHARED_NAMES = frozenset({"orin", "thor"})
# The table lists these names although some of its values do not hold for them (NVIDIA RTX PRO whitepaper: Max-Q is the
# same chip at 300 W and about 2288 MHz).
_CAVEATS = {
    "rtx pro 6000 blackwell max-q workstation edition": "Max-Q runs at lower clocks than the Workstation Edition, "
    "so boost clock, matrix peaks and power of the table are too high",
}
_SAME_MEMORY = 0.15  # ECC, carve-outs and host settings move the reported size by about 7 % on one product
_MIG = re.compile(r"\s+MIG\s+\S+$", re.IGNORECASE)
_PEAKS = (
    "tensor_fp16_flop_per_s", "tensor_bf16_flop_per_s", "tensor_fp8_flop_per_s", "tensor_int8_op_per_s",
    "tensor_fp4_flop_per_s", "fp32_flop_per_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a driver reports about a device. A field is None where it reports nothing."""

    name: str
    sm_count: int
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    gfx: str | None = None
    warp_size: int | None = None
    l2_bytes: int | None = None
    smem_bytes_per_sm: int | None = None
    max_smem_bytes_per_block: int | None = None
    registers_per_sm: int | None = None
    max_threads_per_sm: int | None = None


def detect_gpu(index: int = 0) -> Gpu:
    """The live device of that index through torch; MissingDependencyError without torch or without a device."""
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "detecting the GPU needs torch, which is not installed: pip install 'decodecalc[verify]', or name a GPU"
        ) from None
    if not torch.cuda.is_available():
        raise MissingDependencyError("torch sees no GPU on this machine: name one instead (--gpu, `decodecalc gpus`)")
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise InputError(f"there is no GPU {index} on this machine: it has 0 to {count - 1}")
    return gpu_from_device(_read_properties(torch.cuda.get_device_properties(index)))


def gpu_from_device(device: DeviceProperties) -> Gpu:
    """The table's entry for a device, corrected by what the device reports; without an entry, only what it reports."""
    found = match_device(device.name, device.sm_count, device.memory_bytes, device.compute_capability, device.gfx)
    if found is not None:
        return found
    return Gpu(
        name=re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-") or "unknown-gpu",
        display_name=device.name.strip() or None,
        vendor="AMD" if device.gfx else "NVIDIA" if device.compute_capability else None,
        sm_count=device.sm_count,
        compute_capability=device.compute_capability,
        gfx=device.gfx,
        warp_size=device.warp_size,
        memory_usable_bytes=device.memory_bytes,
        l2_bytes=device.l2_bytes,
        smem_bytes_per_sm=device.smem_bytes_per_sm,
        max_smem_bytes_per_block=device.max_smem_bytes_per_block,
        registers_per_sm=device.registers_per_sm,
        max_threads_per_sm=device.max_threads_per_sm,
        device_names=(device.name,) if device.name.strip() else (),
        origin="device",
        warnings=(
            f"device {device.name!r} is not in the table: bandwidth and matrix peaks are not known (give a GPU file)",
        ),
    )


def match_device(
    name: str,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    gfx: str | None = None,
) -> Gpu | None:
    """The table's entry for a driver's device name, or None. The live SM count and memory replace those of the table.

    Names must match exactly, apart from the vendor's own word and a MIG suffix, because product names contain one
    another: H20 and H200, B200 and GB200, L4, L40 and L40S. A ROCm device whose name says nothing is recognised by
    architecture, compute units and memory when these single out one entry. `warnings` says what differs.
    """
    bare = _MIG.sub("", name)
    entry = _exact(bare, memory_bytes) or _by_architecture(bare, sm_count, memory_bytes, gfx)
    if entry is None:
        return None
    gpu = entry.with_(origin=f"device {name!r}")
    notes = [_CAVEATS[_plain(bare)]] if _plain(bare) in _CAVEATS else []
    if compute_capability and gpu.compute_capability and tuple(compute_capability) != gpu.compute_capability:
        notes.append(f"compute capability is {compute_capability}, the table says {gpu.compute_capability}")
        gpu = gpu.with_(compute_capability=tuple(compute_capability))
    gpu = _live_memory(gpu, memory_bytes, bare != name, notes)
    gpu = _live_sms(gpu, sm_count, notes)
    return gpu.with_(warnings=tuple(notes))


def _plain(name: str) -> str:
    """The name without case, spacing and the leading "NVIDIA" (which older drivers leave out): these do not tell
    products apart."""
    return " ".join(name.casefold().split()).removeprefix("nvidia ")


def _exact(name: str, memory_bytes: int | None) -> Gpu | None:
    plain = _plain(name)
    for gpu in map(table_gpu, gpu_names()):
        if plain in map(_plain, gpu.device_names):
            shared = plain in _SHARED_NAMES
            return gpu if not shared or _same_memory(gpu, memory_bytes) else None
    return None


def _by_architecture(name: str, sm_count: int | None, memory_bytes: int | None, gfx: str | None) -> Gpu | None:
    """The one entry that fits a ROCm device whose name is empty or generic; None where none or several fit."""
    if gfx is None or _plain(name) not in ("", "amd radeon graphics", "amd instinct"):
        return None
    isa = gfx.split(":")[0]
    fits = [
        gpu
        for gpu in map(table_gpu, gpu_names())
        if gpu.gfx == isa and gpu.sm_count == sm_count and _same_memory(gpu, memory_bytes)
    ]
    return fits[0] if len(fits) == 1 else None


def _same_memory(gpu: Gpu, memory_bytes: int | None) -> bool:
    size = gpu.capacity_bytes
    return memory_bytes is not None and size is not None and abs(memory_bytes / size - 1) <= _SAME_MEMORY


def _live_memory(gpu: Gpu, memory_bytes: int | None, mig: bool, notes: list[str]) -> Gpu:
    if memory_bytes is None:
        return gpu
    if not _same_memory(gpu, memory_bytes):
        notes.append(
            f"the device reports {memory_bytes / 1e9:.1f} GB, the table {(gpu.capacity_bytes or 0) / 1e9:.1f} GB"
        )
        if mig:
            gpu = _memory_slice(gpu, memory_bytes, notes)
    return gpu.with_(memory_usable_bytes=memory_bytes)


def _memory_slice(gpu: Gpu, memory_bytes: int, notes: list[str]) -> Gpu:
    """Scales the values to a MIG instance. An instance owns whole memory slices (eighths on A100 and H100, quarters on
    A30), each with its share of L2 and of the memory controllers (NVIDIA MIG user guide, chapters "Concepts" and
    "Supported MIG Profiles")."""
    eighths = max(1, min(8, round(8 * memory_bytes / (gpu.capacity_bytes or memory_bytes))))
    notes.append(f"MIG instance: bandwidth and L2 are taken as {eighths}/8 of the whole GPU's")
    changes: dict[str, Any] = {}
    if gpu.hbm_bytes_per_s is not None:
        changes["hbm_bytes_per_s"] = gpu.hbm_bytes_per_s * eighths / 8
    if gpu.l2_bytes is not None:
        changes["l2_bytes"] = gpu.l2_bytes * eighths // 8
    return gpu.with_(**changes)


def _live_sms(gpu: Gpu, sm_count: int | None, notes: list[str]) -> Gpu:
    """Takes the SM count of the device (MIG, power modes and engineering boards differ from the table) and scales the
    peaks with it."""
    if sm_count is None or sm_count == gpu.sm_count:
        return gpu
    notes.append(f"the device has {sm_count} SMs, the table says {gpu.sm_count}: matrix peaks are scaled to match")
    scaled = {peak: getattr(gpu, peak) * sm_count / gpu.sm_count for peak in _PEAKS if getattr(gpu, peak) is not None}
    return gpu.with_(sm_count=sm_count, **scaled)


def _read_properties(props: Any) -> DeviceProperties:
    """The device properties that torch reports. HIP misreports LDS and registers per CU (in ROCm 6 LDS is multiplied by
    the CUs and registers are halved), so these are left out there."""
    gfx = getattr(props, "gcnArchName", None) or None
    # CUDA builds of torch fill gcnArchName with the device name.
    gfx = gfx if gfx is not None and gfx.startswith("gfx") else None

    def positive(attribute: str) -> int | None:
        value = getattr(props, attribute, None)
        return int(value) if isinstance(value, int) and value > 0 else None

    trusted: Mapping[str, int | None] = {} if gfx else {
        "smem_bytes_per_sm": positive("shared_memory_per_multiprocessor"),
        "max_smem_bytes_per_block": positive("shared_memory_per_block_optin"),
        "registers_per_sm": positive("regs_per_multiprocessor"),
    }  # fmt: skip
    return DeviceProperties(
        name=props.name,
        sm_count=props.multi_processor_count,
        memory_bytes=positive("total_memory"),
        compute_capability=None if gfx else (props.major, props.minor),
        gfx=gfx.split(":")[0] if gfx else None,
        warp_size=positive("warp_size"),
        l2_bytes=positive("L2_cache_size"),
        max_threads_per_sm=positive("max_threads_per_multi_processor"),
        **trusted,
    )

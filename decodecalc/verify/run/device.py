"""What the checks run on: a CUDA GPU, or Triton's interpreter on the CPU (small shapes, no clocks, no profiler)."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any

from decodecalc.errors import InputError, MissingDependencyError

INSTALL = "pip install 'decodecalc[verify]'"
KINDS = ("cuda", "interpreter")
_SMI_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "driver_version")


@dataclass(frozen=True)
class DeviceState:
    """Clocks, power and temperature of the GPU at one moment; None where nvidia-smi does not say."""

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    driver: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sm_clock_hz": self.sm_clock_hz, "memory_clock_hz": self.memory_clock_hz, "power_w": self.power_w,
            "temperature_c": self.temperature_c, "driver": self.driver,
        }  # fmt: skip


@dataclass(frozen=True)
class Device:
    """Where kernels run. kind: one of KINDS. torch_name: the device on which tensors are made."""

    kind: str
    torch_name: str
    name: str
    uuid: str | None = None
    l2_bytes: int | None = None

    @property
    def is_cuda(self) -> bool:
        """Whether it is a real GPU."""
        return self.kind == "cuda"

    def synchronize(self) -> None:
        """Waits for everything that was launched; raises what an asynchronous failure raises."""
        if self.is_cuda:
            import torch

            torch.cuda.synchronize(self.torch_name)

    def alive(self) -> bool:
        """Whether the device still answers. After some errors (an illegal address, a GPU that fell off the bus) it
        never does again."""
        try:
            import torch

            torch.zeros(1, device=self.torch_name).add_(1)
            self.synchronize()
        except Exception:
            return False
        return True

    def free_memory(self) -> None:
        """Gives cached blocks back, after an out-of-memory error."""
        if self.is_cuda:
            import gc

            import torch

            gc.collect()
            torch.cuda.empty_cache()

    def free_bytes(self) -> int | None:
        """Device memory that is free now; None in the interpreter."""
        if not self.is_cuda:
            return None
        import torch

        return int(torch.cuda.mem_get_info(self.torch_name)[0])

    def state(self) -> DeviceState:
        """Clocks, power, temperature now."""
        return read_state(self.uuid) if self.is_cuda else DeviceState()


def open_device(kind: str, index: int = 0, instead: str = "") -> Device:
    """The device to run on; MissingDependencyError says what is missing, and what can be done `instead`.

    The interpreter has to be chosen before Triton is imported: this does it, once per process.
    """
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"running kernels needs {' and '.join(missing)}, not installed here: {INSTALL}" + _also(instead)
        )
    if kind == "interpreter":
        return _interpreter()
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise InputError("TRITON_INTERPRET=1 is set: unset it to check on the GPU, or give --device interpreter")
    import torch

    if not torch.cuda.is_available():
        raise MissingDependencyError(
            "this needs a CUDA GPU and torch sees none: run it where there is one" + _also(instead)
        )
    if not 0 <= index < torch.cuda.device_count():
        raise InputError(f"there is no GPU {index} on this machine: it has 0 to {torch.cuda.device_count() - 1}")
    torch.cuda.set_device(index)
    props = torch.cuda.get_device_properties(index)
    uuid = getattr(props, "uuid", None)
    return Device(
        "cuda",
        f"cuda:{index}",
        props.name,
        f"GPU-{uuid}" if uuid is not None else None,
        getattr(props, "L2_cache_size", None),
    )


def _also(instead: str) -> str:
    return f"; {instead}" if instead else ""


def _interpreter() -> Device:
    if os.environ.get("TRITON_INTERPRET") != "1":
        if "triton" in sys.modules:
            raise InputError("Triton is already loaded in this process: set TRITON_INTERPRET=1 before it is imported")
        os.environ["TRITON_INTERPRET"] = "1"
    # An empty row divides 0 by 0 before it is masked, as on a GPU; NumPy would tell the user.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")
    return Device("interpreter", "cpu", "Triton interpreter (CPU)")


def read_state(uuid: str | None) -> DeviceState:
    """Clocks, power and temperature by nvidia-smi, without changing anything."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    command += ["-i", uuid] if uuid else []
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return DeviceState()
    return parse_state(text)


def parse_state(text: str) -> DeviceState:
    """The first line of nvidia-smi's CSV answer.

    >>> parse_state("1980, 3201, 221.30, 41, 580.159.04").sm_clock_hz
    1980000000.0
    """
    lines = text.strip().splitlines()
    parts = [p.strip() for p in lines[0].split(",")] if lines else []
    if len(parts) != len(_SMI_FIELDS):
        return DeviceState()

    def number(value: str, scale: float = 1.0) -> float | None:
        try:
            return float(value) * scale
        except ValueError:
            return None

    return DeviceState(number(parts[0], 1e6), number(parts[1], 1e6), number(parts[2]), number(parts[3]), parts[4])


def provenance(device: Device) -> dict[str, Any]:
    """What a report says about its origin: device, software, time. It holds no host names and no paths."""
    import torch
    import triton

    return {
        "device": device.name,
        "device_kind": device.kind,
        "torch": str(torch.__version__),
        "triton": str(triton.__version__),
        "cuda": torch.version.cuda,
        "date_utc": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }

"""A GPU as servers ask about it: compute capability families and AMD generations."""

from __future__ import annotations

import re
from typing import NamedTuple

from decodecalc.errors import InputError
from decodecalc.gpus import Gpu


class ServerDevice(NamedTuple):
    """The compute capability and, on AMD, the gfx name.

    On AMD the capability is the one HIP derives from the gfx name (9.4 for gfx942, 12.0 for gfx1201), which is what
    `vllm/platforms/rocm.py: _capability_from_gcn_arch` hands to the backends.
    """

    major: int
    """Major compute capability."""
    minor: int
    """Minor compute capability."""
    gfx: str | None = None
    """AMD's name of the architecture; None on NVIDIA."""

    @property
    def hip(self) -> bool:
        """An AMD device."""
        return self.gfx is not None

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.major, self.minor

    def family(self, code: int) -> bool:
        """The same major capability as `code`: `family(100)` is true on 10.0 and 10.3."""
        return self.major == code // 10

    def exactly(self, code: int) -> bool:
        """Exactly this capability."""
        return self.major * 10 + self.minor == code

    @property
    def cdna(self) -> int:
        """Generation of AMD's data-centre GPUs: 2 for gfx90a, 3 for gfx942, 4 for gfx950, else 0."""
        return next((n for name, n in _CDNA.items() if self.gfx is not None and name in self.gfx), 0)

    @property
    def rdna(self) -> int:
        """Generation of AMD's graphics GPUs: 3 for gfx11, 4 for gfx1200 and gfx1201, else 0."""
        if self.gfx is None:
            return 0
        return 4 if self.gfx.startswith(("gfx1200", "gfx1201")) else 3 if self.gfx.startswith("gfx11") else 0

    def __str__(self) -> str:
        return self.gfx or f"compute capability {self.major}.{self.minor}"


_CDNA = {"gfx90a": 2, "gfx942": 3, "gfx950": 4, "gfx1250": 5}


def device_of(gpu: Gpu) -> ServerDevice:
    """The device that servers see. InputError when neither capability nor gfx name is known."""
    if gpu.gfx is not None:
        digits = re.match(r"gfx(\d+)", gpu.gfx)
        if digits is None:
            raise InputError(f"GPU {gpu.label!r}: {gpu.gfx!r} is not a gfx name")
        text = digits[1]
        major, minor = (int(text[:2]), int(text[2])) if len(text) == 4 else (int(text[0]), int(text[1]))
        return ServerDevice(major=major, minor=minor, gfx=gpu.gfx)
    if gpu.compute_capability is None:
        raise InputError(f"GPU {gpu.label!r} has neither a compute capability nor a gfx name, so no server runs on it")
    return ServerDevice(major=gpu.compute_capability[0], minor=gpu.compute_capability[1])

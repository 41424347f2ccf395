"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import Lawful, Traced

from decodecalc.geometry import Geometry

LAWS = {
    "flash-attention-2": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        page_size=256,
        traced=(Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=256, exact_grid=False),),
    ),
    "flash-attention-3": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        traced=(Traced(geometry=Geometry(64, 8, 128), gpu="h200-sxm", page_size=16),),
    ),
    "flash-attention-4": Lawful(
        gpus=("b200-sxm", "gb200", "b300-sxm"),
        traced=(Traced(geometry=Geometry(64, 8, 128), gpu="b200-sxm", page_size=16),),
    ),
}

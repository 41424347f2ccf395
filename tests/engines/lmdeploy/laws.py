"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import Lawful, Traced

from decodecalc.geometry import Geometry

LAWS = {
    "turbomind": Lawful(
        gpus=("a100-sxm", "h100-sxm", "rtx-3090", "rtx-4090", "rtx-pro-6000-server"),
        page_size=64,
        traced=(Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=64),),
    ),
}

"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import BOTH, Lawful, Traced

from decodecalc.geometry import Geometry

LAWS = {
    "trtllm-gen": Lawful(
        gpus=("b200-sxm", "gb200", "b300-sxm"),
        layers=BOTH,
        page_size=64,
        traced=(Traced(geometry=Geometry(32, 8, 128), gpu="b200-sxm", page_size=64),),
    ),
}

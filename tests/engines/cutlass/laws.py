"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import MLA, Lawful, Traced

from decodecalc.geometry import Geometry

LAWS = {
    "cutlass-mla": Lawful(
        gpus=("b200-sxm", "gb200", "b300-sxm"),
        layers=MLA,
        traced=(Traced(geometry=Geometry(128, 1, 576, 512, mla=True), gpu="b200-sxm", page_size=64),),
    ),
}

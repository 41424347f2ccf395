"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import MLA, Lawful, Traced

from decodecalc.geometry import Geometry

MLA_LAYER = Geometry(16, 1, 576, 512, mla=True)
LAWS = {
    "flashinfer": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        traced=(
            Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=16),
            Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=16, options={"path": "cuda_cores"}),
        ),
    ),
    "flashinfer-mla": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        layers=MLA,
        traced=(Traced(geometry=MLA_LAYER, gpu="h200-sxm", page_size=64),),
    ),
    "flashinfer-xqa": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        traced=(Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=16),),
    ),
}

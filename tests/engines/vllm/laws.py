"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import MLA, Lawful, Traced

from decodecalc.geometry import Geometry

MLA_LAYER = Geometry(16, 1, 576, 512, mla=True)
LAWS = {
    "vllm-triton": Lawful(
        gpus=("h100-sxm", "l4", "b200-sxm", "rtx-pro-6000-server", "mi300x"),
        traced=(
            Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=16, heads_from_grids=True),
            Traced(geometry=Geometry(28, 4, 128), gpu="h200-sxm", page_size=16, options={"batch_invariant": True}),
            Traced(geometry=Geometry(8, 1, 128), gpu="h200-sxm", page_size=16, version="0.19", heads_from_grids=True),
        ),
    ),
    "vllm-triton-mla": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        layers=MLA,
        traced=(Traced(geometry=MLA_LAYER, gpu="h200-sxm", page_size=16, bounds_context=True),),
    ),
    "vllm-triton-diffkv": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        traced=(Traced(geometry=Geometry(64, 4, 192, 128), gpu="h200-sxm", page_size=16),),
    ),
    "paged-attention-v1": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        traced=(Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=16),),
    ),
    "paged-attention-v2": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        traced=(Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=16, bounds_context=True),),
    ),
    "rocm-paged": Lawful(
        gpus=("mi300x", "mi355x", "mi308x"),
        traced=(Traced(geometry=Geometry(32, 8, 128), gpu="mi300x", page_size=16, bounds_context=True),),
    ),
}

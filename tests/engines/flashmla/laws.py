"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import MLA, Lawful, Traced

from decodecalc.geometry import Geometry

MLA_LAYER = Geometry(16, 1, 576, 512, mla=True)
LAWS = {
    "flashmla": Lawful(
        gpus=("h100-sxm", "h200-sxm", "h20"),
        layers=MLA,
        page_size=64,
        dealt=("flash_fwd_splitkv_mla_kernel",),
        traced=(Traced(geometry=MLA_LAYER, gpu="h200-sxm", page_size=64),),
    ),
    "flashmla-sparse": Lawful(
        gpus=("h100-sxm", "h200-sxm", "h20"),
        layers=MLA,
        cache_dtype="fp8",
        dealt=("flash_fwd_splitkv_mla_fp8_sparse_kernel",),
        traced=(Traced(geometry=MLA_LAYER, gpu="h200-sxm", page_size=64),),
    ),
}

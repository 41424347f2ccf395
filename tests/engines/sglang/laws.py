"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import BOTH, Lawful, Traced

from decodecalc.geometry import Geometry

LAWS = {
    "sglang-triton": Lawful(
        gpus=("h100-sxm", "a100-sxm", "mi300x", "mi355x"),
        layers=BOTH,
        # SGLang hands a layer's window minus 1 to its kernels (srt/layers/attention).
        keys_left_out=1,
        dealt=("_lean_attention_decode_kernel",),
        traced=(
            Traced(geometry=Geometry(32, 8, 128), gpu="h200-sxm", page_size=1, heads_from_grids=True),
            Traced(
                geometry=Geometry(16, 16, 64),
                gpu="h200-sxm",
                page_size=1,
                options={"max_kv_splits_arg": 32},
                heads_from_grids=True,
            ),
        ),
    ),
}

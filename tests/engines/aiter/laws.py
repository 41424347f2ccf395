"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import MLA, Lawful, Traced

from decodecalc.geometry import Geometry

MLA_LAYER = Geometry(16, 1, 576, 512, mla=True)
LAWS = {
    "aiter-unified": Lawful(
        gpus=("mi300x", "mi355x", "mi308x"),
        traced=(Traced(geometry=Geometry(64, 8, 64), gpu="mi300x", page_size=16),),
    ),
    "aiter-pa-decode": Lawful(
        gpus=("mi300x", "mi355x", "mi308x"),
        # The window is reckoned from the last of several query tokens (pa_decode_gluon).
        keys_left_out=2,
        traced=(
            Traced(geometry=Geometry(64, 8, 128), gpu="mi300x", page_size=16),
            Traced(geometry=Geometry(64, 8, 128), gpu="mi300x", page_size=16, options={"ps": "no"}),
        ),
    ),
    "aiter-mla": Lawful(
        gpus=("mi300x", "mi355x", "mi308x"),
        layers=MLA,
        dealt=("mla_decode_stage1_asm_ps",),
        traced=(
            Traced(geometry=MLA_LAYER, gpu="mi300x", page_size=1),
            Traced(geometry=MLA_LAYER, gpu="mi300x", page_size=1, options={"mode": "split_kv"}),
        ),
    ),
}

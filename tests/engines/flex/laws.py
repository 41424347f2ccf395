"""Where the laws of every policy are tested on this folder's engines."""

from __future__ import annotations

from lawful import Lawful

LAWS = {
    "flex-decoding": Lawful(
        gpus=("h100-sxm", "h200-sxm"),
        not_in_traces="its kernels have names of torch's choosing",
    ),
}

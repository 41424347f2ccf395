"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "gfx1250": "This architecture runs other kernels, for which there is no policy here.",
        "kv_granularity": "The pages of a planned block have to be a power of two.",
        "max_split_per_batch": "The bound on the parts has to be positive, or -1 for no bound.",
    },
    gates={
        "folded": "Heads are folded into groups that count as requests of their own.",
        "long_enough": "The longest request has enough keys to be split.",
        "no_window": "The layer has no sliding window.",
        "persistent_kept": "The persistent plan is used for the step's batch size.",
        "stage1_kernel": "A stage-1 kernel exists for these heads and query tokens.",
        "underfilled": "The unsplit grid leaves compute units idle.",
        "whole_blocks": "Splits hold whole blocks of the cache.",
    },
)

"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "group_not_power_of_2": "Before torch 2.9 a group that is no power of two fails to compile.",
        "mask_block_size": "No configuration fits the blocks of the mask.",
    },
    gates={
        "flex_decoding": "The decode kernel runs, and not the unsplit one.",
        "merge_grid_known": "The grid of the merge is fixed by the source.",
    },
)

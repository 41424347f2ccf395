"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "no_sm_parts": "There are more blocks of query rows than SMs, so that no SM part is left.",
        "topk_not_multiple_of_64": "The width of the list has to be a multiple of 64.",
    },
    gates={
        "lists_supported": "The kernel takes lists of these kinds.",
        "scheduler_metadata": "The schedule is valid for these lengths.",
    },
)

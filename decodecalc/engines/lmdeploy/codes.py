"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "cp_size": "The ranks of context parallelism have to be a power of two up to 32.",
    },
)

"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "head_group": "The query heads do not fill the tiles.",
        "mla_heads": "There is no kernel for MLA with 65 to 127 query heads.",
        "no_kernel": "The list of precompiled kernels has none for the step.",
        "selection": "The engine's search for a kernel does not end.",
        "sparse_mla": "Selected tokens need MLA of 576 and 512 elements.",
    },
    gates={
        "cluster_reduction": "Partial states are reduced in a cluster.",
        "kernel_listed": "The kernel is in the list that was read.",
    },
)

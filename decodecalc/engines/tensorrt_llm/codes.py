"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "beam_width": "The kernel does not take this number of beams.",
        "chunked_attention": "The kernel has no chunked attention.",
        "mha": "Plain multi-head attention runs in the other decode kernel.",
        "occupancy": "The occupancy needs one count for each of the three block sizes.",
        "position_embedding": "The kernel does not take this position embedding.",
        "shared_memory_unknown": "The shared memory of the device is not known, and the tile count depends on it.",
        "spec_lengths_variable": "MLA drafts need one length.",
        "too_many_tiles": "The tiles of a sequence exceed the threads of a block.",
        "trtllm_gen": "The device runs the precompiled Blackwell kernels instead.",
    },
)

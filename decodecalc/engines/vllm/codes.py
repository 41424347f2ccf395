"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "allocator_page_size": "The allocator's page has to be a multiple of the kernel's.",
        "capture_sizes": "The server refuses to start with these CUDA graph sizes.",
        "causal": "The backend serves causal masks only.",
        "paged_attention_fallback": "The custom kernel does not take the step; this version falls back to another.",
    },
    gates={
        "alibi": "The layer has no ALiBi slopes, or the kernel takes them.",
        "block_size": "The block size is one that the custom kernel is compiled for.",
        "causal": "The mask is causal, or every request has one query token.",
        "fixed_splits": "The split count is a constant.",
        "head_dim_compiled": "The width of a head is among those that the kernel is compiled for.",
        "large_head": "The wide heads of several query tokens do not force the unsplit path.",
        "max_seq_len": "The step is sized for few enough keys.",
        "model_kv_heads": "The threshold counts this layer's own KV heads.",
        "partition": "Partitions hold whole blocks of the cache.",
        "sm120_segments": "The grid is small enough for 64 segments.",
        "sm_cap": "The device has enough SMs for the split count that the length asks for.",
    },
)

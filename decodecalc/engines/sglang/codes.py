"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "draft_window": "This version builds no window indices for draft steps.",
        "empty_window": "A window of one key leaves no keys, and the launch fails.",
        "multi_query": "The decode kernel takes one query token for each row.",
    },
    gates={
        "cap_not_binding": "The cap on the split count is not reached.",
        "deterministic": "Split counts depend on the own length of a request only.",
        "every_split_live": "Every split that was asked for has keys after rounding.",
        "kv_head_mapping": "Every head block reads the keys of its own KV head.",
        "lean_kernel": "The persistent lean kernel runs instead.",
        "mla_cap": "The cap of MLA layers follows the device and the context.",
        "mla_decode_tune": "The tuned MLA geometry sets one split count for the batch.",
        "near_equal_lengths": "The lengths of the batch are so close that they count as equal.",
        "no_padding_rows": "The captured graph has no rows beyond the requests.",
        "static_kv_splits": "Every request takes the cap as its split count.",
        "window_counts": "The counts for the full lengths are the same as those for the window.",
    },
)

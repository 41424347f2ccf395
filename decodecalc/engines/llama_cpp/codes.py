"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "gqa_path": "The head size needs a mask, no ALiBi and a padded cache.",
        "n_kv": "The cells that the kernel sees are fewer than the keys of a stream.",
    },
    gates={
        "cache_used_directly": "The kernel reads the cache without converting it.",
        "softcap_compiled": "The kernel is compiled with a soft cap, or the layer has none.",
    },
)

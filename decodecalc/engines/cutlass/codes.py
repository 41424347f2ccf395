"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "window_softcap_or_sinks": "The kernel has no sliding window, no logit cap and no sinks.",
    },
    gates={
        "workspace_fits": "The partial states fit the workspace that is allocated at start-up.",
    },
)

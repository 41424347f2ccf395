"""Where a Triton decode kernel can take V from its K tile: SGLang's, and vLLM's of 0.20, which was copied from it."""

from __future__ import annotations

from decodecalc.geometry import Geometry
from decodecalc.intmath import next_power_of_2

SPLIT_WIDTHS = {576: 512, 288: 256}  # key widths whose tile is cut in two: the part that is V too, and the rest


def view_fits(geo: Geometry) -> bool:
    """Whether the K tile is as wide as the V tile, so that its transpose can be multiplied as V.

    Source: `_decode_grouped_att_m_fwd` of sglang 0.5.12 to 0.5.23 and of vLLM 0.20.0 to 0.20.2 (BLOCK_DMODEL,
    BLOCK_DV); a latent of 320/256 gives 512 against 256, and Triton refuses `acc += tl.dot(p, tl.trans(k))`.

    >>> view_fits(Geometry(16, 1, 576, 512, mla=True)), view_fits(Geometry(16, 1, 320, 256, mla=True))
    (True, False)
    """
    width = int(next_power_of_2(geo.head_dim))
    return SPLIT_WIDTHS.get(geo.head_dim, width) == int(next_power_of_2(geo.v_dim))

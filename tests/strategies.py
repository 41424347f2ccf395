"""Hypothesis strategies of the whole suite."""

from __future__ import annotations

from hypothesis import strategies as st

from decodecalc.batch import Batch
from decodecalc.geometry import Geometry

head_dims = st.sampled_from([64, 80, 96, 128, 192, 256])
groups = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 71])
key_counts = st.one_of(st.integers(1, 600), st.integers(1, 300_000), st.sampled_from([255, 256, 257, 512, 513, 4097]))


@st.composite
def geometries(draw: st.DrawFn, windows: bool = False) -> Geometry:
    """Grouped-query geometries of any group, MHA and MQA among them."""
    kv_heads = draw(st.sampled_from([1, 2, 4, 8, 10, 16, 32]))
    window = draw(st.one_of(st.none(), st.integers(1, 5000))) if windows else None
    return Geometry(kv_heads * draw(groups), kv_heads, draw(head_dims), window=window)


@st.composite
def mla_geometries(draw: st.DrawFn) -> Geometry:
    """DeepSeek's latent (576 wide, 512 of it the value) under any head count a rank may have."""
    return Geometry(draw(st.sampled_from([8, 16, 32, 64, 128])), 1, 576, 512, mla=True)


@st.composite
def batches(draw: st.DrawFn, max_q_len: int = 1) -> Batch:
    """Ragged and uniform decode steps."""
    if draw(st.booleans()):
        return Batch.uniform(draw(st.integers(1, 70)), draw(key_counts), draw(st.integers(1, max_q_len)))
    lens = draw(st.lists(key_counts, min_size=1, max_size=12))
    return Batch([max(n, max_q_len) for n in lens], draw(st.integers(1, max_q_len)))


junk_text = st.one_of(
    st.text(max_size=40), st.sampled_from(["", "-1", "0", "1e9", "NaN", "1:0", "x", "1,,2", "9" * 40])
)

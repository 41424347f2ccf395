"""Hostile and broken input: a clear outcome every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodecalc.errors import DecodecalcError
from decodecalc.trace.audit import audit_traces
from decodecalc.trace.candidates import Known

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=8,
)
names = st.one_of(
    st.sampled_from(
        ["kernel_unified_attention", "kernel_unified_attention_2d", "reduce_segments", "_fwd_grouped_kernel_stage1",
         "_fwd_kernel_stage2", "get_num_kv_splits_triton", "void flash::flash_fwd_splitkv_kernel<T>(P)",
         "void flash_fwd_splitkv_mla_kernel<T>(P)", "void paged_attention_v2_kernel<float>(P)",
         "void paged_attention_ll4mi_QKV_mfma4_kernel<float>(P)", "BatchDecodeWithPagedKVCacheKernel<1>(P)",
         "FlashAttnFwdSm90<A>", "BatchPrefillWithPagedKVCacheKernel<1>(P)", "\x1b[2J attention <script>"]
    ),
    junk,
)  # fmt: skip
extents = st.one_of(junk, st.lists(st.integers(-1, 70_000), min_size=0, max_size=4))
events = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "cuda_runtime", "user_annotation", "x"])},
    optional={
        "name": names,
        "ts": st.one_of(junk, st.floats(-1e9, 1e9)),
        "dur": st.one_of(junk, st.floats(-10, 1e6)),
        "args": st.one_of(
            junk,
            st.fixed_dictionaries(
                {}, optional={"grid": extents, "block": extents, "stream": junk, "device": junk, "correlation": junk}
            ),
        ),
    },
)


def outcome(path: str, known: Known) -> None:
    """An audit with a verdict and rows, or an error in words."""
    from decodecalc.tables.audit import audit_page, audit_table
    from decodecalc.tables.render import FORMATS, render

    try:
        audit = audit_traces([path], known)
    except DecodecalcError:
        return
    assert audit.verdict
    table = audit_table(audit, {}, [])
    for form in FORMATS:
        text = render(table, form)
        assert "\x1b" not in text
        if form == "json":
            json.loads(text)
    assert "<script" not in audit_page(audit, table, "decodecalc audit t.json")


@given(data=st.binary(max_size=400))
@quick
def test_any_bytes(data: bytes, tmp_path: Path) -> None:
    """Whatever a file holds, it is read or refused."""
    path = tmp_path / "junk"
    path.write_bytes(data)
    outcome(str(path), Known())


@given(found=st.lists(events, max_size=12), model=st.booleans())
@quick
def test_any_events(found: list[dict[str, Any]], model: bool, kineto: Callable[..., str]) -> None:
    """Events of every shape, with and without a model to hold them against."""
    import decodecalc as dc
    from decodecalc.models import LayerGroup

    layer = (LayerGroup("all", 1, dc.Geometry(32, 8, 128)),) if model else ()
    outcome(kineto(found), Known(layer_groups=layer, ragged=dc.Batch([300, 20]) if model else None))


@given(device=junk)
@quick
def test_any_device(device: Any, kineto: Callable[..., str]) -> None:
    """Metadata of every shape."""
    outcome(kineto([], device=device), Known())


@given(cut=st.integers(1, 2000))
@quick
def test_any_cut(cut: int, kineto: Callable[..., str], events_of: Any, tmp_path: Path) -> None:
    """A trace cut anywhere is refused, or read up to the cut when that is allowed."""
    import decodecalc as dc

    plan = dc.plan("vllm-triton", dc.Geometry(32, 8, 128), dc.Batch([4096]), gpu="h200-sxm")
    whole = Path(kineto(events_of(plan, rounds=1))).read_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(DecodecalcError, match=r"cut off|no traceEvents|empty|not a trace"):
        audit_traces([str(path)], Known())
    if b'"traceEvents": [' in path.read_bytes():
        audit = audit_traces([str(path)], Known(), allow_truncated=True)
        assert "cut off" in audit.notes[0]

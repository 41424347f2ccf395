"""Where `backend="auto"` leaves fa2: values of the source, the wrapper's own conditions, and both doors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.engines.flashinfer.decode import POLICY
from decodecalc.engines.flashinfer.options import FlashInferOptions
from decodecalc.launch.arrays import Batches, at

B200 = dc.load_gpu("b200-sxm")
H100 = dc.load_gpu("h100-sxm")
WIDE = dc.Geometry(64, 4, 128)  # a group of 16


def gate(geo=WIDE, batch=None, gpu=B200, version="0.7.4", dtype="bf16", page=16, **options):
    """The gate of one plan."""
    kv = dc.KvCache(dtype, page, query_dtype="fp16" if dtype == "fp16" else "bf16")
    batch = dc.Batch.uniform(32, 4096, 2) if batch is None else batch
    return dc.plan(f"flashinfer@{version}", geo, batch, kv=kv, gpu=gpu, **options).gate("backend_is_fa2")


@pytest.mark.parametrize(
    ("change", "fa2", "word"),
    [
        ({}, False, "cuDNN"),
        ({"version": "0.7.2.post1"}, False, "cuDNN"),
        ({"version": "0.7.1"}, True, "before 0.7.2"),
        ({"backend": "fa2"}, True, "backend is fa2"),
        ({"gpu": H100}, True, "9.0"),
        ({"batch": dc.Batch.uniform(32, 4096)}, True, "not 1"),
        ({"batch": dc.Batch.uniform(32, 4096, 5)}, True, "not 5"),
        ({"batch": dc.Batch.uniform(15, 4096, 2)}, True, "60 requests x KV heads"),
        ({"geo": dc.Geometry(64, 8, 128)}, True, "16 query rows"),
        ({"geo": dc.Geometry(96, 8, 128)}, True, "group of 12"),
        ({"geo": dc.Geometry(64, 4, 128, window=512)}, True, "window of 512"),
        ({"geo": dc.Geometry(64, 4, 128, softcap=30.0)}, True, "soft cap"),
        ({"geo": dc.Geometry(64, 4, 64)}, True, "not 64"),
        ({"dtype": "fp8"}, True, "fp8 keys"),
        ({"page": 24}, True, "page size of 24"),
        ({"disable_split_kv": True}, True, "disable_split_kv"),
        ({"fixed_split_size_pages": 16}, True, "fixed_split_size"),
        ({"cudnn_frontend": "absent"}, True, "not installed"),
        ({"cudnn_frontend": "1.29"}, True, "older than 1.30"),
        ({"cudnn_frontend": "1.29", "decode_auto_cudnn": "1"}, False, "cuDNN"),
        ({"decode_auto_cudnn": "0"}, True, "FLASHINFER_DECODE_AUTO_CUDNN is 0"),
        ({"cuda_graph": True}, True, "cannot grow"),
        ({"cuda_graph": True, "block_tables_tokens": 4096}, False, "cuDNN"),
        ({"block_tables_tokens": 1024, "cudnn_frontend": "1.30"}, True, "tokens are shorter"),
        ({"block_tables_tokens": 1024, "cudnn_frontend": "1.31"}, False, "cuDNN"),
    ],
)
def test_what_auto_runs_and_why(change, fa2, word):
    """Each condition of `_auto_decode_prefers_cudnn` and of the wrapper decides a step that differs in nothing else."""
    found = gate(**change)
    assert found.passed is fa2
    assert word in found.reason


@pytest.mark.parametrize(
    ("batch", "options", "fa2"),
    [
        (12, {}, False),
        (11, {}, True),
        (32, {}, False),
        (33, {}, True),
        (8, {"cuda_graph": True, "block_tables_tokens": 8192}, False),
        (8, {"cuda_graph": True, "block_tables_tokens": 8192, "cudnn_frontend": "1.30"}, True),
    ],
)
def test_one_token_at_head_dim_256_has_a_band_of_units(batch, options, fa2):
    """0.7.4: 96 to 256 requests x KV heads, from 64 where a replayed graph is announced; 0.7.2 keeps fa2."""
    geo, step = dc.Geometry(64, 8, 256), dc.Batch.uniform(batch, 4096)
    assert gate(geo, step, **options).passed is fa2
    assert gate(geo, step, version="0.7.2.post1", **options).passed


@pytest.mark.parametrize(
    ("batch", "keys", "q_len", "fa2"),
    [(4, 8192, 8, False), (16, 1024, 4, False), (16, 8192, 4, True), (8, 8192, 8, True), (16, 1025, 8, True)],
)
def test_measured_shapes_go_to_xqa_on_sm90(batch, keys, q_len, fa2):
    """0.7.4, `_xqa_mtp_decode_has_measured_shape`: 8 tokens at 8192 keys, or 16 requests at 1024 keys."""
    geo, step = dc.Geometry(32, 8, 128), dc.Batch.uniform(batch, keys, q_len)
    assert gate(geo, step, H100, dtype="fp16", cuda_graph=True).passed is fa2
    assert gate(geo, step, H100, dtype="fp16").passed
    assert gate(geo, step, H100, dtype="bf16", cuda_graph=True).passed
    assert gate(geo, step, H100, version="0.7.2.post1", dtype="fp16", cuda_graph=True).passed


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(8, 9000), st.integers(1, 6)), min_size=1, max_size=8),
    st.sampled_from([dc.Geometry(64, 4, 128), dc.Geometry(32, 2, 256), dc.Geometry(24, 2, 128)]),
    st.booleans(),
)
def test_a_sweep_routes_as_its_plans_do(steps, geo, graph):
    """Entry n of a sweep has the gate of the plan of step n, outcome and wording."""
    options = FlashInferOptions(cuda_graph=graph, block_tables_tokens=9000)
    kv, version = dc.KvCache(), POLICY.version()
    _, swept = POLICY.on_layer(geo, Batches.uniform(*np.array(steps).T), kv, B200, options, version)
    found = next(g for g in swept.gates if g.name == "backend_is_fa2")
    for n, step in enumerate(steps):
        one = POLICY.plan(geo, dc.Batch.uniform(*step), kv, B200, options).gate("backend_is_fa2")
        assert (bool(at(found.passed, n)), found.reason(n)) == (one.passed, one.reason)

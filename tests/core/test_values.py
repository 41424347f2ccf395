"""The value objects that everything is built from: Geometry, Batch, KvCache."""

from __future__ import annotations

import pytest
from hypothesis import given
from strategies import batches, geometries

import decodecalc as dc
from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache


def test_a_geometry_knows_its_group_and_kind() -> None:
    """group = q_heads / kv_heads; the kind follows from it."""
    assert [Geometry(32, k, 128).kind for k in (32, 8, 1)] == ["MHA", "GQA", "MQA"]
    assert Geometry(128, 1, 576, 512, mla=True).kind == "MLA"
    assert Geometry(28, 4, 128).group == 7


def test_kv_bytes_of_a_key_count_keys_and_values_once_per_kv_head() -> None:
    """Llama-3-8B: 8 heads x (128 + 128) x 2 B = 4096 B a key and layer; an MLA latent is read once: 576 x 2 B."""
    assert KvCache().bytes_per_key(Geometry(32, 8, 128)) == 4096
    assert KvCache().bytes_per_key(Geometry(16, 1, 576, 512, mla=True)) == 1152
    assert KvCache("fp8").bytes_per_key(Geometry(32, 8, 128)) == 2048
    assert KvCache("nvfp4").bytes_per_key(Geometry(32, 8, 128)) == 8 * 256 * 0.5625
    assert KvCache().bytes_per_key(Geometry(64, 4, 192, 128)) == 4 * 320 * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Geometry(0, 1, 128), "q_heads must be between 1"),
        (lambda: Geometry(30, 8, 128), "multiple of kv_heads"),
        (lambda: Geometry(8, 8, -1), "head_dim must be between"),
        (lambda: Geometry(8, 8, 128.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Geometry(8, 8, True), "whole number"),
        (lambda: Geometry(8, 8, 128, window=0), "window must be between"),
        (lambda: Geometry(8, 1, 128, 256, mla=True), "view of its latent"),
        (lambda: Batch([]), "1 to"),
        (lambda: Batch([1, -1]), "seq_lens must be between"),
        (lambda: Batch([1, 2], [1]), "q_lens has 1 entries for 2 requests"),
        (lambda: Batch(7), "list of key counts"),  # type: ignore[arg-type]
        (lambda: Batch.uniform(0, 5), "batch must be between 1"),
        (lambda: Batch.uniform(1, 0), "context must be between 1"),
        (lambda: KvCache("bf17"), "did you mean bf16"),
        (lambda: KvCache(page_size=0), "page_size must be between"),
    ],
)
def test_impossible_values_are_refused_with_the_valid_range(make: object, message: str) -> None:
    """The error names the field, the value and what is valid."""
    with pytest.raises(dc.InputError, match=message):
        make()  # type: ignore[operator]


@given(geometries(), batches(max_q_len=8))
def test_values_survive_a_round_trip_through_plain_dicts(geo: Geometry, batch: Batch) -> None:
    """to_dict holds everything needed to make the object again."""
    plain = geo.to_dict()
    derived = {"group", "kind"}
    assert Geometry(**{k: v for k, v in plain.items() if k not in derived}) == geo
    again = batch.to_dict()
    assert Batch(again["seq_lens"], again["q_lens"]) == batch


def test_dtype_names_of_torch_and_vllm_are_understood() -> None:
    """One canonical name per element type."""
    assert [KvCache(name).dtype for name in ("torch.bfloat16", "fp8_e4m3", "HALF", "float8_e4m3fn")] == [
        "bf16",
        "fp8",
        "fp16",
        "fp8",
    ]


def test_a_notebook_shows_values_as_tables_and_frames() -> None:
    """Every public value has an HTML repr, escaped, and a one-row frame."""
    gpu = dc.load_gpu("h200-sxm").with_(name="<b>mine</b>")
    plan = dc.plan("vllm-triton", Geometry(32, 8, 128), Batch([128, 8192]), gpu=gpu)
    shown = (plan, plan.geometry, plan.batch, plan.kv, gpu, dc.occupancy(plan), dc.traffic(plan), dc.roofline(plan))
    for value in (*shown, dc.paging(plan), dc.load_model("llama3-8b"), dc.load_model("llama3-8b").shard(2)):
        page = value._repr_html_()
        assert page.startswith("<table>")
        assert page.count("<tr>") >= len(value.to_dict())
        assert "<b>mine" not in page
        assert len(value.to_frame()) == 1
    assert plan.to_frame()["geometry.q_heads"][0] == 32


def test_a_plan_says_that_an_engine_has_no_quantities_of_its_own() -> None:
    """The textbook rule has none: null, and no empty object. An engine that has some gives them by name."""
    layer, batch = dc.Geometry(32, 8, 128), dc.Batch([4096])
    assert dc.plan("flash-decoding", layer, batch, gpu="h200-sxm").to_dict()["detail"] is None
    assert "split_keys" in dc.plan("bundled", layer, batch, gpu="h200-sxm").to_dict()["detail"]

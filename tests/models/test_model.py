"""Layer groups, tensor-parallel sharding and what a rank sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodecalc.errors import InputError, ShardingError
from decodecalc.geometry import Gather, Geometry
from decodecalc.models import LayerGroup, Model


def model_of(*heads: tuple[int, int], mla: bool = False) -> Model:
    groups = tuple(
        LayerGroup(f"g{i}", 2, Geometry(q, kv, 576 if mla else 128, 512 if mla else 128, mla=mla))
        for i, (q, kv) in enumerate(heads)
    )
    return Model("test", "test", 2 * len(groups), groups, kv_heads=heads[0][1])


# Published cases: vLLM issues 11797, 2652, 414, 4232, 596, 13934 and the rule of vLLM 0.33.
@pytest.mark.parametrize(
    ("heads", "valid"),
    [
        ((28, 4), [1, 2, 4, 28]),
        ((12, 2), [1, 2, 4, 6, 12]),
        ((56, 8), [1, 2, 4, 8, 56]),
        ((40, 8), [1, 2, 4, 8, 40]),
        ((52, 52), [1, 2, 4, 13, 26, 52]),
        ((71, 1), [1, 71]),
        ((9, 3), [1, 3, 9]),
        ((36, 4), [1, 2, 4, 12, 36]),
        ((48, 8), [1, 2, 4, 8, 16, 24, 48]),
        ((24, 8), [1, 2, 4, 8, 24]),
    ],
)
def test_valid_degrees_of_known_models(heads: tuple[int, int], valid: list[int]) -> None:
    """The degrees are those that engines accept for these real head counts."""
    assert model_of(heads).valid_tp() == valid


def test_a_degree_that_does_not_fit_is_refused_with_the_valid_ones() -> None:
    """40 query heads over 6 ranks fail, and the message lists what would work."""
    with pytest.raises(ShardingError, match=r"tp 6 does not fit test \(40 query / 8 KV heads\); valid: 1, 2, 4, 8, 40"):
        model_of((40, 8)).shard(6)


def test_kv_heads_are_replicated_beyond_their_count() -> None:
    """A rank never holds less than one KV head."""
    geometry = model_of((64, 8)).shard(16).layer_groups[0].geometry
    assert (geometry.q_heads, geometry.kv_heads, geometry.group) == (4, 1, 4)


def test_an_mla_latent_is_whole_on_every_rank() -> None:
    """Tensor parallelism divides the query heads of MLA, not its one latent."""
    geometry = model_of((128, 1), mla=True).shard(8).layer_groups[0].geometry
    assert (geometry.q_heads, geometry.kv_heads, geometry.head_dim, geometry.head_dim_v) == (16, 1, 576, 512)


def test_all_layer_groups_must_fit() -> None:
    """Layers that differ limit the degrees to those that all of them allow."""
    assert model_of((12, 4), (16, 8)).valid_tp() == [1, 2, 4]


def test_the_engine_builder_sees_the_model_wide_kv_heads() -> None:
    """Gemma-4-31B at tp 4: global layers have one KV head per rank, the builder still counts four."""
    model = Model(
        "gemma",
        "gemma4_text",
        60,
        (
            LayerGroup("sliding", 50, Geometry(32, 16, 256, window=1024)),
            LayerGroup("full", 10, Geometry(32, 4, 512)),
        ),
        kv_heads=16,
    )
    rank = model.shard(4)
    assert rank.model_kv_heads == 4
    assert [group.geometry.kv_heads for group in rank.layer_groups] == [4, 1]


@pytest.mark.parametrize("tp", [0, -1, 1.5, "2", None, True])
def test_a_degree_is_a_positive_whole_number(tp: object) -> None:
    """Anything else is bad input, not a crash."""
    with pytest.raises(InputError):
        model_of((8, 8)).shard(tp)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 600))
def test_sharding_keeps_the_group_law(kv: int, group: int, tp: int) -> None:
    """Every accepted degree divides the query heads and covers every KV head, replicated or not."""
    model = model_of((kv * group, kv))
    if tp in model.valid_tp():
        rank = model.shard(tp).layer_groups[0].geometry
        assert rank.q_heads * tp == kv * group
        assert rank.kv_heads * tp >= kv
        assert rank.q_heads % rank.kv_heads == 0
    else:
        with pytest.raises(ShardingError):
            model.shard(tp)


def test_keys_read_by_each_kind_of_layer() -> None:
    """Full, windowed, chunked, compressed and top-k layers read what their definition says."""
    plain, windowed = Geometry(8, 1, 64), Geometry(8, 1, 64, window=128)
    assert LayerGroup("full", 1, plain).keys_read(5000) == 5000
    assert [LayerGroup("sliding", 1, windowed).keys_read(n) for n in (100, 128, 5000)] == [100, 128, 128]
    chunked = LayerGroup("chunked", 1, plain, chunk=8192)
    assert [chunked.keys_read(n) for n in (1, 8192, 8193, 20000)] == [1, 8192, 1, 3616]
    assert LayerGroup("sparse", 1, replace(plain, gather=Gather(topk=2048))).keys_read(100_000) == 2048
    compressed = LayerGroup("csa", 1, replace(plain, gather=Gather(topk=512, compress=4, window=128)))
    assert (compressed.topk, compressed.compress_ratio) == (512, 4)
    assert [compressed.keys_read(n) for n in (64, 1024, 100_000)] == [64 + 16, 128 + 256, 128 + 512]


def test_dictionaries_hold_plain_values() -> None:
    """`to_dict` of every object survives JSON."""
    import json

    model = model_of((8, 4))
    assert json.loads(json.dumps(model.to_dict())) == model.to_dict()
    assert model.shard(2).to_dict()["layer_groups"][0]["geometry"]["kv_heads"] == 2

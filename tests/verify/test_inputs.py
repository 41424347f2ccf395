"""Random tensors: shuffled pages, layers apart, poison where nothing may be read."""

from __future__ import annotations

import pytest

from decodecalc import Batch, Geometry, KvCache

torch = pytest.importorskip("torch")

from decodecalc.verify.run.inputs import FP8_NAN, NO_PAGE, layer_bytes, make_inputs  # noqa: E402

GEO = Geometry(4, 2, 16)


def test_every_layer_has_its_own_cache_and_one_shuffled_page_table_serves_all():
    made = make_inputs(GEO, Batch([100, 40]), KvCache(), "cpu", layers=3)
    used = made.table[made.table != NO_PAGE].tolist()
    assert sorted(used) == list(range(7 + 3))
    assert used != sorted(used)
    assert made.layers == 3
    pointers = {cache.data_ptr() for layer in range(3) for cache in made.cache(layer)}
    assert len(pointers) == 6
    assert not made.cache(0)[0][0].equal(made.cache(1)[0][0])


def test_slots_beyond_a_requests_keys_are_poisoned_and_no_others():
    made = make_inputs(GEO, Batch([100, 32]), KvCache(), "cpu", layers=2)
    for k, v in map(made.cache, range(2)):
        last = k[int(made.table[0, 6])]
        assert last[4:].isnan().all()
        assert not last[:4].isnan().any()
        assert not v[int(made.table[1, 1])].isnan().any()


def test_fp8_caches_are_poisoned_by_their_nan():
    made = make_inputs(GEO, Batch([20]), KvCache("fp8"), "cpu")
    page = made.cache()[0].view(torch.uint8)[int(made.table[0, 1])]
    assert (page[4:] == FP8_NAN).all()
    assert not (page[:4] == FP8_NAN).all()


def test_pages_of_one_become_a_flat_list():
    made = make_inputs(GEO, Batch([5, 3]), KvCache(page_size=1), "cpu")
    assert made.indptr.tolist() == [0, 5, 8]
    assert sorted(made.table.tolist()) == list(range(8))
    assert set(made.arguments()) >= {"kv_indptr", "kv_indices"}


def test_a_latent_cache_has_no_values_of_its_own():
    made = make_inputs(Geometry(16, 1, 96, 64, mla=True), Batch([9]), KvCache(), "cpu")
    assert made.values is None
    assert made.arguments()["v_dim"] == 64


def test_a_request_alone_keeps_its_queries_and_its_pages():
    made = make_inputs(GEO, Batch([20, 30], [1, 3]), KvCache(), "cpu")
    q, args = made.alone(1)
    assert q.equal(made.q[1:4])
    assert args["seq_lens"].tolist() == [30]
    assert args["page_table"].equal(made.table[1:2])
    assert "query_start" not in args


def test_the_same_seed_gives_the_same_tensors():
    a, b, c = (make_inputs(GEO, Batch([50]), KvCache(), "cpu", seed=s) for s in (1, 1, 2))
    assert a.q.equal(b.q)
    assert not a.q.equal(c.q)


def test_a_layers_bytes_count_whole_pages():
    assert layer_bytes(GEO, KvCache(), Batch([17])) == 32 * 2 * 2 * 16 * 2

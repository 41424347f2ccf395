"""Times of collectives: the measured points, the model beyond them, predictions with them, and the break-even."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.analysis.exchange import COLLECTIVES, exchange_arrays
from decodecalc.cost.breakeven import MOST_KEYS, break_even, undivided
from decodecalc.cost.collectives import (
    exchange_time,
    load_collectives,
    parse_collectives,
    save_collectives,
    shipped_collectives,
)
from decodecalc.cost.prediction import predict_policy
from decodecalc.engines.registry import load_policy
from decodecalc.keyshare import A2A, KeyShare
from decodecalc.launch.arrays import Batches

MOST_BATCH = 4096  # outputs and queries of so many requests outweigh short contexts
WHOLE = dc.Geometry(128, 1, 576, 512, mla=True)
LINK = 450e9


def _shared(ranks: int = 2, **more: Any) -> dc.Geometry:
    return replace(WHOLE, share=KeyShare(ranks, **more))


def test_the_shipped_times_are_those_of_the_issue() -> None:
    """Between two H200s: 13, 14 and 23 us for the queries of 64 heads x 128 at batch 1, 16 and 128; a mean where two
    shapes have the same bytes, and never less than for fewer bytes."""
    times = shipped_collectives()
    found = [times.seconds("all_gather", 64 * 128 * n * 2 // 2, 2, LINK) for n in (1, 16)]
    assert found == pytest.approx([13e-6, 14e-6])
    assert times.seconds("all_gather", 256, 2, LINK) == pytest.approx(12e-6)
    assert times.seconds("all_gather", 64 * 128 * 128 * 2 // 2, 2, LINK) == pytest.approx((23e-6 + 22e-6) / 2)
    assert times.seconds("reduce_scatter", 128 * 512 * 128 * 2 // 2, 2, LINK) == pytest.approx(60e-6)


@given(
    st.sampled_from(COLLECTIVES), st.integers(0, 1 << 30), st.integers(0, 1 << 28), st.integers(2, 72),
    st.floats(1e10, 2e12),
)  # fmt: skip
def test_more_bytes_more_ranks_and_slower_links_never_take_less(
    kind: str, size: int, more: int, ranks: int, link: float
) -> None:
    """The model is monotonic in all three."""
    times = shipped_collectives()
    base = times.seconds(kind, size, ranks, link)
    assert times.seconds(kind, size + more, ranks, link) >= base * (1 - 1e-12)
    assert times.seconds(kind, size, ranks + 1, link) >= base * (1 - 1e-12)
    assert times.seconds(kind, size, ranks, link / 2) >= base * (1 - 1e-12)


def test_only_what_was_measured_is_called_measured() -> None:
    """Two H200s are measured; more of them, and other GPUs, are extrapolated with a wider interval."""
    for gpu, ranks, word in (("h200", 2, "measured"), ("h200", 8, "extrapolated"), ("b200", 2, "extrapolated")):
        found = exchange_arrays(_shared(ranks), dc.KvCache(), 1)
        assert found is not None
        time = exchange_time(found, dc.load_gpu(gpu), 7e12)
        assert time.provenance == word
        assert time.label.startswith(word)
    assert exchange_time(found, dc.load_gpu("h200"), 7e12).factor < time.factor


def test_a_gpu_without_a_known_link_has_no_time() -> None:
    """The message names the field that is missing."""
    found = exchange_arrays(_shared(), dc.KvCache(), 1)
    assert found is not None
    with pytest.raises(dc.InputError, match="interconnect"):
        exchange_time(found, dc.load_gpu("jetson-thor"), 1e12)


def test_a_prediction_holds_the_exchange() -> None:
    """The term is the exchange's time, it is part of the total and of the floor, and the interval widens with it."""
    plan = dc.plan("flashmla", _shared(), dc.Batch([65536]), kv=dc.KvCache(page_size=64), gpu="h200")
    found = dc.predict(plan)
    assert found.terms["exchange_s"] == pytest.approx(39.7e-6, rel=0.02)
    assert sum(found.terms.values()) == pytest.approx(found.known_s)
    assert found.floor_s > found.terms["exchange_s"]
    assert found.low_s is not None
    assert found.high_s is not None
    assert found.low_s < found.known_s < found.high_s
    alone = dc.predict(dc.plan("flashmla", WHOLE, plan.batch, kv=plan.kv, gpu="h200"))
    assert alone.terms["exchange_s"] == 0.0
    assert found.known_s - found.terms["exchange_s"] == pytest.approx(alone.known_s)


def test_arrays_predict_what_plans_do() -> None:
    """One path for a step and for many, the exchange included; steps of one token have fewer copies."""
    policy, kv, gpu = load_policy("flashmla"), dc.KvCache(page_size=64), dc.load_gpu("h200")
    geo, contexts, sizes = _shared(8, exchange=A2A), [4096, 100_001, 70_000], [1, 1, 16]
    terms = predict_policy(policy, geo, Batches.uniform(np.array(sizes), np.array(contexts)), kv, gpu)
    for n, (size, context) in enumerate(zip(sizes, contexts)):
        plan = policy.plan(geo, dc.Batch.uniform(size, context), kv, gpu)
        assert terms.total_s[n] == pytest.approx(dc.predict(plan).known_s)
    assert terms.exchange_s[2] > terms.exchange_s[0]


def test_choose_adds_the_exchange_to_every_count() -> None:
    """It changes no choice of a split count, and all times are times of a layer."""
    geo, batch, kv = _shared(), dc.Batch([65536]), dc.KvCache(page_size=64)
    with_it = dc.choose(geo, batch, kv=kv, gpu="h200", engines=["bundled"])
    without = dc.choose(WHOLE, batch.seen_by(geo), kv=kv, gpu="h200", engines=[])
    assert with_it.s_opt == without.s_opt
    added = with_it.total_s - without.total_s
    assert added == pytest.approx(39.7e-6, rel=0.02)
    assert [p.total_s - q.total_s for p, q in zip(with_it.curve, without.curve)] == pytest.approx(
        [added] * len(without.curve)
    )
    assert with_it.regrets[0].regret == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("engine", "ranks", "batch"), [("flashmla", 2, 1), ("flashmla", 8, 16), ("bundled", 8, 1)])
def test_dividing_pays_from_the_break_even_on_and_not_below(engine: str, ranks: int, batch: int) -> None:
    """A tenth below it is slower divided, and a tenth above faster."""
    policy, kv, gpu = load_policy(engine), dc.KvCache(page_size=64), dc.load_gpu("h200")
    geo = _shared(ranks)
    even = break_even(policy, geo, kv, gpu, batch=batch)
    assert even.keys is not None
    for factor, pays in ((0.9, False), (1.1, True)):
        step = dc.Batch.uniform(batch, round(even.keys * factor))
        divided, whole = (dc.predict(policy.plan(g, step, kv, gpu)).known_s for g in (geo, undivided(geo)))
        assert (divided < whole) == pays


def test_no_break_even_where_nothing_is_gained() -> None:
    """A window would be such a layer; here the link is so slow that no context within reach pays."""
    slow = replace(dc.load_gpu("h200"), interconnect_bytes_per_s_per_direction=1e9)
    even = break_even(load_policy("bundled"), _shared(), dc.KvCache(page_size=64), slow, batch=MOST_BATCH)
    assert even.keys is None or even.keys > MOST_KEYS // 8
    assert MOST_KEYS == 1 << 24


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    """A file of measured times gives the same times."""
    with open(Path(dc.__file__).parent / "data" / "collectives_h200.json", encoding="utf-8") as file:
        data = json.load(file)
    target = tmp_path / "times.json"
    save_collectives(target, data)
    again, shipped = load_collectives(target), shipped_collectives()
    assert again.points == shipped.points
    assert json.loads(target.read_text()) == data


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "x"}, "schema"),
        ({"gpu": {"name": "a"}}, "link_bytes_per_s"),
        ({"rows": []}, "rows"),
        ({"rows": [{"kind": "all_gather", "ranks": 2, "buffer_bytes": 8, "seconds": 1e-5}]}, "no time of"),
        ({"rows": [{"kind": "broadcast", "ranks": 2, "buffer_bytes": 8, "seconds": 1e-5}]}, "none of"),
        ({"rows": [{"kind": "all_gather", "ranks": 2, "buffer_bytes": -8, "seconds": 1e-5}]}, "positive"),
        ({"rows": [{"kind": "all_gather", "ranks": 1, "buffer_bytes": 8, "seconds": 1e-5}]}, "ranks"),
        ({"rows": [3]}, "ranks"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(change: dict[str, Any], says: str) -> None:
    """Each is an InputError."""
    good = {
        "schema": "decodecalc/collectives/1",
        "gpu": {"name": "x", "link_bytes_per_s": 1e9},
        "rows": [{"kind": kind, "ranks": 2, "buffer_bytes": 8, "seconds": 1e-5} for kind in COLLECTIVES],
    }
    assert parse_collectives(good, "good").ranks == 2
    with pytest.raises(dc.InputError, match=says):
        parse_collectives({**good, **change}, "bad")

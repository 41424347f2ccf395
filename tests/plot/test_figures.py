"""What every figure of `decodecalc plot` draws is what plans, analysis and predictions say, worked out one by one.

Expected values come from single plans, from counts done here, or from the scalar doors: never from a figure's rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decodecalc as dc
from decodecalc.cost.prediction import schedule_of
from decodecalc.plot import FIGURES
from decodecalc.plot.gpus import DEFAULT_GPUS

GPU, SMS = "h200", 132
LAYER = dc.load_model("llama3-8b").shard(1).layer_groups[0].geometry  # 32 query heads, 8 KV heads, width 128
TWO_ENGINES = ("--engine", "vllm-triton,sglang-triton")
Drawn = Callable[..., Any]


def lines(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """Points of every line that has a label."""
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in zip(*line.get_data())]
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


def of(engine: str, labels: Any, kind: str = "") -> str:
    """The one label of that engine and kind."""
    (found,) = [x for x in labels if x.startswith(f"{engine} ") and x.endswith(kind)]
    return str(found)


def panel(axes: Any, engine: str, part: int = 0) -> Any:
    """The axes of that engine's panel, or those below them."""
    (at,) = [i for i, ax in enumerate(axes) if ax.get_title("left").startswith(engine)]
    return axes[at + part]


def plan(engine: str, batch: dc.Batch, **options: Any) -> dc.LaunchPlan:
    """One layer of llama3-8b."""
    return dc.plan(engine, LAYER, batch, gpu=GPU, **options)


def test_every_figure_is_tested_here() -> None:
    """A figure that is added to the tool without a test of what it draws is noticed."""
    tested = {name.removeprefix("test_").split("_")[0] for name in globals() if name.startswith("test_")}
    assert set(FIGURES) <= tested


@pytest.mark.parametrize("context", [257, 3000])  # at 257 keys most of the launched splits have none
@pytest.mark.parametrize("engine", ["vllm-triton", "sglang-triton"])
def test_occupancy_draws_the_share_of_sms_with_a_live_block(drawn: Drawn, engine: str, context: int) -> None:
    """In per cent: min(live blocks, SMs) over SMs at each batch size; without splits a block for each request and KV
    head."""
    axes = drawn("occupancy", "--model", "llama3-8b", "--gpu", GPU, "--context", str(context), *TWO_ENGINES)
    found = lines(panel(axes, engine))
    points = found["with splits"]
    assert [b for b, _ in points] == [*range(1, 33), *range(34, 133, 2), 136, 160, 192, 256]
    for b, percent in points:
        live = plan(engine, dc.Batch.uniform(int(b), context)).stage1.live_blocks
        assert percent == pytest.approx(100 * min(live, SMS) / SMS)
    unsplit = found["without splits"]
    assert [y for _, y in unsplit] == pytest.approx([100 * min(8 * b, SMS) / SMS for b, _ in unsplit])


@pytest.mark.parametrize("engine", ["vllm-triton", "sglang-triton"])
def test_occupancy_draws_the_four_split_counts(drawn: Drawn, engine: str) -> None:
    """Below the coverage: what the rule asks for, the grid has, and has keys, with S*, at each batch size."""
    axes = drawn("occupancy", "--model", "llama3-8b", "--gpu", GPU, "--context", "3000", *TWO_ENGINES)
    counts = lines(panel(axes, engine, part=1))
    for b, _ in counts["live"]:
        p = plan(engine, dc.Batch.uniform(int(b), 3000))
        expected = {"requested": p.splits.requested[0], "launched": p.splits.launched, "live": p.splits.live[0]}
        assert {name: dict(counts[name])[b] for name in expected} == expected
        assert dict(counts[next(name for name in counts if name.startswith("S*"))])[b] == -(-SMS // (8 * int(b)))


def test_occupancy_against_splits_draws_the_reference_rule(drawn: Drawn) -> None:
    """At S splits of 8 KV heads, 8 blocks for every split that has a tile, with S* at ceil(132 / 8)."""
    (axes,) = drawn("occupancy", "--against", "splits", "--model", "llama3-8b", "--gpu", GPU, "--context", "4096")
    (points,) = lines(axes).values()
    for splits, percent in points:
        live = max(plan("flash-decoding", dc.Batch([4096]), num_splits=int(splits)).splits.live)
        assert percent == pytest.approx(100 * min(8 * live, SMS) / SMS)
    (star,) = {float(line.get_xdata()[0]) for line in axes.get_lines() if str(line.get_label()).startswith("_")}
    assert star == -(-SMS // 8)


@pytest.mark.parametrize("engine", ["vllm-triton", "sglang-triton"])
def test_splits_draws_live_and_requested_counts(drawn: Drawn, engine: str) -> None:
    """At each context, the live splits of a request and, where they differ anywhere, those that the rule asked for."""
    found = lines(panel(drawn("splits", "--model", "llama3-8b", "--gpu", GPU, *TWO_ENGINES), engine))
    live = found["live"]
    assert (live[0][0], live[-1][0]) == (64, 131072)
    plans = [plan(engine, dc.Batch([int(context)])).splits for context, _ in live]
    assert [y for _, y in live] == [p.live[0] for p in plans]
    assert [y for _, y in found["requested"]] == [p.requested[0] for p in plans]
    assert [y for _, y in found["launched"]] == [p.launched for p in plans]
    (star,) = {y for name, points in found.items() if name.startswith("S*") for _, y in points}
    assert star == -(-SMS // 8)


def boxes(axes: Any) -> list[tuple[float, float, float, float]]:
    """(x0, x1, y0, y1) of every rectangle of the collections."""
    found = []
    for shades in axes.collections:
        for path in shades.get_paths():
            (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.append((x0, x1, y0, y1))
    return found


def test_segments_draws_the_key_ranges_of_every_split(drawn: Drawn) -> None:
    """Each live split is a box from its first key to its last; beside it stands how many splits have keys and how many
    have none."""
    lens = [257, 2560, 8192]
    keys, counts = drawn("segments", "--model", "llama3-8b", "--gpu", GPU, "--seq-lens", "257,2560,8192")
    p = plan("vllm-triton", dc.Batch(lens)).splits
    lanes: dict[int, list[tuple[float, float]]] = {0: [], 1: [], 2: []}
    for x0, x1, y0, y1 in boxes(keys):
        lanes[round((y0 + y1) / 2)].append((x0, x1))
    for request in range(len(lens)):
        assert np.array(sorted(lanes[request])) == pytest.approx(np.array(p.keys[request], dtype=float))
        ends = sorted(bar.get_x() + bar.get_width() for bar in counts.patches
                      if round(bar.get_y() + bar.get_height() / 2) == request)  # fmt: skip
        assert ends == sorted({p.live[request], p.launched})


def test_segments_marks_splits_outside_the_window(drawn: Drawn) -> None:
    """A window leaves the last keys of a request inside it: the boxes of the other splits are hatched, and counted."""
    argv = ("--q-heads", "32", "--kv-heads", "8", "--head-dim", "128", "--window", "1024", "--context", "8192")
    keys, counts = drawn("segments", *argv, "--gpu", GPU)
    geo = dc.Geometry(32, 8, 128, window=1024)
    p = dc.plan("vllm-triton", geo, dc.Batch([8192]), gpu=GPU).splits
    (hatched,) = [found for found in keys.collections if found.get_hatch()]
    assert len(hatched.get_paths()) == p.live[0] - p.working[0] > 0
    assert all(path.vertices[:, 0].max() <= 8192 - 1024 + 1 for path in hatched.get_paths())
    (bar,) = [bar for bar in counts.patches if bar.get_hatch()]
    assert bar.get_width() == p.live[0] - p.working[0]


def test_waves_draws_each_block_of_the_schedule(drawn: Drawn) -> None:
    """One box for every live block, on its SM, from its start to its end; the share of time that is used is their area
    over that of all slots of all SMs."""
    (axes,) = drawn("waves", "--model", "llama3-8b", "--gpu", GPU, "--seq-lens", "512,2048,16384")
    p = plan("vllm-triton", dc.Batch([512, 2048, 16384]))
    slots = list(schedule_of(p))
    assert len(slots) == p.live_blocks
    deep = max(s.slot for s in slots) // SMS + 1
    expected = sorted((s.slot % SMS + s.slot // SMS / deep, s.start_s * 1e6, s.end_s * 1e6) for s in slots)
    found = sorted((y0, x0, x1) for x0, x1, y0, _ in boxes(axes))
    assert np.array(found) == pytest.approx(np.array(expected))
    assert all(y1 - y0 == pytest.approx(1 / deep) for *_, y0, y1 in boxes(axes))
    area, end = sum(x1 - x0 for _, x0, x1 in expected), max(x1 for *_, x1 in expected)
    assert f"{100 * area / (end * SMS * deep):.0f} % of the SMs' time is used" in axes.get_title("left").replace(
        "\n", " "
    )


def test_waves_ends_with_stage_1(drawn: Drawn) -> None:
    """The last box ends when the prediction's stage 1 does: its stream, latency, compute and tail."""
    (axes,) = drawn("waves", "--model", "llama3-8b", "--gpu", GPU, "--batch", "4", "--context", "8192")
    last = max(path.vertices[:, 0].max() for shades in axes.collections for path in shades.get_paths())
    terms = dc.predict(plan("vllm-triton", dc.Batch.uniform(4, 8192))).terms
    within = sum(terms[name] for name in ("stream_s", "latency_s", "compute_s", "tail_s"))
    assert last == pytest.approx(within * 1e6)


def test_roofline_draws_the_roof_and_the_layers_under_it(drawn: Drawn) -> None:
    """The roof is min(intensity x bandwidth, peak); a layer stands on it, and hollow at its predicted FLOP/s."""
    (axes,) = drawn("roofline", "--model", "llama3-8b", "--gpu", GPU, "--context", "8192")
    found = lines(axes)
    p = plan("vllm-triton", dc.Batch([8192]))
    r = dc.roofline(p)
    for x, y in found["h200-sxm roof"]:
        assert y * 1e12 == pytest.approx(min(x * r.hbm_bytes_per_s, r.peak_flop_per_s))
    at = r.intensity_flop_per_byte
    assert found["GQA"] == [pytest.approx((at, at * r.hbm_bytes_per_s / 1e12))]
    assert f"GQA: {at:.3g}" in [text.get_text() for text in axes.texts]
    flop = 2 * 2 * LAYER.q_heads * LAYER.head_dim * 8192  # two products, a multiplication and an addition each
    hollow = [line.get_data() for line in axes.get_lines() if line.get_fillstyle() == "none"]
    at_ours = [y for x, y in hollow if x[0] == pytest.approx(r.intensity_flop_per_byte)]
    expected = flop / dc.predict(p).total_s / 1e12
    assert any(y[0] == pytest.approx(expected) for y in at_ours)
    intensities = {label: points[0][0] for label, points in found.items()}
    shared = {"as MHA": 1, "as MQA": 32}
    assert {k: v for k, v in intensities.items() if k in shared} == pytest.approx(shared)


def test_roofline_draws_measured_points_of_a_report(drawn: Drawn, tmp_path: Path) -> None:
    """Crosses stand where the report's rows say."""
    rows = [{"engine": "bundled", "intensity_flop_per_byte": 4.0, "achieved_flop_per_s": 7.5e12}]
    report = tmp_path / "verify.json"
    report.write_text(json.dumps({"schema": "decodecalc/verify/1", "rows": rows}))
    (axes,) = drawn("roofline", "--model", "llama3-8b", "--gpu", GPU, "--measured", str(report))
    assert lines(axes)["measured"] == [pytest.approx((4.0, 7.5))]


@pytest.mark.parametrize("engine", ["vllm-triton", "sglang-triton"])
def test_merge_draws_partial_states_over_kv_bytes(drawn: Drawn, engine: str) -> None:
    """In per cent: states of every live split, written and read as fp32, over the bytes of keys and values."""
    (axes,) = drawn("merge", "--model", "llama3-8b", "--gpu", GPU, *TWO_ENGINES)
    found = lines(axes)
    points = found[of(engine, found, "of live splits")]
    assert (points[0][0], points[-1][0]) == (64, 131072)
    for context, percent in points:
        p = plan(engine, dc.Batch([int(context)]))
        states = LAYER.q_heads * p.splits.live[0] if p.is_split else 0
        kv_bytes = 2 * LAYER.kv_heads * LAYER.head_dim * 2 * context
        assert percent == pytest.approx(100 * 2 * states * p.state_values * 4 / kv_bytes)


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-8b"])
def test_latency_draws_the_bundled_kernels_time_at_each_split_count(drawn: Drawn, model: str) -> None:
    """The curve is `predict` of a bundled plan with that count, its star the fastest point, the dotted line S*."""
    axes, _ = drawn("latency", "--model", model, "--gpu", GPU, "--context", "8192", "--engine", "vllm-triton")
    geo = dc.load_model(model).shard(1).layer_groups[0].geometry
    batch = dc.Batch([8192])
    curve = dict(lines(axes)["predicted"])
    found = dc.choose(geo, batch, gpu=GPU, engines=["vllm-triton"])
    assert curve == pytest.approx({p.splits: p.total_s * 1e6 for p in found.curve})
    some = [s for s in curve if s in (2, 4, 8, 16)]
    for splits in some:
        best = dc.plan("bundled", geo, batch, gpu=GPU, num_splits=int(splits))
        assert curve[splits] <= dc.predict(best).total_s * 1e6 * 1.01
    (star,) = [line.get_data() for line in axes.get_lines() if str(line.get_label()).startswith("S_opt")]
    assert star[1][0] == pytest.approx(curve[star[0][0]], rel=0.01)
    assert star[1][0] <= min(curve.values()) * 1.03
    dotted = [line.get_xdata()[0] for line in axes.get_lines() if str(line.get_label()).startswith("S* ")]
    assert dotted == [-(-SMS // geo.kv_heads)]


def test_latency_places_each_engine_at_its_rules_count_on_our_kernel(drawn: Drawn) -> None:
    """An engine's point: its live splits, and the time of the bundled kernel under its rule. Below, its line has the
    same count, and says how many times the best one."""
    axes, strip = drawn("latency", "--model", "llama3-8b", "--gpu", GPU, "--context", "8192", *TWO_ENGINES)
    (star,) = [line.get_data() for line in axes.get_lines() if str(line.get_label()).startswith("S_opt")]
    points = lines(axes)["engines' counts"]
    names = [text.get_text() for text in strip.get_yticklabels()]
    factors = {round(text.xy[1]): text.get_text() for text in strip.texts}
    for engine in ("vllm-triton", "sglang-triton"):
        p = plan(engine, dc.Batch([8192]))
        ours = dc.predict(p, kernel="bundled").total_s
        (y,) = [y for y, name in enumerate(names) if name.startswith(engine)]
        assert points[y] == pytest.approx((p.splits.live[0], ours * 1e6))
        assert lines(strip)["engines' counts"][y] == (p.splits.live[0], y)
        assert factors[y] == f"{ours * 1e6 / star[1][0]:.2f}×"


def test_latency_draws_measured_times_of_this_layer_only(drawn: Drawn, tmp_path: Path) -> None:
    """Crosses are the report's times for the same heads, batch and context."""
    same = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "batch": 1, "context": 8192, "split_times_s": [[4, 2e-5]]}
    rows = [
        same,
        {**same, "batch": 2, "split_times_s": [[8, 3e-5]]},
        {**same, "kv_heads": 4, "split_times_s": [[9, 1]]},
    ]
    report = tmp_path / "verify.json"
    report.write_text(json.dumps({"schema": "decodecalc/verify/1", "rows": rows}))
    axes, _ = drawn(
        "latency", "--model", "llama3-8b", "--gpu", GPU, "--context", "8k", *TWO_ENGINES, "--measured", str(report)
    )
    assert lines(axes)["measured"] == [pytest.approx((4.0, 20.0))]


def test_regret_draws_the_rule_over_the_best_on_the_bundled_kernel(drawn: Drawn) -> None:
    """Each cell: the bundled kernel's time under the engine's rule over its time at the count that `choose` finds; the
    engine's own kernel has no part in it."""
    sizes, contexts = (1, 8), (1024, 8192, 32768)
    (axes,) = drawn("regret", "--model", "llama3-8b", "--gpu", GPU, "--batch", "1,8", "--context", "1k,8k,32k")
    cells = np.asarray(axes.images[0].get_array())
    texts = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text() for t in axes.texts}
    assert cells.shape == (len(sizes), len(contexts))
    differs = False
    for y, b in enumerate(sizes):
        for x, context in enumerate(contexts):
            batch = dc.Batch.uniform(b, context)
            p = plan("vllm-triton", batch)
            best = dc.choose(LAYER, batch, gpu=GPU, engines=["vllm-triton"]).total_s
            expected = dc.predict(p, kernel="bundled").total_s / best
            assert cells[y, x] == pytest.approx(expected)
            assert texts[x, y] == f"{expected:.2f}"
            differs |= abs(dc.predict(p).total_s / best - expected) > 0.01
    assert differs, "the engine's own kernel would give other numbers, so that a mix-up shows"
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1k", "8k", "32k"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["1", "8"]


@pytest.mark.parametrize("model", ["llama3-8b", "gemma3-27b"])
def test_gpus_draws_the_time_of_all_layers(drawn: Drawn, model: str) -> None:
    """A bar for each GPU: the time of one layer of every group times how many there are, with the interval's ends, the
    roofline as a tick, and a hatch where the kernel's numbers are another GPU's."""
    (axes,) = drawn("gpus", "--model", model, "--context", "8k")
    groups = dc.load_model(model).shard(1).layer_groups
    bars = {t.get_text(): bar for t, bar in zip(axes.get_yticklabels(), axes.patches)}
    ticks = {round(line.get_ydata().mean()): float(line.get_xdata()[0]) for line in axes.get_lines()
             if len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]}  # fmt: skip
    ends = [segment for found in axes.collections for segment in found.get_segments()]
    assert len(bars) == len(DEFAULT_GPUS)
    for y, name in enumerate(DEFAULT_GPUS):
        gpu = dc.load_gpu(name)
        each = [
            (g.layers, dc.predict(dc.plan("bundled", g.geometry, g.seen_batch(dc.Batch([8192])), gpu=gpu)))
            for g in groups
        ]
        total, low, high = (1e6 * sum(n * getattr(p, what) for n, p in each) for what in ("total_s", "low_s", "high_s"))
        bar = bars[gpu.name]
        assert bar.get_width() == pytest.approx(total)
        assert ticks[y] == pytest.approx(1e6 * sum(n * (p.roofline_s or 0) for n, p in each))
        assert any(sorted(segment[:, 0]) == pytest.approx([low, high]) for segment in ends)
        assert bool(bar.get_hatch()) == any(p.numbers == "extrapolated" for _, p in each)


def test_gpus_weighs_layers_so_that_a_mix_up_shows() -> None:
    """The model of the test above has unlike layers in unlike numbers."""
    counts = [group.layers for group in dc.load_model("gemma3-27b").layer_groups]
    assert len(counts) == 2
    assert counts[0] > 2 * counts[1]

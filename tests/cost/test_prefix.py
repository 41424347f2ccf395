"""Shared prefixes: the parts of a step, their price, the break-even, and what servers do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, geometries

import decodecalc as dc
from benchmarks.shared_prefix import judged, kinds, random_steps, repredicted
from decodecalc.analysis.traffic import traffic
from decodecalc.cli.main import cli
from decodecalc.cost.load import load_calibration
from decodecalc.cost.prefix import prefix_break_even, share_prefix
from decodecalc.cost.shared_pages import SHARED_L2, walks_of
from decodecalc.engines.registry import load_policy
from decodecalc.gpus import load_gpu
from decodecalc.keyshare import KeyShare
from decodecalc.prefix import PREFIX, SUFFIX, WHOLE, parts
from decodecalc.servers.prefix import on_by_default, vllm_cascade

LLAMA, KV = dc.Geometry(32, 8, 128), dc.KvCache()
RECORDED = Path(__file__).parents[1] / "data" / "servers" / "vllm_cascade.json"


@given(geometries(), batches(), st.booleans())
def test_no_shared_keys_is_today(geo: dc.Geometry, batch: dc.Batch, folds: bool) -> None:
    """With 0 keys the step is one part, the very one that was given."""
    (part,) = parts(geo, batch, 0, folds)
    assert (part.name, part.geometry, part.batch) == (WHOLE, geo, batch)


@given(geometries(), batches(max_q_len=3), st.booleans(), st.data())
def test_the_parts_hold_every_key_and_query_once(
    geo: dc.Geometry, batch: dc.Batch, folds: bool, data: st.DataObject
) -> None:
    """Prefix and own keys add up to each request, and the prefix has the query rows of all requests."""
    least = min(n - q for n, q in zip(batch.seq_lens, batch.q_lens))
    if least < 1 or geo.q_heads * batch.query_tokens > 1 << 16:
        return
    keys = data.draw(st.integers(1, least))
    prefix, suffix = parts(geo, batch, keys, folds)
    assert (prefix.name, suffix.name) == (PREFIX, SUFFIX)
    assert tuple(n + keys for n in suffix.batch.seq_lens) == batch.seq_lens
    assert suffix.batch.q_lens == batch.q_lens
    rows = prefix.geometry.q_heads * prefix.batch.query_tokens
    assert rows == geo.q_heads * batch.query_tokens
    assert (prefix.batch.seq_lens, prefix.geometry.kv_heads) == ((keys,), geo.kv_heads)


def test_bytes_saved_by_hand() -> None:
    """16 requests share 4096 of 5120 keys: 15 reads of the prefix are saved, less the side kernels' bytes."""
    found = share_prefix(load_policy("bundled"), LLAMA, dc.Batch.uniform(16, 5120), 4096, KV, load_gpu("h200"))
    key = 8 * (128 + 128) * 2
    read = sum(traffic(plan).kv_read_bytes for plan, _ in (found.prefix, found.suffix))
    assert traffic(found.whole[0]).kv_read_bytes - read == 15 * 4096 * key
    beside = sum(kernel.moved_bytes for kernel in found.kernels)
    assert found.saved_bytes == 15 * 4096 * key - beside
    assert beside == 2 * 16 * 32 * 128 * 2 + 3 * 16 * 32 * 128 * 2 + 2 * 16 * 32 * 4
    assert found.launches == len(found.prefix[0].kernels) + len(found.suffix[0].kernels) + 2


def test_launches_and_merge_are_priced() -> None:
    """A step whose bytes hardly change costs what its launches cost: sharing then does not pay."""
    policy, gpu = load_policy("flash-attention-3"), load_gpu("h200")
    found = share_prefix(policy, LLAMA, dc.Batch.uniform(2, 1024), 512, KV, gpu)
    assert found.saved_bytes > 0
    assert found.saved_s is not None
    assert found.saved_s < 0
    assert found.verdict == "does not pay"
    assert found.total_s == pytest.approx((found.prefix_s or 0) + found.suffix[1].known_s + found.kernels_s)
    assert share_prefix(policy, LLAMA, dc.Batch.uniform(64, 8192), 7168, KV, gpu).verdict == "pays"


@pytest.mark.parametrize(("engine", "requests"), [("bundled", 16), ("flash-attention-3", 8), ("flashinfer", 64)])
def test_sharing_pays_from_the_break_even_on(engine: str, requests: int) -> None:
    """A tenth below the least prefix it is slower apart, and a tenth above faster."""
    policy, gpu, own = load_policy(engine), load_gpu("h200"), dc.Batch.uniform(requests, 1024)
    least = prefix_break_even(policy, LLAMA, own, KV, gpu)
    assert least is not None
    for factor, pays in ((0.9, False), (1.1, True)):
        keys = round(least * factor)
        saved = share_prefix(policy, LLAMA, dc.Batch.uniform(requests, 1024 + keys), keys, KV, gpu).saved_s
        assert saved is not None
        assert (saved > 0) == pays


def test_one_request_never_gains() -> None:
    """There is nobody to share with."""
    assert prefix_break_even(load_policy("bundled"), LLAMA, dc.Batch([1024]), KV, load_gpu("h200")) is None


def test_vllms_rule_is_its_own_code() -> None:
    """120 random steps, decided as `use_cascade_attention` of vLLM 0.31.0 decided them."""
    from dataclasses import replace

    rows = json.loads(RECORDED.read_text(encoding="utf-8"))["rows"]
    assert len({row["uses"] for row in rows}) == 2
    for row in rows:
        gpu = replace(load_gpu("h100-sxm"), sm_count=row["sms"])
        geo = dc.Geometry(row["q_heads"], row["kv_heads"], 128, window=64 if row["window"] else None)
        step = dc.Batch.uniform(row["requests"], row["keys"] + 512, row["q_len"])
        assert vllm_cascade(geo, step, row["keys"], gpu)[0] == row["uses"], row


def test_releases() -> None:
    """On by default up to 0.17, on demand up to 0.31, gone from 0.32 on; never with keys divided over ranks."""
    assert [on_by_default(v) for v in ("0.11.2", "0.17.1", "0.18.0", "0.31.0", "0.32.0")] == [
        True, True, False, False, None,
    ]  # fmt: skip
    divided = dc.Geometry(32, 4, 128, share=KeyShare(2))
    assert not vllm_cascade(divided, dc.Batch.uniform(64, 9000), 8192, load_gpu("h200"))[0]


BASE = ["--model", "llama3-8b", "--gpu", "h200", "--batch", "16", "--context", "5k"]


def test_predict_shows_a_step_both_ways() -> None:
    """Times, launches, bytes, break-even, the verdict in words and the servers' rules."""
    words = ["predict", *BASE, "--shared-prefix", "4k", "--engine", "bundled"]
    (row,) = json.loads(CliRunner().invoke(cli, [*words, "--format", "json"]).stdout)["rows"]
    assert row["shared_keys"] == 4096
    assert row["shared_s"] == pytest.approx(row["prefix_s"] + row["suffix_s"] + row["side_kernels_s"])
    assert row["break_even_keys"] < 4096
    assert row["verdict"] == "pays"
    text = CliRunner().invoke(cli, words).stdout
    assert "attending 4096 shared keys separately pays" in text
    assert "cascade attention was removed" in text


def test_grid_and_explain_show_both_launches() -> None:
    """One row and one story for each part, and none with 0 keys."""
    words = [*BASE, "--engine", "bundled"]
    rows = json.loads(CliRunner().invoke(cli, ["grid", *words, "--shared-prefix", "4k", "--format", "json"]).stdout)
    seen = {(r["part"], r["batch"], r["context"]) for r in rows["rows"]}
    assert seen == {("prefix", 1, 4096), ("suffix", 16, 1024)}
    story = CliRunner().invoke(cli, ["explain", *words, "--shared-prefix", "4k"]).stdout
    assert "prefix of 4096 shared keys" in story
    assert "suffix of 4096 shared keys" in story
    for command in ("grid", "predict", "explain"):
        plain = CliRunner().invoke(cli, [command, *words]).stdout
        assert CliRunner().invoke(cli, [command, *words, "--shared-prefix", "0"]).stdout == plain


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shared-prefix", "5k"], "shortest request"),
        (["--shared-prefix", "x"], "whole number"),
        (["--shared-prefix", "4k", "--kernel", "both"], "one kernel"),
        (["--shared-prefix", "4k", "--tp", "16", "--dcp", "2"], "--dcp"),
        (["--shared-prefix", "4k", "--window", "9", "--q-heads", "8"], "--model"),
    ],
)
def test_bad_input(words: list[str], says: str) -> None:
    """One sentence each."""
    result = CliRunner().invoke(cli, ["predict", *BASE, "--engine", "bundled", *words])
    assert isinstance(result.exception, dc.InputError)
    assert says in str(result.exception)


@pytest.mark.parametrize("prefix", [4096, 32768])
def test_shared_pages_come_from_the_l2(prefix: int) -> None:
    """The memory delivers a page once to requests that read it side by side, whether or not the prefix fits the L2."""
    policy, gpu = load_policy("bundled"), load_gpu("h200")
    found = share_prefix(policy, LLAMA, dc.Batch.uniform(32, prefix + 1024), prefix, KV, gpu)
    assert found.whole_s is not None
    rates = {name: p.number for name, p in load_calibration(gpu=gpu).parameters.items()}
    asked, key = traffic(found.whole[0]).kv_read_bytes, KV.bytes_per_key(LLAMA)
    once = asked - 31 * prefix * key
    fastest = max(once / rates["hbm_sustained_bytes_per_s"], asked / (SHARED_L2 * rates["l2_bytes_per_s"]))
    assert fastest < found.whole_s < 0.75 * found.whole[1].known_s


def test_a_list_of_work_finds_only_what_the_l2_keeps() -> None:
    """Where blocks take requests in turn, those that run together are at different keys of a prefix."""
    policy, gpu = load_policy("flashinfer"), load_gpu("h200")
    small, large = (
        share_prefix(policy, LLAMA, dc.Batch.uniform(8, keys + 1024), keys, KV, gpu) for keys in (8192, 65536)
    )
    assert small.whole_s is not None
    assert small.whole_s < 0.9 * small.whole[1].known_s
    assert large.whole_s == large.whole[1].total_s


@given(st.integers(1, 40), st.integers(1, 20_000), st.integers(1, 5_000), st.sampled_from([0.5, 1.0, 8.0]))
def test_sharing_pages_never_costs(requests: int, prefix: int, own: int, groups: float) -> None:
    """The whole step over shared pages takes at most what it takes without, and for one request exactly that."""
    geo = dc.Geometry(int(8 * groups), 8 if groups >= 1 else 4, 128)
    found = share_prefix(
        load_policy("bundled"), geo, dc.Batch.uniform(requests, prefix + own), prefix, KV, load_gpu("h200")
    )
    whole = found.whole[1].known_s
    assert found.whole_s is not None
    assert 0 < found.whole_s <= whole * (1 + 1e-9)
    if requests == 1:
        assert found.whole_s == pytest.approx(whole)


@given(st.integers(2, 30), st.integers(64, 9_000), st.integers(1, 3_000), st.booleans())
def test_walks_hold_every_key_once(requests: int, prefix: int, own: int, by_request: bool) -> None:
    """Over the blocks of a KV head the shared and the own keys add up to those of all requests."""
    batch = dc.Batch([prefix + own + r for r in range(requests)])
    plan = dc.plan("bundled", LLAMA, batch, kv=KV, gpu="h200")
    walks = walks_of(plan, prefix, by_request)
    assert (walks.shared * walks.blocks).sum() == LLAMA.kv_heads * requests * prefix
    assert (walks.own * walks.blocks).sum() == LLAMA.kv_heads * (sum(batch.seq_lens) - requests * prefix)
    if by_request:
        assert (np.diff(walks.request) >= 0).all()


def test_steps_of_the_benchmark_are_drawn_from_a_seed() -> None:
    """The same seed gives the same steps, another one others; every kind of layer occurs, and half are ragged."""
    steps = random_steps(3, 60)
    assert steps == random_steps(3, 60)
    assert steps != random_steps(4, 60)
    assert {step.name for step in steps} == set(kinds())
    assert 15 <= sum(len(set(step.own)) > 1 for step in steps) <= 45
    for step in steps:
        assert step.prefix % step.page == 0
        assert step.batch.size == len(step.own)


@pytest.mark.parametrize("name", ["shared-prefix"])
def test_recorded_decisions_stay_right(name: str) -> None:
    """Of the steps that an H200 ran both ways, today's model decides at least 95 % as the measurement does."""
    gpu = load_gpu("h200")
    data = json.loads((Path(__file__).parents[2] / "reports" / "h200" / f"{name}.json").read_text(encoding="utf-8"))
    rows = [repredicted(row, gpu, load_calibration(gpu=gpu)) for row in data["rows"]]
    assert all(row["correct"] for row in rows)
    assert sum(row["decision"] for row in rows) >= 0.95 * len(rows)
    errors = [abs(row["predicted"]["whole"] / row["measured"]["whole"] - 1) for row in rows]
    assert np.median(errors) < 0.08


def test_a_decision_is_the_sign_of_the_gain() -> None:
    """Right where prediction and measurement choose the same way, or where the measurement hardly tells."""
    for whole, shared, said, right, close in (
        (10.0, 8.0, (9.0, 8.5), True, False),
        (10.0, 8.0, (8.0, 8.5), False, False),
        (10.0, 9.8, (8.0, 8.5), True, True),
        (10.0, 12.0, (8.0, 8.5), True, False),
    ):
        row = {"measured": {"whole": whole, "shared": shared}, "predicted": dict(zip(("whole", "shared"), said))}
        judged(row)
        assert (row["decision"], row["close"]) == (right, close)

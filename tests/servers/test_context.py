"""Decode context parallelism in servers: what each release takes, and what a serve command then runs."""

from __future__ import annotations

from itertools import pairwise

import pytest

import decodecalc as dc
from decodecalc.keyshare import A2A, AG_RS, KeyShare
from decodecalc.servers import question_of, resolve
from decodecalc.servers.commands import read_command
from decodecalc.servers.context import sglang_backends, vllm_backends, vllm_selects
from decodecalc.serving import serve

DEEPSEEK = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8"


def _group(model: str, tp: int, dcp: int) -> dc.LayerGroup:
    return dc.load_model(model).shard(tp, dcp).layer_groups[0]


def test_backends_come_and_never_go() -> None:
    """Each release takes what the ones before it took; the first ones took latent layers only."""
    releases = ["0.10.2", "0.11.0", "0.11.2", "0.24.0", "0.25.1", "0.26.0", "0.28.0", "0.29.0", "0.33.0"]
    found = [set(vllm_backends(release)) for release in releases]
    assert all(a <= b for a, b in pairwise(found))
    assert "FLASH_ATTN" not in found[1]
    assert "FLASH_ATTN" in found[2]
    assert not any("TRITON_ATTN" in names for names in found)
    assert (vllm_selects("0.28.0"), vllm_selects("0.29.0")) == (False, True)
    assert (sglang_backends("0.5.14"), "triton" in sglang_backends("0.5.15")) == ((), True)


def test_a_question_names_the_ranks_own_heads() -> None:
    """Servers choose by the heads that a rank has before it gathers those of its group."""
    question = question_of("vllm", _group("deepseek-v3", 8, 8), dc.load_gpu("h200"))
    assert (question.layer.q_heads, question.layer.context_ranks) == (16, 8)


def test_vllm_leaves_out_what_cannot_merge_from_0_29_on() -> None:
    """The same backend is passed over by a newer release and stops an older one at start-up."""
    group, gpu = _group("llama3-70b", 16, 2), dc.load_gpu("h200")
    question = question_of("vllm", group, gpu, backend="TRITON_ATTN")
    newer, older = resolve("vllm", "0.33.0", question), resolve("vllm", "0.28.0", question)
    assert newer.refused is not None
    assert older.refused is not None
    assert (newer.refused.code, older.refused.code) == ("backend_not_valid", "dcp_needs_lse")
    assert "DCP not supported" in str(newer.refused)
    chosen = resolve("vllm", "0.33.0", question_of("vllm", group, gpu))
    assert chosen.refused is None
    assert chosen.backend in vllm_backends("0.33.0")


def test_sglang_before_the_flag_does_not_start() -> None:
    """0.5.14 has no --dcp-size; the newest has, and says so of a backend without code for it."""
    question = question_of("sglang", _group("deepseek-v3", 8, 8), dc.load_gpu("h200"), tp_size=8)
    refused = resolve("sglang", "0.5.14", question).refused
    assert refused is not None
    assert refused.code == "unknown_flag"
    newest = resolve("sglang", None, question)
    assert newest.refused is None
    assert any("has no code that divides" in note for note in newest.notes) == (
        newest.backend not in sglang_backends("0.5.23")
    )


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (f"{DEEPSEEK} -dcp 8", KeyShare(8)),
        (f"{DEEPSEEK} --decode-context-parallel-size=4 --dcp-comm-backend a2a", KeyShare(4, exchange=A2A)),
        (f"{DEEPSEEK} -dcp 2 --cp-kv-cache-interleave-size 64", KeyShare(2, 64)),
        (f"{DEEPSEEK} -dcp 2 --dcp-kv-cache-interleave-size 16 --dcp-q-replicate", KeyShare(2, 16, AG_RS, True)),
        (
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dcp-size 8",
            KeyShare(8, exchange=A2A),
        ),
        (
            "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --decode-context-parallel-size 2 "
            "--dcp-comm-backend fi_a2a",
            KeyShare(2, exchange=A2A),
        ),
        (DEEPSEEK, None),
    ],
)
def test_serve_divides_the_keys_as_the_command_says(text: str, share: KeyShare | None) -> None:
    """Ranks, runs and exchange reach the launch, the cache and the time."""
    found = serve(read_command(text), gpu=dc.load_gpu("h200"), context=65536, batches=[1], advise=False)
    (launch,) = found.loads[0].launches
    assert launch.plan.geometry.share == share
    assert launch.plan.batch.max_seq_len == (65536 if share is None else share.local(65536))
    assert (launch.layer.terms["exchange_s"] > 0) == (share is not None)
    assert found.cache.context_ranks == (1 if share is None else share.ranks)
    assert any("exchange between" in note for note in found.notes) == (share is not None)


def test_advice_names_the_time_too() -> None:
    """Ranks that hold the same latent are told what dividing the keys does to capacity and to attention."""
    found = serve(read_command(DEEPSEEK), gpu=dc.load_gpu("h200"), context=65536)
    (advice,) = (a for a in found.advice if "context-parallel" in a.flag)
    assert advice.flag == "--decode-context-parallel-size 8"
    assert "fits 8 times the tokens" in advice.why
    assert "instead of" in advice.why


def test_a_degree_that_does_not_fit_is_refused() -> None:
    """Llama's 8 KV heads on 8 ranks are held once each."""
    with pytest.raises(dc.ShardingError, match="no two ranks"):
        serve(read_command("vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 8 -dcp 2"), gpu=dc.load_gpu("h200"))

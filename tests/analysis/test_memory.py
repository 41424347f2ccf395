"""The cache's bytes, against what servers printed in public logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.analysis.memory import cache_size, over_capacity
from decodecalc.errors import InputError

GIB = 1 << 30
# (address, model, TP, cache type, available GiB as the log states them, tokens as the log states them). Where a log
# prints blocks, the tokens are blocks of 16.
LOGS = (
    ("https://github.com/vllm-project/vllm/issues/33263", "qwen3-1.7b", 1, "bf16", 18.78, 175_856),
    ("https://github.com/vllm-project/vllm/issues/21348", "qwen3-235b-a22b", 4, "bf16", 8.11, 178_880),
    ("https://github.com/vllm-project/vllm/issues/22177", "qwen3-30b-a3b", 8, "bf16", 12.22, 534_064),
    ("https://github.com/vllm-project/vllm/issues/34076", "qwen3-30b-a3b", 1, "bf16", 3.18, 34_736),
    ("https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/550", "llama2-7b", 1, "fp16", 56.18,
     7191 * 16),
)  # fmt: skip


@pytest.mark.parametrize(("url", "model", "tp", "dtype", "available", "printed"), LOGS, ids=lambda v: str(v)[-12:])
def test_tokens_are_those_that_servers_print(url, model, tp, dtype, available, printed):
    """The tokens of the cache are within 2 % of the start-up log's, from the memory that the same log states."""
    size = cache_size(dc.load_model(model), dc.KvCache(dtype=dtype), tp=tp)
    assert size.tokens(available * GIB) == pytest.approx(printed, rel=0.02)


def test_memory_for_one_long_request_is_what_a_server_asks_for():
    """A server that asked for 24.0 GiB for 262144 tokens of Qwen3-Coder-30B counted as we do."""
    size = cache_size(dc.load_model("qwen3-30b-a3b"), dc.KvCache())
    assert size.sequence_bytes(262_144) == 24 * GIB


def test_ranks_beyond_the_kv_heads_hold_copies():
    """Eight ranks of four KV heads keep as much each as four ranks do, and say so."""
    model = dc.load_model("qwen3-30b-a3b")
    four, eight = (cache_size(model, dc.KvCache(), tp=tp) for tp in (4, 8))
    assert four.token_bytes == eight.token_bytes
    assert (four.groups[0].copies, eight.groups[0].copies) == (1, 2)


def test_a_latent_is_kept_whole_on_every_rank():
    """MLA's latent is not divided by tensor parallelism, but by context parallelism."""
    model = dc.load_model("deepseek-v3")
    one, eight = (cache_size(model, dc.KvCache(), tp=tp) for tp in (1, 8))
    assert one.token_bytes == eight.token_bytes == 61 * 576 * 2
    assert eight.groups[0].copies == 8
    assert cache_size(model, dc.KvCache(), tp=8, dcp=8).token_bytes == one.token_bytes / 8


def test_windows_stop_growing():
    """A long sequence of Gemma 3 takes the windows once and the full layers for every token."""
    size = cache_size(dc.load_model("gemma3-27b"), dc.KvCache())
    windows = 52 * 1024 * 8192
    assert size.sequence_bytes(131_072) == windows + 10 * 131_072 * 8192
    assert size.growing_token_bytes == 10 * 8192
    assert not size.keeps_every_token


def test_layers_that_share_a_cache_are_counted_once():
    """Layers that read the cache of earlier ones store nothing."""
    config = {
        "model_type": "gemma3n_text", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "hidden_size": 2048, "num_hidden_layers": 10, "sliding_window": 512, "num_kv_shared_layers": 5,
    }  # fmt: skip
    size = cache_size(dc.load_model(config), dc.KvCache())
    assert sum(group.layers for group in size.groups) == 10
    assert sum(group.stored_layers for group in size.groups) == 5


def test_states_are_counted_once_a_sequence():
    """A hybrid keeps its states beside the keys, whatever the length."""
    model = dc.load_model("qwen3-next-80b-a3b")
    size = cache_size(model, dc.KvCache())
    assert size.sequence_bytes(16) == model.states.bytes_per_sequence() + 16 * 12 * 2 * 2 * 256 * 2


@given(context=st.integers(1, 1 << 20), many=st.integers(1, 64), gib=st.floats(0.01, 500))
def test_what_fits_is_the_most_that_fits(context, many, gib):
    """One sequence more than fits takes more than there is; the longest context fits and a longer one does not."""
    size = cache_size(dc.load_model("gemma3-27b"), dc.KvCache())
    available = gib * GIB
    count = size.sequences(available, context)
    assert count * size.sequence_bytes(context) <= available < (count + 1) * size.sequence_bytes(context)
    longest = size.longest(available, many)
    if longest:
        assert size.sequence_bytes(longest) * many <= available
    if longest < 1 << 24:
        assert size.sequence_bytes(longest + 1) * many > available


def test_stages_are_bounded_by_the_layers():
    """More pipeline stages than layers are refused."""
    with pytest.raises(InputError, match="stages"):
        cache_size(dc.load_model("llama3-8b"), dc.KvCache(), pp=33)


def test_a_step_larger_than_the_memory_is_named():
    """1.1 TB of keys on an 80 GB card is said, and what fits is not."""
    model, gpu = dc.load_model("llama3.1-8b"), dc.load_gpu("h100-sxm")
    small, large = dc.Batch.uniform(1, 8192), dc.Batch.uniform(128, 65536)
    assert over_capacity(model, dc.KvCache(), gpu, [small]) is None
    assert "1.1 TB of KV on each rank" in over_capacity(model, dc.KvCache(), gpu, [small, large])
    assert over_capacity(model, dc.KvCache(), dc.Gpu("mine", 100), [large]) is None

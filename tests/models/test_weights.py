"""Bytes of weights and states, against sizes that models are known by and that servers print."""

from __future__ import annotations

import pytest

import decodecalc as dc
from decodecalc.models.weights import storage_of

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "params", "active"),
    [
        ("llama2-7b", 6.74e9, 6.6e9),
        ("llama3.1-8b", 8.03e9, 7.5e9),
        ("llama3.1-70b", 70.6e9, 69.5e9),
        ("llama3.1-405b", 405.9e9, 403.7e9),
        ("mixtral-8x7b", 46.7e9, 12.8e9),
        ("qwen3-30b-a3b", 30.5e9, 3.0e9),
        ("qwen3-235b-a22b", 235.1e9, 21.6e9),
        ("qwen3-next-80b-a3b", 79.7e9, 3.6e9),
        ("deepseek-v3", 671e9, 36.6e9),
        ("kimi-k2", 1026e9, 31.7e9),
        ("gpt-oss-120b", 116.8e9, 5.1e9),
        ("gemma2-27b", 27.2e9, 27.2e9),
        ("nemotron3-nano-30b-a3b", 31.6e9, 3.2e9),
    ],
)
def test_parameters_are_those_that_a_model_is_known_by(name, params, active):
    """The matrices of the configuration add up to the published parameter counts, in all and for one token."""
    weights = dc.load_model(name).weights
    assert weights.params == pytest.approx(params, rel=0.005)
    assert weights.active_params == pytest.approx(active, rel=0.02)


def test_bytes_are_those_that_servers_print():
    """A server's "model weights take" line: Llama 2 7B in 16 bits, and Llama 3.1 70B with INT8 linear layers."""
    assert dc.load_model("llama2-7b").weights.rank_bytes() / GIB == pytest.approx(12.55, rel=0.005)
    int8 = dc.load_model("llama3.1-70b").weights.rank_bytes(stored="int8")
    assert int8 / GIB == pytest.approx(67.72, rel=0.005)


def test_a_rank_holds_its_share_and_copies_what_cannot_be_divided():
    """Ranks beyond the KV heads hold a copy of a projection; ranks of a latent model copy what makes the latent."""
    weights = dc.load_model("qwen3-30b-a3b").weights
    whole, eighth = weights.rank_bytes(tp=1), weights.rank_bytes(tp=8)
    assert whole / 8 < eighth < whole / 8 * 1.02
    assert weights.rank_bytes(tp=1, expert_ranks=8) > eighth


def test_a_step_reads_more_experts_as_the_batch_grows():
    """One token reads its own experts, a large batch nearly all of them, and never more than are stored."""
    weights = dc.load_model("gpt-oss-120b").weights
    read = [weights.rank_bytes(tokens=tokens) for tokens in (1, 8, 64, 4096)]
    assert read == sorted(read)
    assert read[0] < 0.1 * weights.rank_bytes()
    assert read[-1] < weights.rank_bytes()


def test_states_of_gated_delta_layers():
    """Qwen3-Next keeps 32 heads of 128 x 128 and three columns of the convolution in each of 36 layers."""
    states = dc.load_model("qwen3-next-80b-a3b").states
    assert (states.layers, states.state_elements, states.conv_elements) == (36, 32 * 128 * 128, 3 * 8192)
    assert states.bytes_per_sequence(tp=4) * 4 == states.bytes_per_sequence()


def test_shapes_that_are_not_known_are_not_guessed():
    """A configuration without a vocabulary, or with blocks of another kind, has no weights."""
    config = {"model_type": "llama", "num_attention_heads": 8, "hidden_size": 64, "num_hidden_layers": 2}
    assert dc.load_model(config).weights is None
    assert dc.load_model({**config, "vocab_size": 100, "intermediate_size": 128}).weights.params == (
        2 * (4 * 64 * 64 + 3 * 64 * 128) + 2 * 100 * 64
    )
    assert dc.load_model("deepseek-v4-flash").weights is None


def test_quantisation_methods_by_name():
    """Methods of checkpoints and flags map to bytes of a weight; a format of another tool does not."""
    assert storage_of("AWQ") == "int4"
    assert storage_of("compressed-tensors", 4) == "int4"
    assert storage_of("fp8") == "fp8"
    assert storage_of("gguf") is None

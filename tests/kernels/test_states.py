"""Merging finished outputs: against float64, in any split over states, with empty states, from other memory, and
folded."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("decodecalc_kernels")
pytestmark = pytest.mark.interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _states(states: int, tokens: int = 2, heads: int = 3, width: int = 40, dtype: torch.dtype = torch.float32):
    gen = torch.Generator().manual_seed(states)
    outs = torch.randn((states, tokens, heads, width), generator=gen).to(dtype).to(DEVICE)
    lses = (4 * torch.randn((states, tokens, heads), generator=gen)).to(DEVICE)
    return outs, lses


def _merged(outs: torch.Tensor, lses: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    return (torch.softmax(lses.double(), 0)[..., None] * outs.double()).sum(0)


@pytest.mark.parametrize("states", [1, 2, 5])
def test_the_merge_is_the_weighted_sum(states: int) -> None:
    """Outputs and log-sum-exps, one state alone included."""
    outs, lses = _states(states)
    lse = torch.empty_like(lses[0])
    found = kernels.merge_outputs(outs, lses, lse=lse)
    assert torch.allclose(found.double(), _merged(outs, lses), rtol=1e-5, atol=1e-6)
    assert torch.allclose(lse.double(), torch.logsumexp(lses.double(), 0), atol=1e-5)


def test_an_empty_state_changes_no_bit() -> None:
    """A rank without keys, whose output is garbage, leaves the bits of the others' merge; no state at all gives
    zeros."""
    outs, lses = _states(1, dtype=torch.bfloat16)
    garbage = torch.full_like(outs, float("nan"))
    empty = torch.full_like(lses, float("-inf"))
    found = kernels.merge_outputs(torch.cat([garbage, outs, garbage]), torch.cat([empty, lses, empty]))
    assert torch.equal(found, outs[0])
    assert not kernels.merge_outputs(garbage, empty).any()


def test_scaled_states_add_up_to_the_merge() -> None:
    """What a reduce-scatter adds."""
    outs, lses = _states(4)
    total = sum(kernels.scale_outputs(outs[s].clone(), lses, s) for s in range(4))
    assert torch.allclose(total, kernels.merge_outputs(outs, lses), rtol=1e-5, atol=1e-6)


def test_states_in_other_memory_give_the_same_bits() -> None:
    """Each rank merges its heads from its peers' addresses; together they are the merge of one buffer."""
    outs, lses = _states(3, heads=4)
    apart = [(outs[s].clone(), lses[s].clone()) for s in range(3)]
    addresses = [torch.tensor([pair[i].data_ptr() for pair in apart], dtype=torch.int64, device=DEVICE) for i in (0, 1)]
    own = [torch.empty_like(outs[0][:, :2]) for _ in range(2)]
    for rank, out in enumerate(own):
        kernels.merge_peers(*addresses, out.contiguous(), heads=4, first_head=2 * rank)
        own[rank] = kernels.merge_peers(*addresses, torch.empty(2, 2, 40, device=DEVICE), heads=4, first_head=2 * rank)
    assert torch.equal(torch.cat(own, dim=1), kernels.merge_outputs(outs, lses))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_a_folded_prefix_and_own_keys_merge_to_the_whole(kv_heads: int) -> None:
    """Attention over shared keys with tokens as heads, and over own keys, merges to attention over all."""
    tokens, heads, width, shared, own = 3, 4, 16, 20, 7
    gen = torch.Generator().manual_seed(1)
    q = torch.randn((tokens, heads, width), generator=gen).to(DEVICE)
    keys, values = (
        torch.randn((1 + tokens, 32, kv_heads, width), generator=gen).to(DEVICE) for _ in range(2)
    )  # page 0: shared
    lens = torch.full((tokens,), own, dtype=torch.int32, device=DEVICE)
    table = torch.arange(1, 1 + tokens, dtype=torch.int32, device=DEVICE)[:, None]
    suffix, suffix_lse = kernels.decode_attention_reference(q, keys, values, seq_lens=lens, page_table=table)
    folded = kernels.fold_tokens(q, kv_heads)
    one = torch.tensor([shared], dtype=torch.int32, device=DEVICE)
    prefix, prefix_lse = kernels.decode_attention_reference(
        folded, keys, values, seq_lens=one, page_table=torch.zeros((1, 1), dtype=torch.int32, device=DEVICE)
    )
    outs = torch.stack([prefix.view(tokens, heads, width), suffix]).float()
    lses = torch.stack([prefix_lse.view(tokens, heads), suffix_lse]).float()
    found = kernels.merge_outputs(outs, lses, folded_group=heads // kv_heads)
    joined = [
        torch.cat([cache[0, :shared], cache[1 + t, :own]])[None] for t in range(tokens) for cache in (keys, values)
    ]
    for t in range(tokens):
        whole, _ = kernels.decode_attention_reference(
            q[t : t + 1], joined[2 * t], joined[2 * t + 1],
            seq_lens=torch.tensor([shared + own], dtype=torch.int32), page_table=torch.zeros((1, 1), dtype=torch.int32),
        )  # fmt: skip
        assert torch.allclose(found[t].double(), whole[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "width"), [(3, 4, 2, 16), (5, 6, 3, 40), (1, 8, 8, 64)])
def test_folding_orders_by_kv_head(tokens: int, heads: int, kv_heads: int, width: int) -> None:
    """Heads of one KV head come together, token by token; into a buffer or a new tensor."""
    q = torch.randn(tokens, heads, width, device=DEVICE)
    buffer = torch.empty(1, tokens * heads, width, device=DEVICE)
    apart = q.view(tokens, kv_heads, heads // kv_heads, width).transpose(0, 1).reshape(1, tokens * heads, width)
    assert torch.equal(kernels.fold_tokens(q, kv_heads, buffer), apart)
    assert torch.equal(kernels.fold_tokens(q, kv_heads), apart)


def test_shapes_that_do_not_fit_are_refused() -> None:
    """ValueError names what is wrong."""
    outs, lses = _states(2)
    with pytest.raises(ValueError, match="lses"):
        kernels.merge_outputs(outs, lses[:1])
    with pytest.raises(ValueError, match="contiguous"):
        kernels.merge_outputs(outs.transpose(1, 2), lses.transpose(1, 2))
    with pytest.raises(ValueError, match="folded_group"):
        kernels.merge_outputs(outs, lses, folded_group=2)
    with pytest.raises(ValueError, match="lses"):
        kernels.scale_outputs(outs[0], lses[:, :1], 0)
    with pytest.raises(ValueError, match="fold_tokens"):
        kernels.fold_tokens(outs[0].transpose(0, 1), 2)

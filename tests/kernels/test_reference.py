"""The float64 reference against PyTorch's own attention."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.interpreter


def test_reference_agrees_with_torch_for_one_causal_request(problem):
    import torch

    made = problem([37], q_len=5, q_heads=4, kv_heads=2, head_dim=16, page=8)
    out, _ = made.reference()
    pages = made.args["page_table"][0, :5].long()
    k = made.k[pages].flatten(0, 1)[:37].double().repeat_interleave(2, 1).transpose(0, 1)  # [heads, L, D]
    v = made.v[pages].flatten(0, 1)[:37].double().repeat_interleave(2, 1).transpose(0, 1)
    mask = torch.ones(5, 37, dtype=torch.bool, device=made.device).tril(32)
    want = torch.nn.functional.scaled_dot_product_attention(
        made.q.double().transpose(0, 1), k, v, attn_mask=mask, scale=16**-0.5
    )
    assert torch.allclose(out, want.transpose(0, 1), atol=1e-12)


def test_a_sink_only_scales_the_output_down(problem):
    import torch

    made = problem([20], head_dim=16, sinks=True)
    with_sink, lse = made.reference()
    sinks = made.args.pop("sinks")
    without, plain = made.reference()
    share = torch.exp(plain - torch.logaddexp(plain, sinks.double()[None]))
    assert torch.allclose(with_sink, without * share[:, :, None])
    assert torch.allclose(lse, torch.logaddexp(plain, sinks.double()[None]))

"""Sparse decode steps for the kernel tests: a list of cache slots for every query token, and the check of a launch."""

from __future__ import annotations

from typing import Any

BOUNDS = {"fp32": 2e-5, "bf16": 4e-3, "fp8": 5e-4}


def sparse_step(lists: list[list[int]], *, heads: int, kv_heads: int = 1, head_dim: int, v_dim: int, mla: bool,
                dtype: str = "fp32", slots: int = 96, seed: int = 0) -> tuple[Any, ...]:  # fmt: skip
    """q, K, V and the arguments of `decode_attention` for one list a token. Slots that no list names are NaN, and
    columns past a token's list name no slot of the cache."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    gen = torch.Generator().manual_seed(seed)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[dtype]
    query_kind = torch.bfloat16 if dtype == "fp8" else kind
    columns = max(map(len, lists)) + 1
    table = torch.full((len(lists), columns), 2**31 - 1, dtype=torch.int32)
    for row, slots_of_token in enumerate(lists):
        table[row, : len(slots_of_token)] = torch.tensor(slots_of_token, dtype=torch.int32)
    unused = torch.ones(slots, dtype=torch.bool)
    unused[[s for one in lists for s in one if s >= 0]] = False

    def cache(width: int) -> Any:
        made = torch.randn(slots, 1, kv_heads, width, generator=gen)
        made[unused] = float("nan")
        return made.to(kind).to(device)

    k, v = cache(head_dim), None if mla else cache(v_dim)
    q = torch.randn(len(lists), heads, head_dim, generator=gen).to(query_kind).to(device)
    lens = torch.tensor([len(one) for one in lists], dtype=torch.int32, device=device)
    more: dict[str, Any] = {"seq_lens": lens, "page_table": table.to(device)}
    if mla:
        more["v_dim"] = v_dim
    return q, k, v, more


def check(step: tuple[Any, ...], config: Any, dtype: str = "fp32") -> None:
    """The kernel's output and log-sum-exp against the reference."""
    import torch

    from decodecalc_kernels import decode_attention, decode_attention_reference

    q, k, v, more = step
    want, want_lse = decode_attention_reference(q, k, v, **more)
    out = torch.full(want.shape, float("nan"), device=q.device)
    lse = torch.full(want_lse.shape, float("nan"), device=q.device)
    decode_attention(q, k, v, config=config, holes=True, out=out, lse=lse, **more)
    assert not torch.isnan(out).any()
    for token in range(len(q)):
        if want[token].any():
            assert float((out[token] - want[token]).norm() / want[token].norm()) <= BOUNDS[dtype]
        else:
            assert not out[token].any()
    finite = want_lse > float("-inf")
    assert torch.equal(lse > float("-inf"), finite)
    assert torch.allclose(lse[finite].double(), want_lse[finite], rtol=0, atol=2e-3)

"""A launch with one split size gives a request the same bits alone, in any batch, at any place of it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LENS = {"gpu": [30_000, 1, 6000, 511, 12_345, 513], "interpreter": [70, 1, 33, 32]}
# (query heads, KV heads, head size, cache type, query tokens)
LAYERS = {
    "gpu": [(32, 8, 128, "bf16", 1), (8, 1, 128, "fp8", 1), (28, 4, 128, "bf16", 3), (12, 2, 96, "int8", 1),
            (40, 1, 64, "e5m2", 1), (32, 2, 256, "fp16", 1)],
    "interpreter": [(2, 1, 16, "bf16", 1), (6, 2, 16, "int8", 2)],
}  # fmt: skip


class Pool:
    """Requests to make batches of, and what each gives alone."""

    def __init__(self, problem, lens, layer):
        from decodecalc_kernels import invariant_config

        q_heads, kv_heads, head_dim, dtype, q_len = layer
        self.made = problem([max(n, q_len) for n in lens], q_heads, kv_heads, head_dim, dtype=dtype, q_len=q_len)
        longest = max(lens)
        self.config = invariant_config(
            q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, q_len=q_len, max_seq_len=longest,
            split_keys=512 if longest > 1000 else 16, kv_bytes_per_element=self.made.k.element_size(),
        )  # fmt: skip
        self.alone = [self.run([b], False, 0) for b in range(len(lens))]

    def run(self, requests, listed, wider):
        """(output, log-sum-exp) of a batch of these requests; its page table is `wider` columns wider than needed."""
        import torch

        from decodecalc_kernels import decode_attention

        made, q_len = self.made, self.made.q_len
        pick = torch.tensor(requests, device=made.device)
        rows = (pick[:, None] * q_len + torch.arange(q_len, device=made.device)).flatten()
        pages = max(-(-made.seq_lens[b] // made.page) for b in requests)
        table = torch.nn.functional.pad(made.args["page_table"][pick][:, :pages], (0, wider)).contiguous()
        q = made.q[rows].contiguous()
        out = torch.full((len(rows), *made.out_shape[1:]), float("nan"), dtype=made.q.dtype, device=made.device)
        lse = torch.full(out.shape[:2], float("nan"), device=made.device)
        decode_attention(
            q, made.k, made.v, config=self.config.replace(listed=listed), out=out, lse=lse,
            **{**made.args, "seq_lens": made.lens[pick], "page_table": table},
        )  # fmt: skip
        return out, lse

    def check(self, requests, listed, wider):
        """Every request of the batch has the bits that it has alone."""
        out, lse = self.run(requests, listed, wider)
        for place, b in enumerate(requests):
            rows = slice(place * self.made.q_len, (place + 1) * self.made.q_len)
            assert out[rows].equal(self.alone[b][0])
            assert lse[rows].equal(self.alone[b][1])


def check_layer(problem, where, layer, examples):
    """Many batches of one layer's requests: any of them, any number of times, in any order."""
    pool = Pool(problem, LENS[where], layer)
    places = st.integers(0, len(LENS[where]) - 1)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(places, min_size=1, max_size=40 if where == "gpu" else 4), st.booleans(), st.sampled_from([0, 1, 5])
    )
    def same_bits(requests, listed, wider):
        pool.check(requests, listed, wider)

    same_bits()


@pytest.mark.gpu
@pytest.mark.parametrize("layer", LAYERS["gpu"], ids=str)
def test_a_request_has_the_same_bits_in_every_batch(problem, layer):
    check_layer(problem, "gpu", layer, 60)


@pytest.mark.interpreter
@pytest.mark.parametrize("layer", LAYERS["interpreter"], ids=str)
def test_a_request_has_the_same_bits_in_every_batch_of_the_interpreter(problem, layer):
    check_layer(problem, "interpreter", layer, 8)

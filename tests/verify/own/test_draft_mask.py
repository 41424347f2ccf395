"""What a draft token sees, in the bits that XQA reads."""

from __future__ import annotations

import pytest

from decodecalc.engines.flashinfer.run import draft_mask


@pytest.mark.parametrize("q_len", [2, 16, 17, 40])
def test_a_draft_token_sees_itself_and_those_before_it(q_len: int) -> None:
    """Bit t of row r is set where t <= r; rows are padded to 32 bits, the same for every request."""
    pytest.importorskip("torch")
    mask = draft_mask(q_len, 3, "cpu")
    assert mask.shape == (3, q_len, 2 * -(-q_len // 32))
    for row in range(q_len):
        words = mask[1, row].tolist()
        bits = [words[token // 16] >> (token % 16) & 1 for token in range(16 * len(words))]
        assert bits == [int(token <= row) for token in range(len(bits))]

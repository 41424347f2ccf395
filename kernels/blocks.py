"""Block widths as plain arithmetic: what the launcher, the cost model and the tests share."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def key_blocks(head_dim: int) -> tuple[int, int]:
    """Widths in which a key is read: its largest power of two, and the rest (0, or padded to a power of two >= 16).

    >>> key_blocks(128), key_blocks(96), key_blocks(576)
    ((128, 0), (64, 32), (512, 64))
    """
    first = 1 << (head_dim.bit_length() - 1)
    rest = head_dim - first
    return first, max(16, next_power_of_2(rest)) if rest else 0


def default_rows(q_len: int, group: int, v_dim: int) -> int:
    """Query rows per block: the packed rows, at least 16 (tensor cores), at most 64, and what fp32 accumulators allow:
    64 rows × 512 elements take 128 registers of each of 256 threads.
    """
    limit = max(16, min(64, 32768 // next_power_of_2(v_dim)))
    return min(limit, max(16, next_power_of_2(q_len * group)))

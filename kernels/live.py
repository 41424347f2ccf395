"""Which splits of a request are live, and which keys each walks: the one definition everybody uses.

The functions are plain integer arithmetic with no calls into Python or Triton builtins, so the same source serves

* the Triton kernels, which compile them (`triton.jit(live.split_keys_of)` in `stage1.py` and `merge.py`),
* Python, with ints, NumPy integer arrays or torch tensors (they broadcast).

Stage 1 writes a partial state exactly for the splits that `is_live` names and the merge reads exactly those, so the
two cannot disagree. All lengths are in keys; every range is `[start, end)`.
"""

from __future__ import annotations


def first_key(seq_len, q_len, window, clamp):
    """Where the partition of a request starts.

    0, or with `clamp` (1 rather than 0) and a window of `window` > 0 keys: the first key that the request's first
    query token sees. Keys 0 … seq_len - 1 include the `q_len` query tokens' own.
    """
    first = seq_len - q_len + 1 - window
    return first * (first > 0) * (window > 0) * clamp


def split_keys_of(keys, count, unit):
    """Keys in each split when `keys` are to be cut into `count` splits, each a multiple of `unit` keys.

    With unit = an engine's tile this is vLLM's rule (`ceil(ceil(L / tile) / S) · tile`), with unit = 32 SGLang's
    (`ceil(ceil(L / n) / 32) · 32`): nested ceiling divisions are one, ceil(ceil(a / b) / c) = ceil(a / (b c)).
    """
    return (keys + count * unit - 1) // (count * unit) * unit


def is_live(split, split_keys, keys):
    """Whether split number `split` has keys at all: it starts before the last of the request's `keys`."""
    return split * split_keys < keys


def live_splits(keys, split_keys):
    """How many splits are live: `is_live` counted (splits are live from the first on). No keys, no splits."""
    return (keys + split_keys - (split_keys > 0)) // (split_keys + (split_keys == 0))


def list_length(keys, split_keys, requests):
    """The most entries that the list of live splits of `requests` requests can have which share `keys` keys, in splits
    of `split_keys` keys: a request of L keys has at most L / split_keys whole splits before its last one, and every
    request has one entry at least."""
    return keys // split_keys + requests


def split_end(start, split_keys, seq_len):
    """The end of the split that starts at key `start`: its own length or the request's end, whichever is first."""
    end = start + split_keys
    return end - (end - seq_len) * (end > seq_len)


def walk_start(start, seq_len, q_len, window, tile):
    """The first key a live split's loop visits.

    `start`, except that whole tiles (counted from `start`) that lie before every query token's window are skipped.
    May be at or past the split's end: then the split is live, walks nothing and writes a neutral state.
    """
    skip = seq_len - q_len + 1 - window - start
    return start + skip * (skip > 0) * (window > 0) // tile * tile


def splits(
    seq_len: int,
    split_keys: int,
    num_splits: int,
    *,
    q_len: int = 1,
    window: int = 0,
    clamp: bool = False,
    tile: int = 1,
) -> list[tuple[int, int]]:
    """The walked key ranges of one request's live splits, as the kernels compute them (see the functions above).

    A live split without work (wholly before the window) shows as an empty range.

    >>> splits(500, split_keys_of(500, 16, 16), 16)[-1]
    (480, 500)
    """
    begin = first_key(seq_len, q_len, window, int(clamp))
    ranges = []
    for i in range(num_splits):
        if is_live(i, split_keys, seq_len - begin):
            start = begin + i * split_keys
            end = split_end(start, split_keys, seq_len)
            walked = walk_start(start, seq_len, q_len, window, tile)
            ranges.append((min(walked, end), end))
    return ranges

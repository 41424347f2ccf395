"""Key ranges of splits: contiguous ones and tiles dealt in turn."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.launch.plan import KeyRanges, Splits, dealt_keys


def splits(first: int, size: int, live: int, end: int, tile: int | None) -> Splits:
    """One request's splits."""
    keys = KeyRanges([first], [size], [live], [end], tile)
    return Splits(requested=(live,), launched=live, live=(live,), working=(live,), keys=keys, interleave_keys=tile)


def test_contiguous_splits_have_one_piece_each() -> None:
    """Without interleaving a piece is the key range itself, and the counts are its lengths."""
    found = splits(10, 40, 3, 100, None)
    assert found.keys[0] == [(10, 50), (50, 90), (90, 100)]
    assert found.pieces(0) == [[(10, 50)], [(50, 90)], [(90, 100)]]
    assert found.key_counts(0) == [40, 40, 10]


def test_tiles_are_dealt_in_turn() -> None:
    """300 keys in tiles of 64 over two splits: split 0 has tiles 0, 2 and the short tile 4, split 1 tiles 1 and 3."""
    found = splits(0, 192, 2, 300, 64)
    assert found.pieces(0) == [[(0, 64), (128, 192), (256, 300)], [(64, 128), (192, 256)]]
    assert found.key_counts(0) == [172, 128]
    assert found.keys[0] == [(0, 300), (64, 256)]
    assert found.to_dict(with_keys=True)["interleave_keys"] == 64


def test_irregular_ranges_have_one_piece_each() -> None:
    """A plain list of ranges, as policies with irregular cuts give it, is taken as contiguous."""
    found = Splits(requested=(2,), launched=2, live=(2,), working=(2,), keys=[[(0, 7), (7, 9)]])
    assert (found.pieces(0), found.key_counts(0)) == ([[(0, 7)], [(7, 9)]], [7, 2])


@given(st.integers(0, 500), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 40))
def test_dealt_pieces_tile_the_keys_once(first: int, keys: int, tile: int, most: int) -> None:
    """The pieces of all splits, in order of position, are the tiles of the request; counts agree, none is empty."""
    tiles = -(-keys // tile)
    live = min(most, tiles)
    found = splits(first, -(-tiles // live) * tile, live, first + keys, tile)
    pieces = sorted(piece for mine in found.pieces(0) for piece in mine)
    assert pieces == [(start, min(start + tile, first + keys)) for start in range(first, first + keys, tile)]
    assert found.key_counts(0) == [sum(end - start for start, end in mine) for mine in found.pieces(0)]
    assert min(found.key_counts(0)) > 0
    assert max(found.key_counts(0)) <= -(-tiles // live) * tile


@given(st.integers(0, 5000), st.integers(1, 300), st.integers(0, 40))
def test_dealt_keys_add_up(keys: int, tile: int, count: int) -> None:
    """Over all splits the dealt keys are the request's keys; splits without a tile have none, and so has an empty
    request."""
    dealt = dealt_keys(np.int64(keys), tile, count, np.arange(count))
    assert dealt.sum() == (keys if count else 0)
    assert (dealt[-(-keys // tile) :] == 0).all()

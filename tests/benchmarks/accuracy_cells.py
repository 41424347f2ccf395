"""Which cells the accuracy experiment measures, and which of them were used to fit anything. Written before fitting.

The bundled kernel is calibrated by microbenchmarks of one or eight KV heads, head widths 64, 80, 128 and 256 (FP8: 128)
and equal blocks of 1, 4, 16 and 48 whole tiles. Held out, as whole families (`families`), are therefore: other KV-head
counts, head width 96, FP8 at width 64, contexts that are no multiple of a tile, and every ragged batch. The model's
form was worked out on the microbenchmarks and on the cells of `decodecalc verify --suite standard`; none of the cells
below was measured before the form was settled.

The peers' kernels cannot be taken apart, so their parameters come from whole launches: PEER_FIT_CELLS. Held out for
them: KV heads 4 and 32, batches 3, 12 and 40, the contexts of PEER_TEST_CELLS, and every ragged batch.
"""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """One decode step of one layer. lens: KV length of every request."""

    q_heads: int
    kv_heads: int
    head_dim: int
    lens: tuple[int, ...]
    dtype: str = "bf16"

    @property
    def label(self) -> str:
        """Short name."""
        lens = f"B{len(self.lens)} L{self.lens[0]}" if len(set(self.lens)) == 1 else f"ragged B{len(self.lens)}"
        return f"{self.q_heads}/{self.kv_heads} D{self.head_dim} {lens} {self.dtype}"


def families(cell: Cell) -> tuple[str, ...]:
    """The held-out families a cell belongs to."""
    found = {
        "KV heads other than 1 and 8": cell.kv_heads not in (1, 8),
        "head width 96, FP8 at width 64": cell.head_dim == 96 or (cell.dtype, cell.head_dim) == ("fp8", 64),
        "contexts off the tile grid": len(set(cell.lens)) == 1 and cell.lens[0] % 64 > 0,
        "ragged batches": len(set(cell.lens)) > 1,
    }
    return tuple(name for name, member in found.items() if member)


def equal(q: int, kv: int, dim: int, batch: int, context: int, dtype: str = "bf16") -> Cell:
    """Equal requests."""
    return Cell(q, kv, dim, (context,) * batch, dtype)


def ragged(q: int, kv: int, dim: int, *lens: int, dtype: str = "bf16") -> Cell:
    """Requests of different lengths."""
    return Cell(q, kv, dim, tuple(lens), dtype)


# Lengths of a busy server: many short requests, some long, one very long.
MIXED = (300, 450, 700, 700, 1100, 1500, 2100, 2800, 3500, 5200, 7000, 9000, 14000, 21000, 33000, 61000)

CELLS = (
    # KV heads 8 (Llama-3-8B and its kin)
    equal(32, 8, 128, 1, 700), equal(32, 8, 128, 1, 2500), equal(32, 8, 128, 1, 9000), equal(32, 8, 128, 1, 33000),
    equal(32, 8, 128, 1, 131000), equal(32, 8, 128, 4, 1500), equal(32, 8, 128, 3, 9000), equal(32, 8, 128, 12, 2500),
    equal(32, 8, 128, 16, 5000), equal(32, 8, 128, 48, 1000), equal(32, 8, 128, 64, 2500), equal(32, 8, 128, 64, 9000),
    equal(32, 8, 128, 200, 700),
    # KV heads 1, 2, 4, 5 with contexts off the tile grid
    equal(8, 1, 128, 1, 2500), equal(8, 1, 128, 1, 9001), equal(8, 1, 128, 1, 70001), equal(8, 1, 128, 12, 2500),
    equal(8, 1, 128, 40, 5001), equal(16, 2, 128, 1, 5000), equal(16, 2, 128, 1, 50000), equal(16, 2, 128, 24, 3000),
    equal(28, 4, 128, 1, 1200), equal(28, 4, 128, 1, 20000), equal(28, 4, 128, 9, 7000), equal(28, 4, 128, 96, 2000),
    equal(40, 5, 128, 2, 6000), equal(40, 5, 128, 32, 3000),
    # multi-head attention
    equal(32, 32, 128, 1, 600), equal(32, 32, 128, 1, 4000), equal(32, 32, 128, 1, 30000), equal(32, 32, 128, 6, 2560),
    equal(32, 32, 128, 32, 1300),
    # other widths and FP8
    equal(32, 8, 96, 1, 3000), equal(32, 8, 96, 1, 40000), equal(32, 8, 96, 20, 4000), equal(32, 32, 96, 4, 2000),
    equal(32, 8, 64, 1, 5000), equal(32, 8, 64, 16, 3000), equal(64, 8, 64, 64, 4000), equal(16, 8, 256, 1, 5000),
    equal(16, 8, 256, 12, 2500), equal(32, 8, 128, 1, 9000, "fp8"), equal(32, 8, 128, 1, 65000, "fp8"),
    equal(32, 8, 128, 32, 4000, "fp8"), equal(32, 8, 64, 8, 9000, "fp8"),
    # ragged
    ragged(32, 8, 128, *MIXED), ragged(32, 8, 128, 100, 33000), ragged(32, 8, 128, *((512,) * 31), 32768),
    ragged(8, 1, 128, *MIXED), ragged(8, 1, 128, *((2000,) * 15), 90000), ragged(28, 4, 128, *MIXED, *MIXED),
    ragged(32, 32, 128, 900, 1700, 2600, 6000), ragged(32, 8, 96, *MIXED), ragged(16, 8, 256, *MIXED[:12]),
    ragged(32, 8, 128, *MIXED, dtype="fp8"),
)  # fmt: skip

# Cells whose split counts are swept, to compare S_opt with the best of an exhaustive search.
SWEPT = (
    equal(32, 8, 128, 1, 700), equal(32, 8, 128, 1, 2500), equal(32, 8, 128, 1, 9000), equal(32, 8, 128, 1, 33000),
    equal(32, 8, 128, 1, 131000), equal(32, 8, 128, 4, 1500), equal(32, 8, 128, 3, 9000), equal(32, 8, 128, 12, 2500),
    equal(32, 8, 128, 48, 1000), equal(32, 8, 128, 64, 2500), equal(8, 1, 128, 1, 2500), equal(8, 1, 128, 1, 9001),
    equal(8, 1, 128, 1, 70001), equal(8, 1, 128, 12, 2500), equal(8, 1, 128, 40, 5001), equal(28, 4, 128, 1, 20000),
    equal(28, 4, 128, 9, 7000), equal(32, 32, 128, 1, 600), equal(32, 32, 128, 1, 4000), equal(32, 32, 128, 6, 2560),
    equal(32, 8, 96, 1, 3000), equal(32, 8, 64, 16, 3000), equal(16, 8, 256, 1, 5000), ragged(32, 8, 128, *MIXED),
)  # fmt: skip
SWEPT_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)

PEER_FIT_CELLS = tuple(
    equal(q, kv, 128, batch, context)
    for q, kv in ((32, 8), (8, 1))
    for batch, context in ((1, 512), (1, 4096), (1, 32768), (1, 131072), (4, 2048), (16, 4096), (64, 1024), (64, 8192))
)
PEER_TEST_CELLS = (
    *(
        equal(q, kv, 128, batch, context)
        for q, kv in ((16, 4), (32, 32))
        for batch, context in ((1, 1500), (1, 9000), (1, 70000), (3, 2500), (12, 2500), (40, 3000))
    ),
    equal(32, 8, 128, 1, 2500), equal(32, 8, 128, 3, 9000), equal(32, 8, 128, 12, 2500), equal(8, 1, 128, 3, 9000),
    equal(8, 1, 128, 40, 3000), ragged(32, 8, 128, *MIXED), ragged(8, 1, 128, *MIXED),
    ragged(32, 8, 128, *((512,) * 31), 32768),
)  # fmt: skip

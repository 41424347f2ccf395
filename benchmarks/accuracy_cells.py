"""Which cells the accuracy experiment measures, and which of them were used to fit anything. Written before measuring.

The bundled kernel is calibrated by microbenchmarks of four KV heads with 8 or 16 query heads each, head widths 64, 80,
128 and 256 (FP8: 128) and equal blocks of 1 to 48 whole tiles. Held out, as whole families (`families`), are therefore:
other KV-head counts than 4, other groups than 8 and 16, head widths 96 and 112, FP8 at width 64, contexts that are no
multiple of a tile, and every ragged batch.

The model's form was worked out on the microbenchmarks, the cells of `decodecalc verify --suite standard`, and two
earlier sets of cells and sweeps. CELLS and SWEPT are new: none of them is one of the earlier sets', and none was
measured before the form was settled.
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
        "KV heads other than 4": cell.kv_heads != 4,
        "groups other than 8 and 16": cell.q_heads // cell.kv_heads not in (8, 16),
        "widths 96 and 112, FP8 at 64": cell.head_dim in (96, 112) or (cell.dtype, cell.head_dim) == ("fp8", 64),
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
MIXED = (230, 380, 520, 810, 950, 1600, 1750, 2250, 2900, 3900, 5600, 7800, 10000, 15500, 24000, 43000)

# Cells whose split counts are swept, to compare S_opt with the best of an exhaustive search.
SWEPT = (
    # groups of 4: Llama-3-8B on one GPU, and its shares
    equal(32, 8, 128, 1, 560), equal(32, 8, 128, 1, 2050), equal(32, 8, 128, 1, 5500), equal(32, 8, 128, 1, 17500),
    equal(32, 8, 128, 1, 63000), equal(32, 8, 128, 2, 2900), equal(32, 8, 128, 3, 1250), equal(32, 8, 128, 8, 6700),
    equal(32, 8, 128, 18, 1350), equal(32, 8, 128, 36, 4700), equal(16, 4, 128, 1, 11500), equal(16, 4, 128, 7, 1850),
    equal(8, 2, 128, 1, 7400), equal(8, 2, 128, 11, 4300),
    # groups of 8: Llama-3-70B on 8, 4 and 2 GPUs
    equal(8, 1, 128, 1, 1150), equal(8, 1, 128, 1, 5200), equal(8, 1, 128, 1, 22000), equal(8, 1, 128, 1, 97000),
    equal(8, 1, 128, 4, 5400), equal(8, 1, 128, 30, 1450), equal(16, 2, 128, 1, 19000), equal(16, 2, 128, 8, 3150),
    equal(32, 4, 128, 2, 6300), equal(32, 4, 128, 16, 2450),
    # groups of 16, 7, 6, 5, 2 and 1
    equal(16, 1, 128, 1, 14000), equal(32, 2, 128, 4, 6900), equal(28, 4, 128, 2, 5050), equal(48, 8, 128, 1, 8700),
    equal(40, 8, 128, 9, 1650), equal(16, 8, 128, 1, 4900), equal(32, 32, 128, 1, 1550), equal(24, 24, 128, 5, 870),
    # other widths, FP8, ragged
    equal(32, 8, 64, 1, 8300), equal(32, 8, 64, 12, 1950), equal(32, 32, 80, 1, 2150), equal(24, 8, 96, 2, 4600),
    equal(16, 8, 256, 1, 2700), equal(8, 4, 256, 5, 3800), equal(32, 8, 128, 1, 12500, "fp8"),
    equal(8, 1, 128, 6, 11000, "fp8"), ragged(32, 8, 128, *MIXED), ragged(16, 2, 128, *MIXED[3:13]),
)  # fmt: skip
SWEPT_SPLITS = (
    *range(1, 17), 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 144,
    160, 176, 192, 224, 256, 320, 384, 448, 512,
)  # fmt: skip

CELLS = (
    *SWEPT,
    equal(32, 8, 128, 44, 740), equal(32, 8, 128, 56, 3950), equal(32, 8, 128, 140, 1750), equal(32, 8, 128, 1, 160000),
    equal(8, 1, 128, 100, 2350), equal(8, 1, 128, 170, 980), equal(16, 2, 128, 66, 4450), equal(28, 4, 128, 76, 1150),
    equal(40, 5, 128, 3, 7700), equal(40, 5, 128, 21, 3650), equal(12, 3, 128, 1, 4050), equal(12, 3, 128, 34, 1700),
    equal(32, 32, 128, 2, 13500), equal(32, 32, 128, 26, 1450), equal(24, 8, 96, 1, 25000), equal(24, 8, 96, 28, 2850),
    equal(32, 32, 112, 3, 1350), equal(32, 8, 112, 1, 10500), equal(64, 8, 64, 54, 2600), equal(16, 8, 256, 11, 1700),
    equal(32, 8, 128, 26, 4900, "fp8"), equal(32, 8, 128, 1, 78000, "fp8"), equal(32, 8, 64, 6, 10500, "fp8"),
    ragged(32, 8, 128, 180, 24500), ragged(32, 8, 128, *((570,) * 21), 19000), ragged(8, 1, 128, *MIXED),
    ragged(8, 1, 128, *((1350,) * 13), 62000), ragged(28, 4, 128, *MIXED, *MIXED[7:]),
    ragged(32, 32, 128, 620, 1250, 2700, 4600), ragged(24, 8, 96, *MIXED), ragged(16, 8, 256, *MIXED[:10]),
    ragged(32, 8, 128, *MIXED, dtype="fp8"),
)  # fmt: skip

"""How aiter's MLA decode lays out heads and query tokens: what is folded, tiled and allocated for a launch.

Read from ROCm/aiter: csrc/kernels/mla/metadata/v1_2_device.cuh (get_mla_metadata_v1_2_device), aiter/ops/attention.py
(get_mla_metadata_info_v1, get_mla_decode_fwd_occupancy), csrc/py_itfs_cu/asm_mla.cu (sub_Q) and
csrc/kernels/mla/reduce.cu (get_num_work_group_per_bh).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodecalc.errors import GateError
from decodecalc.intmath import cdiv, next_power_of_2

FOLDED_HEADS = 16  # heads of a unit where the kernel has no variant for all of them
REDUCE_OCCUPANCY = 8
REDUCE_GROUPS = (1, 2, 4, 8, 16, 64, 256)  # work groups per head and tile that the reduction is compiled for
CDNA3, CDNA4 = "gfx942", "gfx950"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaStep:
    """The facts that the layout depends on."""

    gfx: str
    heads: int
    q_len: int
    q_fp8: bool
    kv_fp8: bool
    experimental: bool
    """AITER_ENABLE_EXPERIMENTAL is set."""
    fp8_32_heads: bool
    """gfx950 has a kernel for 32 FP8 heads whatever the number of query tokens (from 0.1.20 on)."""

    @property
    def fp8(self) -> bool:
        """Queries and keys are FP8."""
        return self.q_fp8 and self.kv_fp8

    @property
    def wide(self) -> bool:
        """Neither queries nor keys are FP8."""
        return not self.q_fp8 and not self.kv_fp8

    @property
    def occupancy(self) -> int:
        """Parts of a compute unit: 2 for one experimental kernel."""
        two = self.experimental and self.gfx == CDNA4 and self.heads * self.q_len == 64 and self.fp8
        return 2 if two else 1

    @property
    def experimental_rows(self) -> bool:
        """An experimental kernel serves these heads as they are."""
        return (
            self.experimental and self.fp8 and self.heads * self.q_len == 128 and self.heads in (16, 32, 64, 128)
        )  # fmt: skip

    @property
    def native(self) -> bool:
        """The stage-1 kernel takes all heads at once."""
        heads, q = self.heads, self.q_len
        if heads == FOLDED_HEADS or self.experimental_rows:
            return True
        if heads == 64 and self.fp8 and q == 1:
            return True
        if self.gfx == CDNA3:
            return heads == 128 and self.fp8
        if self.wide:
            return True
        return self.fp8 and (heads in (64, 128) or (heads == 32 and (self.fp8_32_heads or q in (1, 2) or q >= 4)))

    @property
    def fold(self) -> int:
        """Groups of 16 heads that count as requests of their own."""
        return self.heads // FOLDED_HEADS if not self.native and self.heads % FOLDED_HEADS == 0 else 1

    @property
    def unit_heads(self) -> int:
        """Heads of a unit."""
        return FOLDED_HEADS if self.fold > 1 else self.heads

    @property
    def packed_rows(self) -> int:
        """Query rows (tokens x heads) of a work group: kPackedQoLenPerWg."""
        rows = self.unit_heads * self.q_len
        narrow = rows < 128 or self.unit_heads == 48
        if self.gfx == CDNA4 and self.wide and self.unit_heads <= 64 and rows >= 64 and narrow:
            return 64
        if self.fp8_32_heads and self.gfx == CDNA4 and self.fp8 and self.unit_heads == 32 and self.q_len == 3:
            return 64
        return 128

    @property
    def tiles(self) -> int:
        """Query tiles of a unit: num_qo_tiles."""
        if self.q_len * self.heads <= self.packed_rows:
            return 1
        if self.unit_heads * 2 > self.packed_rows:
            return self.q_len
        return cdiv(self.q_len * self.unit_heads, self.packed_rows)

    @property
    def buffer_tiles(self) -> int:
        """Query tiles of a request that buffers and the reduction are sized for: max_qo_tiles_per_batch."""
        rows, heads = self.q_len * self.heads, self.heads
        if self.gfx == CDNA4 and (
            (self.wide and rows >= 64 and heads <= 64 and (rows < 128 or heads == 48))
            or (self.fp8_32_heads and self.fp8 and heads == 32 and self.q_len == 3)
        ):
            return self.q_len if heads * 2 > 64 else cdiv(rows, 64)
        if (
            heads == FOLDED_HEADS
            or (self.gfx == CDNA3 and self.fp8 and heads == 128)
            or (self.gfx == CDNA3 and self.experimental_rows and heads < 128)
            or (self.gfx == CDNA4 and self.fp8 and ((heads == 32 and self.q_len == 4) or heads in (64, 128)))
            or (heads == 64 and self.fp8 and self.q_len == 1)
        ):
            return cdiv(rows, 128)
        if self.gfx == CDNA4 and self.wide and (rows >= 128 or heads > 64) and heads != 48:
            return self.q_len if heads * 2 > 128 else cdiv(rows, 128)
        return cdiv(rows, 16)

    @property
    def merge_granule(self) -> int:
        """Keys that a split holds at least for the merge to look at it (mgc), without the persistent plan."""
        if (self.heads == 128 and self.fp8) or (self.heads == 64 and self.wide and self.q_len == 1):
            return 32
        if self.heads in (8, 16) and (self.q_len == 1 or (self.heads == 8 and self.q_len == 2)):
            return 64
        return 16

    @property
    def writes_output(self) -> bool:
        """With one split, stage 1 writes the output itself and nothing is merged."""
        return self.q_fp8 or self.q_len == 4 or (self.wide and self.heads in (8, 32))

    @property
    def sub_q(self) -> int:
        """Query rows of a stage-1 block without the persistent plan (sub_Q)."""
        heads, q = self.heads, self.q_len
        if heads == 16:
            return 16 if self.wide and q == 1 else 64 if self.q_fp8 and q in (3, 4) else 128
        if heads == 32:
            return 64 if self.wide else 32 if self.fp8 and q == 1 else 128
        if heads == 64:
            return 64 if self.wide else 128
        if heads == 8 and (q == 1 or (self.wide and q == 2)):
            return heads * q
        return 128

    @property
    def fp8_block_keys(self) -> int:
        """Keys of a block of the FP8 kernels, which bounds their split count (get_block_n_fp8)."""
        sizes = {8: 64, 16: 128, 24: 128, 32: 128, 48: 64, 64: 64, 128: 32, 256: 32, 384: 32, 512: 32}
        if self.heads * self.q_len not in sizes:
            raise GateError(
                f"aiter-mla: without the persistent plan, FP8 takes {', '.join(map(str, sizes))} query rows (heads x "
                f"query tokens), not {self.heads * self.q_len}",
                "heads",
            )
        return sizes[self.heads * self.q_len]

    def reduce_groups(self, tiles: int, compute_units: int) -> int:
        """Work groups of the reduction for each head and tile."""
        capacity = np.float32(compute_units * REDUCE_OCCUPANCY) * np.float32(1.3)  # a C float in the source
        workloads = tiles * self.unit_heads
        if capacity <= np.float32(workloads):
            return 1
        wanted = next_power_of_2(min(cdiv(int(capacity), workloads), self.q_len))
        return next(n for n in REDUCE_GROUPS if min(wanted, REDUCE_GROUPS[-1]) <= n)

    def check_persistent(self) -> None:
        """Raises GateError where the metadata kernel or mla_decode_fwd refuses the heads."""
        heads, q = self.unit_heads, self.q_len
        known = (
            self.native
            or heads in (16, 128)
            or (self.fp8 and (heads == 32 or (heads == 64 and q == 1)))
            or (self.gfx == CDNA4 and self.fp8 and heads == 8 and q == 4)
            or (self.gfx == CDNA3 and self.wide and heads == 8 and q == 2)
        )
        if not known:
            raise GateError(
                f"aiter-mla: the persistent plan takes 16 heads or a multiple of them, not {self.heads} with {q} query "
                f"tokens on {self.gfx} (it takes 8 heads with 2 tokens in BF16 on gfx942, and with any number in BF16 "
                f"or 4 in FP8 on gfx950)",
                "heads",
            )

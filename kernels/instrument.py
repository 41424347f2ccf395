"""What a launch really did, block by block: keys walked, SM, early exit, times. All of it is observed, nothing assumed.

The instrumented kernel is the timed kernel with `RECORD` set: it has the same source and the same loop, with a few
stores at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from decodecalc_kernels.blocks import cdiv, list_grid
from decodecalc_kernels.config import LaunchConfig
from decodecalc_kernels.launch import decode_attention

FIELDS = 6  # stage1.RECORD_FIELDS


@dataclass(frozen=True)
class LaunchRecord:
    """Stage 1's blocks. Arrays [splits, requests (idle ones too), KV heads · row blocks] (grid axes z, y, x; the same
    order for a listed launch, whose grid has other axes), int64.

    `start`, `end`: keys walked (equal: walked none); `exited`: 1 when the block returned early; `sm`: where it ran,
    `begin_ns`, `finish_ns`: %globaltimer (coarse: about 1 µs steps or worse), these three -1 off NVIDIA GPUs. All are
    -1 where no block had a split, which a listed launch leaves out. `past`: blocks past the end of its list.
    """

    grid: tuple[int, int, int]
    start: torch.Tensor
    end: torch.Tensor
    exited: torch.Tensor
    sm: torch.Tensor
    begin_ns: torch.Tensor
    finish_ns: torch.Tensor
    past: int = 0

    @property
    def launched_blocks(self) -> int:
        """Blocks that wrote a record."""
        return int((self.start >= 0).sum()) + self.past

    @property
    def early_exits(self) -> int:
        """Blocks that exited early."""
        return int((self.exited == 1).sum()) + self.past

    @property
    def live_blocks(self) -> int:
        """Blocks that did not exit early."""
        return int((self.exited == 0).sum())

    @property
    def working_blocks(self) -> int:
        """Live blocks that walked at least one key (a split wholly before a sliding window walks none)."""
        return int(((self.exited == 0) & (self.end > self.start)).sum())

    def live_splits(self) -> list[int]:
        """Live splits of each request (of its first row block)."""
        return [int(n) for n in (self.exited[:, :, 0] == 0).sum(0)]

    def split_keys(self, request: int, column: int = 0) -> list[tuple[int, int]]:
        """Key ranges that `request`'s live splits walked, for one KV head and row block (grid axis x)."""
        live = self.exited[:, request, column] == 0
        starts, ends = self.start[live, request, column], self.end[live, request, column]
        return [(int(a), int(b)) for a, b in zip(starts, ends)]

    def sms_used(self, *, working: bool = True) -> int:
        """Distinct SMs that ran working (or any) blocks; 0 when SM ids are not available."""
        sm = self.sm[(self.exited == 0) & (self.end > self.start)] if working else self.sm
        return len(torch.unique(sm[sm >= 0]))


def record_launch(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor | None, **arguments: Any
) -> tuple[torch.Tensor, LaunchRecord]:
    """`decode_attention` with the same arguments; also returns what each stage-1 block did (waits for the device)."""
    config: LaunchConfig = arguments["config"]
    group = q.shape[1] // k_cache.shape[2]
    row_blocks = cdiv(arguments.get("q_len", 1) * group, config.rows_used or config.rows)
    x = k_cache.shape[2] * row_blocks
    y = arguments["seq_lens"].shape[0] + (0 if config.listed else config.idle_requests)
    places, grid = config.num_splits * y, (x, y, config.num_splits)
    if config.listed:
        grid = (x, *list_grid(config.list_length or places))
    rows = places + (grid[1] * grid[2] if config.listed else 0)
    record = torch.full((rows, x, FIELDS), -1, dtype=torch.int64, device=q.device)
    out = decode_attention(q, k_cache, v_cache, record=record, **arguments)
    seen = record.cpu()
    fields = seen[:places].view(config.num_splits, y, x, FIELDS).unbind(-1)
    return out, LaunchRecord(grid, *fields, past=int((seen[places:, :, 2] == 1).sum()))

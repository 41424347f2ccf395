"""Several GPUs: processes that torchrun started divide the scenarios, and rank 0 gathers the results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from decodecalc.errors import InputError

PATIENCE = timedelta(hours=6)  # that ranks wait for the slowest


@dataclass(frozen=True)
class Ranks:
    """This process among `world`; local: its GPU on this machine."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Ranks:
        """RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them; one process without them."""
        env = os.environ if environ is None else environ
        given = [name for name in ("RANK", "WORLD_SIZE") if name in env]
        if len(given) < 2:
            return cls()
        try:
            rank, world, local = int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", env["RANK"]))
        except ValueError:
            raise InputError("RANK, WORLD_SIZE and LOCAL_RANK must be numbers, as torchrun sets them") from None
        if not 0 <= rank < world:
            raise InputError(f"RANK {rank} of WORLD_SIZE {world} does not exist")
        return cls(rank, world, local)

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the report."""
        return self.rank == 0

    def leave(self) -> None:
        """Ends the process group of a run that the ranks did together, once all have come so far. Threads of a group
        that is left when Python ends abort the process."""
        import gc

        import torch.distributed as dist

        if self.world == 1 or not dist.is_initialized():
            return
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()

    def gather(self, item: Any) -> Sequence[Any] | None:
        """The `item` of every rank at rank 0, None elsewhere. It uses TCP (gloo) and works without a GPU."""
        if self.world == 1:
            return [item]
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=PATIENCE)
        try:
            found: list[Any] | None = [None] * self.world if self.is_first else None
            dist.gather_object(item, found, dst=0)
            return found
        finally:
            dist.destroy_process_group()

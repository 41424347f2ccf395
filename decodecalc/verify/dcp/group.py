"""The ranks of a group: all in this process (simulated), or one in each process of torchrun.

Three ways merge the ranks' outputs: `ag_rs` and `a2a` as servers do (`analysis.exchange`), and `one_shot`, in which
every rank reads its heads from its peers' memory in one kernel (`decodecalc_kernels.merge_peers`): over NVLink, between
processes, through symmetric memory with multicast left off.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from decodecalc.keyshare import A2A, AG_RS
from decodecalc.verify.run.device import Device

if TYPE_CHECKING:
    import torch

    from decodecalc.verify.session.ranks import Ranks

ONE_SHOT = "one_shot"
PATIENCE = timedelta(minutes=10)
# NVLink's multicast stays off: it is not there on every machine, and servers do not count on it.
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


class RankGroup(Protocol):
    """What the proof asks of a group."""

    size: int
    """Ranks of the group."""
    mine: Sequence[int]
    """Ranks that this process computes."""
    ways: tuple[str, ...]
    """Ways of merging that run here."""
    how: str
    """What the exchange runs on, in words."""

    def merge(self, outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], way: str) -> torch.Tensor:
        """The merged output [tokens, heads, D] from the outputs and log-sum-exps of `mine`; on every process."""
        ...

    def collect(self, item: Any) -> list[Any]:
        """The `item` of every process, on every process."""
        ...


class SimulatedGroup:
    """All ranks in this process: collectives are copies in its memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.mine: Sequence[int] = range(size)
        self.ways: tuple[str, ...] = (AG_RS, A2A, ONE_SHOT)
        self.how = f"{size} ranks simulated in one process"

    def merge(self, outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], way: str) -> torch.Tensor:
        """See `RankGroup.merge`. The sum of `ag_rs` is taken rank by rank in the outputs' own type."""
        import torch

        from decodecalc_kernels import merge_outputs, merge_peers, scale_outputs

        states = torch.stack(list(lses))
        if way == AG_RS:
            total = scale_outputs(outs[0].clone(), states, 0)
            for rank in range(1, self.size):
                total = total + scale_outputs(outs[rank].clone(), states, rank)
            return total
        if way == A2A:
            return merge_outputs(torch.stack(list(outs)), states)
        addresses = [_addresses(tensors) for tensors in (outs, lses)]
        tokens, heads, width = outs[0].shape
        own = heads // self.size
        parts = [
            merge_peers(*addresses, outs[0].new_empty(tokens, own, width), heads=heads, first_head=rank * own)
            for rank in range(self.size)
        ]
        return torch.cat(parts, dim=1)

    def collect(self, item: Any) -> list[Any]:
        """One process."""
        return [item]


class ProcessRanks:
    """One rank in each process: torch.distributed, with NCCL on GPUs and gloo on CPUs."""

    def __init__(self, ranks: Ranks, device: Device) -> None:
        import torch.distributed as dist

        os.environ.update(MULTICAST_OFF)
        self.size = ranks.world
        self.mine: Sequence[int] = (ranks.rank,)
        self._rank, self._device = ranks.rank, device
        backend = "nccl" if device.is_cuda else "gloo"
        if not dist.is_initialized():
            dist.init_process_group(backend, timeout=PATIENCE)
        self.how = f"{backend} between {self.size} processes"
        self._symmetric = _symmetric(device)
        self.ways: tuple[str, ...] = (AG_RS, A2A, *((ONE_SHOT,) if self._symmetric else ()))
        self._objects = dist.new_group(backend="gloo", timeout=PATIENCE) if device.is_cuda else None

    def merge(self, outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], way: str) -> torch.Tensor:
        """See `RankGroup.merge`."""
        own = self.own_heads(outs[0], lses[0], way)  # [tokens, heads / ranks, D]
        found = _all_gathered(own.contiguous(), self.size)
        return found.transpose(0, 1).reshape(own.shape[0], -1, own.shape[2])

    def own_heads(self, out: torch.Tensor, lse: torch.Tensor, way: str) -> torch.Tensor:
        """This rank's heads of the merged output [tokens, heads / ranks, D], as a layer leaves them."""
        return {AG_RS: self._ag_rs, A2A: self._a2a, ONE_SHOT: self._one_shot}[way](out, lse)

    def gathered(self, q: torch.Tensor) -> torch.Tensor:
        """The queries [tokens, own heads, D] of all ranks [tokens, heads, D]."""
        found = _all_gathered(q, self.size)
        return found.transpose(0, 1).reshape(q.shape[0], -1, q.shape[2])

    def _ag_rs(self, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        from decodecalc_kernels import scale_outputs

        states = _all_gathered(lse, self.size)
        apart = _by_rank(scale_outputs(out.clone(), states, self._rank), self.size)
        own = torch.empty_like(apart[0])
        if self._device.is_cuda:
            dist.reduce_scatter_tensor(own, apart.flatten(0, 1))
        else:  # gloo has no reduce-scatter
            dist.all_reduce(apart)
            own.copy_(apart[self._rank])
        return own

    def _a2a(self, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        from decodecalc_kernels import merge_outputs

        outs, lses = _by_rank(out, self.size), _by_rank(lse[..., None], self.size)[..., 0].contiguous()
        size = outs[0].numel() * outs.element_size()
        packed = torch.cat([t.view(self.size, -1).view(torch.uint8) for t in (outs, lses)], dim=1)
        arrived = torch.empty_like(packed)
        dist.all_to_all_single(arrived, packed)
        return merge_outputs(
            arrived[:, :size].view(out.dtype).unflatten(1, outs.shape[1:]),
            arrived[:, size:].view(lse.dtype).unflatten(1, lses.shape[1:]),
        )

    def _one_shot(self, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return self._symmetric.merge(out, lse, self.size, self._rank)

    def collect(self, item: Any) -> list[Any]:
        """Over TCP."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item, group=self._objects)
        return found

    def close(self) -> None:
        """Ends the process group, when all processes have come so far: one that leaves early breaks its peers'
        connections."""
        import torch.distributed as dist

        self.collect(None)
        dist.destroy_process_group()


class _SymmetricMerge:
    """Outputs and log-sum-exps in memory that the peers can read, in two buffers that alternate from call to call.

    A rank passes the barrier of a call when all peers have written that call's buffer. It writes a buffer again two
    calls later, after the barrier of the call between them, which every peer enters when it has read the first. Written
    for torch.distributed._symmetric_memory of torch 2.6 and later; not run on two GPUs yet.
    """

    def __init__(self) -> None:
        self._buffers: dict[Any, Any] = {}
        self._turn = 0

    def merge(self, out: torch.Tensor, lse: torch.Tensor, size: int, rank: int) -> torch.Tensor:
        from decodecalc_kernels import merge_peers

        tokens, heads, width = out.shape
        key = (tokens, heads, width, out.dtype)
        if key not in self._buffers:
            self._buffers[key] = [self._buffer(out, lse, size) for _ in range(2)]
        mine_out, mine_lse, handle, addresses = self._buffers[key][self._turn % 2]
        self._turn += 1
        mine_out.copy_(out)
        mine_lse.copy_(lse)
        handle.barrier(channel=self._turn % 2)
        own = heads // size
        return merge_peers(*addresses, out.new_empty(tokens, own, width), heads=heads, first_head=rank * own)

    def _buffer(self, out: torch.Tensor, lse: torch.Tensor, size: int) -> Any:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as memory

        sizes = [t.numel() * t.element_size() for t in (out, lse)]
        block = memory.empty(sum(sizes), dtype=torch.uint8, device=out.device)
        handle = memory.rendezvous(block, dist.group.WORLD)
        starts = [handle.get_buffer(peer, (sum(sizes),), torch.uint8).data_ptr() for peer in range(size)]
        addresses = [
            torch.tensor([start + offset for start in starts], dtype=torch.int64, device=out.device)
            for offset in (0, sizes[0])
        ]
        mine = block[: sizes[0]].view(out.dtype).view(out.shape), block[sizes[0] :].view(lse.dtype).view(lse.shape)
        return (*mine, handle, addresses)


def _symmetric(device: Device) -> Any:
    """The one-shot exchange, where the GPUs share memory and torch has it; None elsewhere."""
    if not device.is_cuda:
        return None
    try:
        import torch.distributed._symmetric_memory  # noqa: F401
    except ImportError:
        return None
    return _SymmetricMerge()


def _all_gathered(mine: torch.Tensor, ranks: int) -> torch.Tensor:
    """The tensors of all ranks [ranks, ...]."""
    import torch
    import torch.distributed as dist

    found = torch.empty((ranks * mine.shape[0], *mine.shape[1:]), dtype=mine.dtype, device=mine.device)
    dist.all_gather_into_tensor(found, mine)
    return found.view(ranks, *mine.shape)


def _by_rank(out: torch.Tensor, ranks: int) -> torch.Tensor:
    """[tokens, heads, D] as [ranks, tokens, heads / ranks, D], contiguous."""
    tokens, heads, width = out.shape
    return out.view(tokens, ranks, heads // ranks, width).transpose(0, 1).contiguous()


def _addresses(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=tensors[0].device)

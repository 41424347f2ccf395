"""Timing shared by the kernel benchmarks: cells, layers with their own KV, CUDA graphs, a read-only stream.

Protocol: one CUDA graph holds several layers, each with its own KV (at least 8 times the L2 in total, 2 to 32 layers),
so that every layer's KV comes from DRAM as in a decode step; random data, shuffled pages; the median of replays, per
layer. Figures of different runs are not comparable; within a run, candidates take turns.
"""

from __future__ import annotations

import math
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from decodecalc import Batch, Geometry, KvCache, detect_gpu
from decodecalc.cost.launcher import launch_config
from decodecalc_kernels import LaunchConfig, Workspace, decode_attention, decode_attention_reference, list_splits

L2_MULTIPLE = 8
DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}  # fmt: skip
INT8_STEP = 1 / 32  # what an int8 cache counts in, so that four standard deviations fit


@dataclass
class State:
    """One cell's tensors: `kv` is a list of layers' (K, V), each [pages, page, kv_heads, head_dim]."""

    kv: list[tuple[torch.Tensor, torch.Tensor]]
    q: torch.Tensor  # [batch, q_heads, head_dim]
    out: torch.Tensor
    block_table: torch.Tensor  # [batch, pages per request] int32
    seq_lens: torch.Tensor  # [batch] int32
    scale: float = 1.0  # of keys and values


@dataclass(frozen=True)
class Cell:
    """One decode step of one layer to time."""

    q_heads: int
    kv_heads: int
    head_dim: int
    batch: int
    context: int
    page: int = 16
    dtype: str = "bf16"
    seq_lens: tuple[int, ...] = field(default=())

    @property
    def lens(self) -> tuple[int, ...]:
        """Keys of each request."""
        return self.seq_lens or (self.context,) * self.batch

    @property
    def kv_bytes(self) -> int:
        """K and V of all requests."""
        return 2 * self.kv_heads * self.head_dim * sum(self.lens) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.q_heads}/{self.kv_heads} B{self.batch} L{self.context} {self.dtype}"

    def allocate(self, layers: int | None = None) -> State:
        """Random tensors on the GPU; `layers` by the protocol unless given."""
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        layers = layers or max(2, min(32, math.ceil(L2_MULTIPLE * l2 / self.kv_bytes)))
        pages = [-(-n // self.page) for n in self.lens]
        shape = (sum(pages), self.page, self.kv_heads, self.head_dim)

        def random_cache() -> torch.Tensor:
            cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            if self.dtype == "int8":
                cache = (cache / INT8_STEP).round().clamp(-127, 127)
            return cache.to(DTYPES[self.dtype])

        q_dtype = torch.float16 if self.dtype == "fp16" else torch.bfloat16
        q = torch.randn(self.batch, self.q_heads, self.head_dim, device="cuda", dtype=q_dtype)
        table = torch.zeros(self.batch, max(pages), device="cuda", dtype=torch.int32)
        own = torch.arange(max(pages), device="cuda") < torch.tensor(pages, device="cuda")[:, None]
        table[own] = torch.randperm(sum(pages), device="cuda").int()
        lens = torch.tensor(self.lens, device="cuda", dtype=torch.int32)
        kv = [(random_cache(), random_cache()) for _ in range(layers)]
        return State(kv, q, torch.empty_like(q), table, lens, INT8_STEP if self.dtype == "int8" else 1.0)

    def reference(self, state: State) -> torch.Tensor:
        """Float64 output of the first layer."""
        k, v = state.kv[0]
        return decode_attention_reference(
            state.q, k, v, seq_lens=state.seq_lens, page_table=state.block_table, k_scale=state.scale,
            v_scale=state.scale,
        )[0]  # fmt: skip


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """‖out - reference‖ / ‖reference‖; NaN counts as infinite."""
    error = float((out.double() - reference).norm() / reference.norm())
    return error if error == error else math.inf


def ours(state: State, config: LaunchConfig, run: str = "both") -> Callable[[tuple[Any, Any]], Any]:
    """A call of our kernels for one layer's (K, V), scratch shared between layers."""
    batch, q_heads, head_dim = state.q.shape
    space = None if config.direct else Workspace.allocate(batch, q_heads, head_dim, config.num_splits, "cuda")
    entries = list_splits(config, state.seq_lens) if config.listed else None  # once a step, not with every layer

    def call(kv: tuple[Any, Any]) -> Any:
        return decode_attention(
            state.q, kv[0], kv[1], seq_lens=state.seq_lens, page_table=state.block_table, config=config,
            workspace=space, out=state.out, run=run, split_list=entries, k_scale=state.scale, v_scale=state.scale,
        )  # fmt: skip

    return call


class Graph:
    """Calls captured in one CUDA graph; `times` collects microseconds per call of each replay."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.count = len(calls)
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        # Not the torch.cuda.graph context: it collects garbage each time, which takes longer than the timing.
        with torch.cuda.stream(stream):
            calls[0]()
            torch.cuda.synchronize()
            self.graph.capture_begin()
            for call in calls:
                call()
            self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.times: list[float] = []

    def replay(self, times: int = 1, warm_up: int = 0) -> Graph:
        """Replay and record; the first `warm_up` replays are not recorded."""
        for i in range(warm_up + times):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.graph.replay()
            end.record()
            torch.cuda.synchronize()
            if i >= warm_up:
                self.times.append(start.elapsed_time(end) * 1e3 / self.count)
        return self

    @property
    def median_us(self) -> float:
        """Median microseconds per call."""
        return statistics.median(self.times)

    @property
    def spread(self) -> float:
        """(max - min) / median over the replays."""
        return (max(self.times) - min(self.times)) / self.median_us


def time_layers(state: State, call: Callable[[Any], Any], replays: int = 15) -> Graph:
    """One graph over all of the state's layers, replayed."""
    return Graph([partial(call, kv) for kv in state.kv]).replay(replays, warm_up=2)


def time_in_turns(calls: dict[str, Callable[[Any], Any]], kv: list[Any], replays: int, turns: int) -> dict[str, Graph]:
    """A graph over the layers `kv` for every call, replayed in turns."""
    graphs = {name: Graph([partial(call, layer) for layer in kv]) for name, call in calls.items()}
    for _ in range(turns):
        for graph in graphs.values():
            graph.replay(replays, warm_up=1)
    return graphs


@triton.jit  # type: ignore[untyped-decorator]
def read_kernel(a_ptr, b_ptr, out_ptr, blocks, BLOCK: tl.constexpr, UNROLL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Read two int32 buffers of `blocks` · BLOCK elements each once, with all programs, and keep their XOR."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    offsets = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.int32)
    for block in tl.range(program, blocks, programs, loop_unroll_factor=UNROLL):
        at = block.to(tl.int64) * BLOCK + offsets
        acc ^= tl.load(a_ptr + at) ^ tl.load(b_ptr + at)
    tl.store(out_ptr + program * BLOCK + offsets, acc)


def stream_read(state: State, programs: int, block: int = 4096, warps: int = 8) -> Callable[[Any], Any]:
    """A call that only reads a layer's K and V, contiguously."""
    sink = torch.empty(programs * block, dtype=torch.int32, device="cuda")

    def call(kv: tuple[torch.Tensor, torch.Tensor]) -> None:
        a, b = (t.view(-1).view(torch.int32) for t in kv)
        blocks = a.numel() // block
        read_kernel[(programs,)](a, b, sink, blocks, BLOCK=block, UNROLL=2, num_warps=warps)

    return call


def best_stream_us(state: State, sm_count: int, replays: int = 9) -> float:
    """The fastest read-only stream over a layer's KV, microseconds per layer."""
    candidates = [(n * sm_count, block, warps) for n, block, warps in
                  ((2, 4096, 8), (4, 4096, 8), (8, 2048, 4), (16, 2048, 4))]  # fmt: skip
    return min(time_layers(state, stream_read(state, *c), replays).median_us for c in candidates)


def default_launch(cell: Cell, num_splits: int | None = None) -> LaunchConfig:
    """What the package launches for a cell: the time model's choice, or the best of that many splits."""
    geo = Geometry(cell.q_heads, cell.kv_heads, cell.head_dim)
    batch = Batch(cell.lens)
    return launch_config(geo, batch, KvCache(cell.dtype, cell.page), detect_gpu(), num_splits=num_splits)


def gpu_state() -> dict[str, Any]:
    """Name, software, and the clocks and power right now."""
    query = "clocks.sm,clocks.mem,power.draw,temperature.gpu,driver_version"
    told = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True
    )
    p = torch.cuda.get_device_properties(0)
    return {
        "gpu": p.name, "sm_count": p.multi_processor_count, "l2_bytes": p.L2_cache_size,
        "torch": torch.__version__, "triton": triton.__version__, f"nvidia_smi {query}": told.stdout.strip(),
    }  # fmt: skip


PEER_CELLS = [
    Cell(q_heads, kv_heads, 128, batch, context)
    for q_heads, kv_heads in ((32, 8), (8, 1), (32, 32))
    for batch, context in (
        (1, 512),
        (1, 2560),
        (1, 8192),
        (1, 32768),
        (1, 131072),
        (4, 2560),
        (16, 2560),
        (64, 2560),
        (64, 8192),
    )
    if kv_heads * batch * context < 5_000_000
]

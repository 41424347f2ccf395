"""Microbenchmarks on a CUDA device: launches, streams, and the bundled kernel in shapes that show one cost at a time.

Every time is the median of several groups, per call, of CUDA graphs that are replayed back to back without waiting, so
that it contains no host time. KV comes from a pool much larger than the L2, and consecutive calls read different pages.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from decodecalc.analysis.traffic import PARTIAL_BYTES
from decodecalc.calibrate.derive import LONG, MANY, TILES, StageTimes, jumps, knots, wave_points
from decodecalc.cost.launcher import kernel_of_block
from decodecalc.cost.own_launch import STATE_SCALARS
from decodecalc.cost.parameters import Variant
from decodecalc.cost.variants import SPLIT
from decodecalc.intmath import cdiv, next_power_of_2, round_up

PAGE = 16
MLA_PAGE = 64  # the page size of the engines' latent caches
MLA_VALUE = 512
COLD_FACTOR = 2.5  # bytes between two reads of a page, in L2 sizes
FEWEST_CALLS, MOST_CALLS = 12, 512
POOL_BYTES = 3 << 30
GROUPS, GROUP_S = 5, 1.5e-3
MOST_REQUESTS = 3  # times the fewest requests, for an exact cut
MERGE_ROWS = (8, 32, 128, 512, 2048)
MERGE_SPLITS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
MERGE_HEADS = 8  # query heads of the merge probes
MOST_STATE_BYTES = 64 << 20  # of one merge probe: states beyond the L2 would be another benchmark
FULL_CUTS = 3  # ways in which blocks that fill all SMs alike are made
PROBE_SPLITS = 32  # of a split probe at most: more blocks come from more requests, so that the merge stays small
TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Sample:
    """Seconds per call. spread: (slowest - fastest group) / median."""

    seconds: float
    spread: float


@triton.jit
def _empty_kernel(x):  # type: ignore[no-untyped-def]
    if tl.program_id(0) == -1:
        tl.store(x, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _read_kernel(x, out, per_block, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each block adds up its own stretch of int32 words. The sum is stored only if it has an impossible value."""
    first = tl.program_id(0).to(tl.int64) * per_block
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for at in tl.range(0, per_block, BLOCK, num_stages=4):
        total += tl.load(x + first + at + i)
    if tl.sum(total) == 0x7EADBEEF:
        tl.store(out, 1)


def capture(calls: Sequence[Callable[[], Any]]) -> Any:
    """The calls as one CUDA graph. Every kernel in them must have been compiled before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    # The torch.cuda.graph context is not used: it collects garbage every time, which takes longer than the timing.
    with torch.cuda.stream(stream):
        calls[0]()
        torch.cuda.synchronize()
        graph.capture_begin()
        for call in calls:
            call()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def time_calls(calls: Sequence[Callable[[], Any]]) -> Sample:
    """Seconds per call of a graph of these calls, replayed back to back."""
    graph = capture(calls)
    once = _group(graph, 1)
    replays = max(2, min(200, int(GROUP_S / max(once, 1e-6))))
    times = [_group(graph, replays) / len(calls) for _ in range(GROUPS)]
    median = statistics.median(times)
    return Sample(median, (max(times) - min(times)) / median)


def _group(graph: Any, replays: int) -> float:
    """Seconds per replay. One replay runs before the clock starts, so that the device is busy from the beginning."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / replays


def launch_probes(sm_count: int) -> dict[str, Sample]:
    """Measures launch_graph_s, launch_block_s and launch_stream_s."""
    x = torch.zeros(1, dtype=torch.int32, device="cuda")
    large = 64 * sm_count

    def empty(blocks: int) -> Callable[[], Any]:
        return lambda: _empty_kernel[(blocks,)](x)

    one, many = time_calls([empty(1)] * 256), time_calls([empty(large)] * 64)
    times = []
    for _ in range(GROUPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(300):
            x.fill_(1)
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e-3 / 300)
    stream = statistics.median(times)
    return {
        "launch_graph_s": one,
        "launch_block_s": Sample((many.seconds - one.seconds) / (large - 1), many.spread),
        "launch_stream_s": Sample(stream, (max(times) - min(times)) / stream),
    }


READ_BLOCK = 1024  # words that a block of the read kernel loads at a time


def read_time(total_bytes: int, blocks: int, buffer: torch.Tensor, same: bool) -> tuple[int, Sample]:
    """(bytes read, time) of a read-only stream by this many blocks. same: they always read the same bytes; otherwise
    cold ones."""
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    words = max(total_bytes // 4 // blocks // READ_BLOCK, 1) * READ_BLOCK
    used = words * blocks
    places = 1 if same else max(1, buffer.numel() // used)
    calls = [
        lambda i=i: _read_kernel[(blocks,)](buffer[(i % places) * used :], out, words, BLOCK=READ_BLOCK, num_warps=4)
        for i in range(max(places, 16))
    ]
    return used * 4, time_calls(calls)


def memory_probes(sm_count: int, l2_bytes: int) -> dict[str, Sample]:
    """Measures hbm_sustained_bytes_per_s, l2_bytes_per_s and l2_capacity_bytes.

    Rates are the difference between two sizes, so that the cost of the launch drops out. The sustained rate is that of
    the best block count. The capacity is the largest buffer that repeated reads stream faster than the mean of both
    rates.
    """
    buffer = torch.randint(0, 1 << 30, ((4 << 30) // 4,), dtype=torch.int32, device="cuda")

    def marginal(blocks: int) -> Sample:
        (small, a), (large, b) = (read_time(n, blocks, buffer, False) for n in (256 << 20, 1 << 30))
        return Sample((large - small) / (b.seconds - a.seconds), max(a.spread, b.spread))

    hbm = max((marginal(k * sm_count) for k in (2, 4, 8)), key=lambda s: s.seconds)
    blocks = 4 * sm_count
    (small, a), (large, b) = (read_time(l2_bytes // n, blocks, buffer, True) for n in (12, 4))
    l2 = Sample((large - small) / (b.seconds - a.seconds), max(a.spread, b.spread))
    own = a.seconds - small / l2.seconds  # the launch's own cost
    held = large
    for share in range(5, 20):
        size, found = read_time(l2_bytes * share // 16, blocks, buffer, True)
        if size / max(found.seconds - own, 1e-9) > (hbm.seconds + l2.seconds) / 2:
            held = max(held, size)
    return {
        "hbm_sustained_bytes_per_s": hbm,
        "l2_bytes_per_s": l2,
        "l2_capacity_bytes": Sample(float(held), 1 / 16),
    }


class Pool:
    """Pages of K and V for one element type, two widths and a number of KV heads, for many layers.

    head_dim_v 0 stands for MLA, where the value is the first MLA_VALUE elements of the key.
    """

    def __init__(
        self, dtype: str, head_dim: int, head_dim_v: int, kv_heads: int = 1, pool_bytes: int = POOL_BYTES
    ) -> None:
        self.dtype, self.head_dim, self.kv_heads = dtype, head_dim, kv_heads
        self.v_dim = head_dim_v or MLA_VALUE
        kind = TORCH_TYPES[dtype]
        self.page = PAGE if head_dim_v else MLA_PAGE
        self.page_bytes = self.page * kv_heads * (head_dim + head_dim_v) * kind.itemsize
        self.pages = pool_bytes // self.page_bytes
        self.k = _random((self.pages, self.page, kv_heads, head_dim), kind)
        self.v = _random((self.pages, self.page, kv_heads, head_dim_v), kind) if head_dim_v else None
        self.l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size

    def table(self, lens: Sequence[int], shared: bool = False) -> torch.Tensor:
        """A block table [requests, pages]: random pages of one layer, or, with `equal`, those of one request for all
        requests.

        Every layer uses the same table over its own part of the pool (`layer`), as engines do. Rows are padded to 16
        entries, because Triton compiles strides that are multiples of 16 separately.
        """
        columns = [cdiv(n, self.page) for n in lens]
        need = columns[0] if shared else sum(columns)
        order = torch.randperm(need, device="cuda").int()
        table = torch.zeros((len(lens), round_up(max(columns), 16)), dtype=torch.int32, device="cuda")
        if len(set(columns)) == 1:
            table[:, : columns[0]] = order.view(-1, columns[0])
        else:
            for row, pages in zip(table, order.split(columns)):
                row[: len(pages)] = pages
        return table

    def layer(self, i: int, lens: Sequence[int], shared: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """K and V of layer i: its own stretch of the pool. Layers start again at the beginning when the pool is used
        up."""
        need = cdiv(lens[0], self.page) if shared else sum(cdiv(n, self.page) for n in lens)
        at = i % max(self.pages // need, 1) * need
        return self.k[at : at + need], None if self.v is None else self.v[at : at + need]

    def calls_for(self, lens: Sequence[int]) -> int:
        """Calls in a graph: enough that a replay finds nothing of the previous one in the L2."""
        cold = COLD_FACTOR * self.l2_bytes / (sum(cdiv(n, self.page) for n in lens) * self.page_bytes)
        return max(FEWEST_CALLS, min(MOST_CALLS, int(cold) + 1))


def _random(shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    if kind != torch.float8_e4m3fn:
        return torch.randn(shape, device="cuda", dtype=kind)
    out = torch.empty(shape, device="cuda", dtype=kind)
    step = max(1, (1 << 27) // (shape[1] * shape[2] * shape[3]))
    for i in range(0, shape[0], step):
        out[i : i + step] = torch.randn((min(step, shape[0] - i), *shape[1:]), device="cuda").to(kind)
    return out


def kernel_calls(
    pool: Pool,
    config: Any,
    lens: Sequence[int],
    q_heads: int,
    count: int,
    run: str = "both",
    shared: bool = False,
    split_values: Sequence[int] | None = None,
) -> list[Callable[[], Any]]:
    """`count` calls of the bundled kernel on requests of these lengths: `count` layers, each with its own KV."""
    from decodecalc_kernels import Workspace, decode_attention, list_splits

    requests, q_type = len(lens), torch.float16 if pool.dtype == "fp16" else torch.bfloat16
    assert q_heads % pool.kv_heads == 0
    q = torch.randn((requests, q_heads, pool.head_dim), device="cuda", dtype=q_type)
    out = torch.empty((requests, q_heads, pool.v_dim), device="cuda", dtype=q_type)
    on_device = torch.tensor(list(lens), dtype=torch.int32, device="cuda")
    space = None if config.direct else Workspace.allocate(requests, q_heads, pool.v_dim, config.num_splits, "cuda")
    if space is not None and run == "merge":
        space.out.zero_(), space.max.zero_(), space.sum.fill_(1.0)
    more: dict[str, Any] = {} if pool.v is not None else {"v_dim": pool.v_dim}
    if split_values is not None:
        more["split_values"] = torch.tensor(list(split_values), dtype=torch.int32, device="cuda")
    if config.listed:  # once a step, not with every layer
        more["split_list"] = list_splits(config, on_device, split_values=more.get("split_values"))
    table = pool.table(lens, shared)

    def call(k: torch.Tensor, v: torch.Tensor | None) -> Callable[[], Any]:
        return lambda: decode_attention(
            q, k, v, seq_lens=on_device, page_table=table, config=config, workspace=space, out=out, run=run, **more
        )

    return [call(*pool.layer(i, lens, shared)) for i in range(count)]


@contextmanager
def compiled_kernels() -> Iterator[list[Any]]:
    """Collects the compiled stage-1 kernels that are launched by calls inside the block."""
    from decodecalc_kernels.launch import stage1_kernels

    seen: list[Any] = []

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            found = original(*args, **options)
            seen.append(found)
            return found

        return run

    kernels = stage1_kernels()
    for kernel in kernels:
        kernel.run = watched(kernel.run)
    try:
        yield seen
    finally:
        for kernel in kernels:
            del kernel.run


def resident_slots(pool: Pool, variant: Variant, gpu: Any) -> int:
    """Blocks of this variant that one SM holds, from the compiled kernel's registers and shared memory."""
    from decodecalc.verify.run.residency import resident_blocks

    with compiled_kernels() as seen:
        probe = Probe(pool, variant)
        probe.calls(probe.cuts(2 * pool.kv_heads)[0], 1, count=1)[0]()
        torch.cuda.synchronize()
    compiled = seen[-1]
    compiled._init_handles()  # registers are known once the kernel is loaded
    found = resident_blocks(gpu, 32 * variant.warps, compiled.n_regs, compiled.metadata.shared)
    return max(found or 1, 1)


def unsplit_config(variant: Variant) -> Any:
    """The launch of one block per request and KV head."""
    from decodecalc_kernels import LaunchConfig

    rows = max(16, next_power_of_2(variant.rows))
    shape = {"tile_keys": variant.tile_keys, "rows": rows, "warps": variant.warps, "stages": variant.stages}
    return LaunchConfig(kernel=kernel_of_block(variant.warps), **shape)


def split_config(variant: Variant, splits: int, split_keys: int, rows: int, v_dim: int) -> Any:
    """The launch of splits of one length; rows: output rows of the merge (tokens x query heads)."""
    from decodecalc_kernels.blocks import merge_shape

    shape = merge_shape(splits, rows, v_dim)
    return unsplit_config(variant).replace(num_splits=splits, split_rule="size", split_value=split_keys, **shape)


class Cut(NamedTuple):
    """Equal requests, and splits of each."""

    requests: int
    splits: int

    @property
    def units(self) -> int:
        """Blocks of one KV head."""
        return self.requests * self.splits


class Probe:
    """Launches of equal blocks of one variant: unsplit ones over requests, split ones over requests and splits."""

    def __init__(self, pool: Pool, variant: Variant) -> None:
        self.pool, self.variant, self.heads = pool, variant, variant.rows * pool.kv_heads
        self.split = variant.path == SPLIT

    def cuts(self, blocks: int, most: int = 1) -> list[Cut]:
        """Up to `most` ways to make about this many blocks. None makes more, except where even the fewest possible are
        more."""
        units = max(blocks // self.pool.kv_heads, 1)
        if not self.split:
            return [Cut(units, 1)]
        fewest = cdiv(units, PROBE_SPLITS)
        # A curve is about block counts that fill SMs evenly: take an exact cut where there is one.
        exact = [r for r in range(fewest, MOST_REQUESTS * fewest + 1) if units % r == 0 and units // r > 1]
        return [Cut(r, max(units // r, 2)) for r in exact[:most] or [fewest]]

    def blocks(self, blocks: int) -> int:
        """How many blocks they really are."""
        return self.cuts(blocks)[0].units * self.pool.kv_heads

    def counts(self, sm_count: int, slots_per_sm: int) -> list[int]:
        """The counts nearest to `derive.knots` that can be made, and the first count after each of `derive.jumps`."""
        past = (itertools.count(n + 1) for n in jumps(sm_count, slots_per_sm))
        made = {next(m for m in above if self.blocks(m) == m) for above in past}
        return sorted(made | {self.blocks(n) for n in knots(sm_count, slots_per_sm)})

    def calls(self, cut: Cut, tiles: int, shared: bool = False, count: int = 0) -> list[Callable[[], Any]]:
        """Calls of both kernels (of stage 1 alone when unsplit): `count` calls, or as many as it takes to find nothing
        in the L2."""
        keys = tiles * self.variant.tile_keys
        config, lens = unsplit_config(self.variant), [cut.splits * keys] * cut.requests
        if self.split:
            config = split_config(self.variant, cut.splits, keys, cut.requests * self.heads, self.pool.v_dim)
        count = count or (FEWEST_CALLS if shared else self.pool.calls_for(lens))
        return kernel_calls(self.pool, config, lens, self.heads, count, shared=shared)

    def merge_s(self, cut: Cut, merge_of: Callable[[int, int], float]) -> float:
        """Seconds of the merge of these launches, by merge_of(output rows, splits)."""
        return merge_of(cut.requests * self.heads, cut.splits) if self.split else 0.0


def stage_probes(
    pool: Pool, variant: Variant, sm_count: int, slots_per_sm: int, merge_of: Callable[[int, int], float]
) -> tuple[StageTimes, float]:
    """Times of stage 1 that `derive.derive_stage` needs, and the largest spread among them.

    merge_of(rows, splits) gives the seconds of a merge. Split probes run the merge as well: as in a real step, the
    blocks of the next layer reach their SMs while it runs.
    """
    probe = Probe(pool, variant)
    spreads: list[float] = []

    def seconds(blocks: int, tiles: int) -> float:
        # Where all SMs get equally many blocks, one block in a wrong place shows, and what the last merge leaves free
        # decides about that.
        full = blocks % sm_count == 0 and blocks > sm_count
        times = []
        for cut in probe.cuts(blocks, FULL_CUTS if full else 1):
            found = time_calls(probe.calls(cut, tiles))
            spreads.append(found.spread)
            times.append(found.seconds - probe.merge_s(cut, merge_of))
        return statistics.median(times)

    counts = probe.counts(sm_count, slots_per_sm)
    waves = [(probe.blocks(n), t) for n, t in wave_points(slots_per_sm * sm_count)]
    found = StageTimes(
        slots=slots_per_sm * sm_count,
        by_blocks={(n, t): seconds(n, t) for n in counts for t in TILES},
        waves={(n, t): seconds(n, t) for n, t in waves},
    )
    return found, max(spreads)


def shared_tile(pool: Pool, variant: Variant, blocks: int) -> tuple[float, float]:
    """Seconds of one more tile in each of this many unsplit blocks: when they read their own keys, and when all read
    the same."""
    probe = Probe(pool, variant)

    def slope(shared: bool) -> float:
        many, long = (time_calls(probe.calls(probe.cuts(blocks)[0], t, shared)).seconds for t in (MANY, LONG))
        return (long - many) / (LONG - MANY)

    return slope(False), slope(True)


def merge_probes(pool: Pool) -> dict[tuple[int, int], float]:
    """Seconds of the merge alone, back to back and launch included, by (output rows, splits)."""
    from decodecalc_kernels import LaunchConfig
    from decodecalc_kernels.blocks import merge_shape

    found = {}
    for rows in MERGE_ROWS:
        for splits in MERGE_SPLITS:
            state_bytes = rows * splits * (pool.v_dim + STATE_SCALARS) * PARTIAL_BYTES
            if splits > MERGE_SPLITS[1] and state_bytes > MOST_STATE_BYTES:
                continue
            shape = merge_shape(splits, rows, pool.v_dim)
            config = LaunchConfig(num_splits=splits, split_rule="size", split_value=pool.page, **shape)
            calls = kernel_calls(pool, config, [splits * pool.page] * (rows // MERGE_HEADS), MERGE_HEADS, 64, "merge")
            found[rows, splits] = time_calls(calls).seconds
    return found

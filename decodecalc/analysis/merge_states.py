"""merge-states: what it costs to combine attention states of different launches, or of different GPUs.

A state is an output vector and a log-sum-exp for one (token, query head). Two states over disjoint keys merge into
that of their union, in any order; unlike the merge kernel of a split launch, these merges combine whole launches:

- cascade: keys that all requests share (a system prompt) are attended once for the whole batch, the rest per request,
  and a pair merge joins the two;
- decode context parallelism: the keys of every request are spread over R ranks, each attends its share with all query
  heads, and the R states of every (token, head) are combined over the interconnect.

Everything here counts bytes and launches of one layer, and divides by a bandwidth where one is given: times are
transfer times, without launch overhead. Sources: vLLM 0.33.0 vllm/v1/attention/ops/triton_merge_attn_states.py,
vllm/v1/attention/ops/dcp.py (cp_lse_ag_out_rs, dcp_a2a_lse_reduce), vllm/v1/attention/backends/utils.py
(get_dcp_local_seq_lens). Ring collectives are assumed to move (R - 1) / R of a buffer per rank and direction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.batch import Batch
from decodecalc.errors import InputError, UnknownNameError
from decodecalc.geometry import Geometry, check_count
from decodecalc.kvcache import KvCache

LSE_BYTES = 4  # log-sum-exps are fp32 in every engine
MAX_RANKS = 1 << 10
METHODS = ("pairwise", "all-gather", "lse-all-gather", "all-to-all")


@dataclass(frozen=True, slots=True)
class PairMerge:
    """Merges of two states for every (token, query head), one launch each; bytes over all `launches`."""

    launches: int
    grid: tuple[int, int]
    read_bytes: int
    written_bytes: int
    merge_s: float | None

    @property
    def total_bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.written_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the total."""
        return {**asdict(self), "grid": list(self.grid), "total_bytes": self.total_bytes}


@dataclass(frozen=True, slots=True)
class Cascade:
    """A shared prefix attended once, against the same step without cascade.

    launches: attention over the prefix, attention over the suffixes, merge; each of the first two may split by itself.
    saved_s: transfer time of the keys that are not read again, less that of the merge; negative when it does not pay.
    """

    shared_keys: int
    suffix_keys: tuple[int, ...]
    kv_read_bytes: int
    kv_read_bytes_without: int
    merge: PairMerge
    launches: int
    saved_bytes: int
    saved_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested."""
        return {**asdict(self), "suffix_keys": list(self.suffix_keys), "merge": self.merge.to_dict()}


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """Keys spread over `ranks`, states combined by `method`. Bytes and launches are those of one rank.

    local_keys[rank][r]: keys of request r on that rank. kv_read_bytes: of the fullest rank. query_gather_bytes:
    received so that a rank holds every query head. received_bytes: states that arrive for the merge.
    collectives: collective operations, the query gather included. interconnect_s: both transfers at the given
    bandwidth, plus a latency for each step of each collective.
    """

    ranks: int
    method: str
    local_keys: tuple[tuple[int, ...], ...]
    kv_read_bytes: int
    state_bytes_per_token: int
    query_gather_bytes: int
    received_bytes: int
    collectives: int
    merge_launches: int
    merge_bytes: int
    interconnect_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "local_keys": [list(keys) for keys in self.local_keys]}


def pair_merge(
    geo: Geometry,
    tokens: int,
    *,
    launches: int = 1,
    element_bytes: int = 2,
    writes_lse: bool = False,
    hbm_bytes_per_s: float | None = None,
) -> PairMerge:
    """`launches` merges of two states for `tokens` query tokens, outputs of `element_bytes`.

    Each reads two outputs and two log-sum-exps and writes one output, and its log-sum-exp too where another merge
    follows. Grid (tokens, query heads), as vLLM's Triton kernel.

    >>> pair_merge(Geometry(32, 8, 128), tokens=1).total_bytes
    24832
    """
    tokens, launches = check_count("tokens", tokens), check_count("launches", launches)
    rows = tokens * geo.q_heads * launches
    output, lse = geo.v_dim * element_bytes, LSE_BYTES
    read, written = rows * 2 * (output + lse), rows * (output + lse * writes_lse)
    return PairMerge(
        launches,
        (tokens, geo.q_heads),
        read,
        written,
        None if hbm_bytes_per_s is None else (read + written) / hbm_bytes_per_s,
    )


def cascade(
    geo: Geometry,
    batch: Batch,
    shared_keys: int,
    *,
    kv: KvCache | None = None,
    element_bytes: int = 2,
    hbm_bytes_per_s: float | None = None,
) -> Cascade:
    """Attend the first `shared_keys` keys of all requests once, the rest per request, and merge.

    The prefix is counted once: its blocks hold many requests' queries, and repeated walks of it hit the L2. Raises
    InputError where a request is not longer than the prefix or the geometry has a sliding window.
    """
    shared_keys = check_count("shared_keys", shared_keys)
    if geo.window is not None:
        raise InputError("cascade needs full attention: with a sliding window requests do not share their keys")
    if min(batch.seq_lens) <= shared_keys:
        raise InputError(
            f"shared_keys ({shared_keys}) must be less than the shortest request ({min(batch.seq_lens)} keys): every "
            f"request has keys of its own, its new tokens at least"
        )
    per_key = (kv or KvCache()).bytes_per_key(geo)
    suffix = tuple(n - shared_keys for n in batch.seq_lens)
    read = round((shared_keys + sum(suffix)) * per_key)
    without = round(batch.total_keys * per_key)
    merge = pair_merge(geo, batch.query_tokens, element_bytes=element_bytes, hbm_bytes_per_s=hbm_bytes_per_s)
    saved = without - read - merge.total_bytes
    return Cascade(
        shared_keys,
        suffix,
        read,
        without,
        merge,
        launches=3,
        saved_bytes=saved,
        saved_s=None if hbm_bytes_per_s is None else saved / hbm_bytes_per_s,
    )


def local_seq_lens(seq_lens: tuple[int, ...], ranks: int, interleave: int = 1) -> tuple[tuple[int, ...], ...]:
    """Keys of each request on each rank, dealt in runs of `interleave` keys (vLLM: cp_kv_cache_interleave_size).

    >>> local_seq_lens((10,), ranks=4)
    ((3,), (3,), (2,), (2,))
    """
    ranks, interleave = check_count("ranks", ranks, high=MAX_RANKS), check_count("interleave", interleave)
    out = []
    for rank in range(ranks):
        keys = []
        for n in seq_lens:
            base = n // interleave // ranks * interleave
            keys.append(base + min(max(n - base * ranks - rank * interleave, 0), interleave))
        out.append(tuple(keys))
    return tuple(out)


def context_parallel(
    geo: Geometry,
    batch: Batch,
    ranks: int,
    *,
    method: str = "all-gather",
    kv: KvCache | None = None,
    interleave: int = 1,
    element_bytes: int = 2,
    gather_queries: bool = True,
    interconnect_bytes_per_s: float | None = None,
    step_latency_s: float = 0.0,
) -> ContextParallel:
    """Spread every request's keys over `ranks` and combine the states. `geo` has all query heads of the group.

    method: `pairwise` passes fp32 states round a ring and merges after each of R - 1 steps; `all-gather` gives every
    rank all fp32 states, (D + 1) * 4 * q_heads bytes per token from each other rank, and merges R of them in one
    launch; `lse-all-gather` gathers log-sum-exps, scales the local output and reduce-scatters it over the heads
    (vLLM's default); `all-to-all` sends each rank the outputs of its heads with their log-sum-exps packed behind them.
    The last two need q_heads divisible by ranks, and leave each rank with its share of the heads.
    interconnect_bytes_per_s is of one direction; step_latency_s is paid R - 1 times per collective.
    """
    ranks = check_count("ranks", ranks, low=2, high=MAX_RANKS)
    if method not in METHODS:
        raise UnknownNameError("context-parallel method", method, METHODS)
    scattered = method in ("lse-all-gather", "all-to-all")
    if scattered and geo.q_heads % ranks:
        raise InputError(f"{method} scatters query heads: {geo.q_heads} heads cannot be spread over {ranks} ranks")
    if geo.window is not None:
        raise InputError("context parallelism spreads all keys of a request: sliding-window layers are not spread")
    tokens, heads, dim = batch.query_tokens, geo.q_heads, geo.v_dim
    rows = tokens * heads
    local = local_seq_lens(batch.seq_lens, ranks, interleave)
    state = (dim + 1) * 4
    output = dim * element_bytes
    others = ranks - 1
    if method in ("pairwise", "all-gather"):
        received = others * rows * state
        launches = others if method == "pairwise" else 1
        merge_bytes = rows * (others * 3 * state if method == "pairwise" else ranks * state + output)
        collectives = 1
    elif method == "lse-all-gather":
        received = others * rows * LSE_BYTES + others * rows * output // ranks
        launches = 1  # the local output is scaled in place; the reduce-scatter adds
        merge_bytes = rows * (2 * output + (ranks + 1) * LSE_BYTES)
        collectives = 2
    else:
        packed = output + LSE_BYTES
        received = others * rows * packed // ranks
        launches = 2  # pack, and unpack with the merge of R states
        merge_bytes = rows * (output + LSE_BYTES + packed) + rows * packed + rows // ranks * output
        collectives = 1
    queries = others * tokens * heads * geo.head_dim * element_bytes // ranks if gather_queries else 0
    collectives += gather_queries
    seconds = None
    if interconnect_bytes_per_s is not None:
        seconds = (queries + received) / interconnect_bytes_per_s + collectives * others * step_latency_s
    return ContextParallel(
        ranks,
        method,
        local,
        round(max(map(sum, local)) * (kv or KvCache()).bytes_per_key(geo)),
        state_bytes_per_token=heads * state,
        query_gather_bytes=queries,
        received_bytes=received,
        collectives=collectives,
        merge_launches=launches,
        merge_bytes=merge_bytes,
        interconnect_s=seconds,
    )

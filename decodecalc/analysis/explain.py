"""Explains one layer of one decode step, step by step: every formula is shown with its values.

All numbers come from the plan and from the other analyses, so the explanation cannot contradict what the commands
print.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.analysis.exchange import exchange
from decodecalc.analysis.occupancy import occupancy
from decodecalc.analysis.paging import paging
from decodecalc.analysis.roofline import roofline, tile_work
from decodecalc.analysis.traffic import traffic
from decodecalc.intmath import cdiv
from decodecalc.launch.plan import MERGES, KernelLaunch, LaunchPlan
from decodecalc.units import counted, human_bytes, human_rate, in_number


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One numbered step: a title, then lines of text in which each formula shows its numbers."""

    number: int
    title: str
    lines: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "lines": list(self.lines)}


def explain(plan: LaunchPlan, layers: int = 1, word_for_split: str = "split") -> tuple[ExplainedStep, ...]:
    """The steps that explain `plan`, for a model with `layers` layers of this kind."""
    told = (
        ("Inputs", _inputs(plan)),
        ("Why one block per KV head starves the GPU", _starve(plan)),
        ("The engine's gates", _gates(plan)),
        ("The grid", _grid(plan)),
        ("Where each split starts and ends", _ranges(plan, word_for_split)),
        ("One tile of one block", _tile(plan)),
        ("Paging", _paging(plan)),
        ("Partial states", _partials(plan)),
        ("The merge", _merge(plan)),
        ("Bytes and FLOP of the layer", _bytes(plan)),
        ("What the ranks exchange", _ranks(plan)),
        ("One token over all layers", _token(plan, layers)),
        ("Reproducibility", _bits(plan)),
    )
    kept = [(title, lines) for title, lines in told if lines]
    return tuple(
        ExplainedStep(i, title, tuple(map(in_number, lines))) for i, (title, lines) in enumerate(kept, start=1)
    )


def _inputs(plan: LaunchPlan) -> list[str]:
    g, b = plan.geometry, plan.batch
    lens = f"{b.size} x {b.seq_lens[0]}" if b.is_uniform else ", ".join(map(str, b.seq_lens[:8]))
    window = f", window {g.window}" if g.window else ""
    return [
        f"{g.q_heads} query heads, {g.kv_heads} KV heads: group g = {g.q_heads} / {g.kv_heads} = {g.group} ({g.kind})",
        f"key width {g.head_dim}, value width {g.v_dim}{window}; KV {plan.kv.dtype} ({plan.kv.element_bytes:g} B), "
        f"pages of {plan.kv.page_size}",
        f"keys per request: {lens}; query tokens per request: {b.max_q_len}",
        *_gathered(plan),
        f"{plan.gpu.name}: {plan.gpu.sm_count} SMs"
        + (f", {human_rate(plan.gpu.hbm_bytes_per_s)}" if plan.gpu.hbm_bytes_per_s else ""),
        f"policy: {plan.engine} {plan.version}",
    ]


def _gathered(plan: LaunchPlan) -> list[str]:
    """What a sparse layer reads, and what it selects that from."""
    gather, contexts = plan.geometry.gather, plan.batch.contexts
    if gather is None or contexts is None:
        return []
    n, moved = max(contexts), traffic(plan)
    source = f"{gather.candidates(n)} entries of {gather.compress} tokens each" if gather.compress else f"{n} keys"
    chosen = f"{gather.listed(n)} of {source}" + (f" and the nearest {gather.near(n)} keys" if gather.window else "")
    return [
        f"this is a sparse layer: a query token of the longest request reads {chosen}",
        f"the indexer reads {human_bytes(moved.indexer_read_bytes)} of index keys to select them and leaves a list of "
        f"{human_bytes(moved.index_list_bytes)}",
    ]


def _ranks(plan: LaunchPlan) -> list[str]:
    """How keys are divided over ranks, and what that costs; nothing where they are not."""
    found, share = exchange(plan), plan.geometry.share
    if found is None or share is None:
        return []
    n = max(plan.batch.contexts or plan.batch.seq_lens)
    local = share.all_ranks(n)
    run, ranks = share.interleave, share.ranks
    lines = [
        f"{n} keys of the longest request in runs of {run} on {ranks} ranks: {', '.join(map(str, local[:8]))}"
        + (", …" if ranks > 8 else "")
        + f"; rank 0 has {n} // {run} // {ranks} x {run} = {n // run // ranks * run} and its part of the rest",
        f"a rank brings {found.own_heads} query heads and computes {found.gathered_heads}; with w_r = exp(lse_r - lse) "
        "and lse = log sum exp(lse_r) the output of a head is the sum of w_r x output_r over the ranks",
    ]
    for c in found.collectives:
        lines.append(
            f"{c.kind} of the {c.what}: a buffer of {c.buffer_bytes} B, of which a rank receives "
            f"({ranks} - 1) / {ranks} = {c.received_bytes} B"
        )
    lines += [f"kernel: {kernel.what} ({kernel.moved_bytes} B)" for kernel in found.kernels]
    return [*lines, f"{found.launches} launches a layer beside the attention"]


def _starve(plan: LaunchPlan) -> list[str]:
    o = occupancy(plan)
    return [
        "a decode step has one query token per sequence, so only (request, KV head) pairs can run in parallel:",
        f"without splits {counted(o.unsplit_blocks, 'block')} would have work, for {o.sm_count} SMs: "
        f"{o.unsplit_blocks} / {o.sm_count} = {_pct(min(o.unsplit_blocks, o.sm_count) / o.sm_count)} of the SMs",
        f"S* = ceil({o.sm_count} / {o.unsplit_blocks}) = {o.s_star} splits would cover them "
        f"({o.s_star} x {o.unsplit_blocks} = {o.blocks_at_s_star} blocks); S* counts blocks, not time",
    ]


def _gates(plan: LaunchPlan) -> list[str]:
    lines = [f"{'passed' if gate.passed else 'failed'}  {gate.name}: {gate.reason}" for gate in plan.gates]
    return [*lines, f"path: {plan.path}"]


def _grid(plan: LaunchPlan) -> list[str]:
    return [_kernel(k) for k in plan.kernels] + [
        f"stage 1 covers min({plan.live_blocks}, {plan.gpu.sm_count}) / {plan.gpu.sm_count} = "
        f"{_pct(occupancy(plan).sm_coverage)} of the SMs"
    ]


def _kernel(kernel: KernelLaunch) -> str:
    grid = " x ".join(map(str, kernel.grid))
    threads = f", {kernel.threads} threads each" if kernel.threads else ""
    blocks = f"{counted(kernel.launched_blocks, 'block')}, {kernel.live_blocks} live"
    return f"{kernel.role}: {kernel.name} ({grid}) = {blocks}{threads}"


def _ranges(plan: LaunchPlan, word: str) -> list[str]:
    s, longest = plan.splits, plan.batch.seq_lens.index(plan.batch.max_seq_len)
    keys = s.keys[longest]
    called = "" if word == "split" else f" (the engine calls a split {word})"
    lines = [
        f"splits of the longest request: {s.requested[longest]} requested, {s.launched} launched, "
        f"{s.live[longest]} live{called}",
    ]
    if not keys:
        return [*lines, "the request has no keys, so there is nothing to read"]
    first, last = keys[0], keys[-1]
    width, dealt = s.key_counts(longest)[0], s.interleave_keys
    if dealt is not None and len(keys) > 1:
        lines.append(
            f"tiles of {dealt} keys are dealt to the {len(keys)} splits in turn: split 0 takes every {len(keys)}th "
            f"tile from key {first[0]} on, {width} keys in all, and split {len(keys) - 1} "
            f"{s.key_counts(longest)[-1]} keys from key {last[0]} on"
        )
        return lines + _idle(plan, longest)
    lines.append(
        f"split 0 walks keys {first[0]}-{first[1] - 1}: {width} keys = {cdiv(width, plan.tile_keys)} tiles of "
        f"{plan.tile_keys}"
    )
    if len(keys) > 1:
        lines.append(f"split {len(keys) - 1} walks keys {last[0]}-{last[1] - 1}: {last[1] - last[0]} keys")
    return lines + _idle(plan, longest)


def _idle(plan: LaunchPlan, longest: int) -> list[str]:
    """Splits of the longest request that have nothing to do."""
    s, lines = plan.splits, []
    idle = s.launched - s.live[longest]
    if idle > 0 and plan.is_split:
        lines.append(f"{idle} launched splits have no keys and return at once (early exit)")
    if s.working[longest] < s.live[longest]:
        lines.append(
            f"{s.live[longest] - s.working[longest]} live splits lie outside the window and write neutral partials"
        )
    return lines


def _tile(plan: LaunchPlan) -> list[str]:
    t, g = tile_work(plan), plan.geometry
    widths = f"({g.head_dim} + {g.v_dim})"
    return [
        f"a tile has {t.rows} rows, of which {t.live_rows} hold a query: {_pct(t.wasted_row_share)} of the tensor-core "
        "work has no use, which costs nothing while the kernel is memory-bound",
        f"K and V of {t.keys} keys of one KV head take {t.keys} x "
        + (f"{g.head_dim}" if g.mla else widths)
        + f" x {plan.kv.element_bytes:g} B = {t.kv_bytes:g} B",
        f"useful FLOP: {t.live_rows} x {t.keys} x 2 x {widths} = {t.flop}; executed FLOP: {t.executed_flop}",
    ]


def _paging(plan: LaunchPlan) -> list[str]:
    p, longest = paging(plan), plan.batch.max_seq_len
    return [
        f"block table: ceil({longest} / {p.page_size}) = {p.table_entries} ids x 4 B = {p.table_bytes} B per request",
        f"a tile of {plan.tile_keys} keys needs {counted(p.ids_per_tile, 'page id')}; up to {p.run_bytes:g} B of it "
        "are contiguous in memory",
        f"the table is {_pct(p.table_share)} of the keys and values of one head",
    ]


def _partials(plan: LaunchPlan) -> list[str]:
    if not plan.is_split:
        return ["one block walks all keys of a request, so it writes the output itself and no partial state"]
    t, g = traffic(plan), plan.geometry
    states, tokens = max(plan.partial_splits), plan.batch.query_tokens
    if not states:
        return ["partial states do not pass through memory"]
    extra = plan.state_values - g.v_dim
    what = "a running max and a running sum" if extra >= 2 else "a log-sum-exp"
    written = f"an output vector and {what} in fp32: ({g.v_dim} + {extra}) x 4 B ="
    if extra < 0:
        written = "a 16-bit output vector with its fp32 softmax statistics:"
    kind = "live splits" if states == max(plan.splits.live) else "splits"
    return [
        f"each of the {kind} writes {written} {t.partial_state_bytes} B",
        f"per (token, query head): {states} {kind} x {t.partial_state_bytes} B = {states * t.partial_state_bytes} B",
        f"for {counted(tokens, 'query token')} x {counted(g.q_heads, 'query head')} {t.partial_written_bytes} B are "
        "written and read back",
        f"all {plan.splits.launched} launched splits would take {t.partial_allocated_bytes} B (the engine allocates "
        f"{plan.scratch_bytes} B of scratch)",
    ]


def _merge(plan: LaunchPlan) -> list[str]:
    if plan.merge_in is None and plan.merge is None:
        return ["nothing is split, so nothing is merged"]
    t = traffic(plan)
    if plan.merge is None:
        return [
            f"{MERGES[str(plan.merge_in)]}, so no merge kernel is launched",
            f"traffic both ways {t.partial_traffic_bytes} B = {_pct(t.partial_share)} of the KV bytes",
        ]
    return [
        "m is the largest of the splits' maxima; each output and sum is scaled by exp(m_i - m); the scaled "
        "ones are added and divided once; empty splits have weight 0",
        _kernel(plan.merge),
        f"traffic both ways {t.partial_traffic_bytes} B = {_pct(t.partial_share)} of the KV bytes; most of it hits L2, "
        "so the merge costs little more than its launch",
    ]


def _bytes(plan: LaunchPlan) -> list[str]:
    t, r, g = traffic(plan), roofline(plan), plan.geometry
    width = f"{g.head_dim}" if g.mla else f"({g.head_dim} + {g.v_dim})"
    lines = [
        f"KV read: visible keys x {g.kv_heads} x {width} x {plan.kv.element_bytes:g} B = {t.kv_read_bytes} B",
        f"FLOP: {r.flop}; intensity {r.flop} / {t.kv_read_bytes} = {r.intensity_flop_per_byte:.3g} FLOP per byte",
    ]
    if r.ridge_flop_per_byte and r.memory_bound_factor:
        bound = "memory" if r.memory_bound_factor > 1 else "compute"
        lines.append(
            f"ridge of {plan.gpu.name} ({r.peak_dtype}): {r.ridge_flop_per_byte:.0f} FLOP per byte, "
            f"{r.memory_bound_factor:.3g} times the intensity: the layer is {bound}-bound"
        )
    if t.kv_reads_per_key > 1.001:
        lines.append(f"blocks ask for each key {t.kv_reads_per_key:.3g} times: {t.kv_requested_bytes} B requested")
    return lines


def _token(plan: LaunchPlan, layers: int) -> list[str]:
    t, found = traffic(plan), exchange(plan)
    total = layers * t.kv_read_bytes
    return [
        f"{layers} layers x {t.kv_read_bytes} B = {total} B of KV ({human_bytes(total)})",
        f"{layers} x {t.partial_traffic_bytes} B = {layers * t.partial_traffic_bytes} B of partial states",
        f"{layers} layers x {len(plan.kernels)} kernels = {layers * len(plan.kernels)} launches",
        *(
            []
            if found is None
            else [f"{layers} x {found.launches} = {layers * found.launches} launches of the exchange"]
        ),
    ]


def _bits(plan: LaunchPlan) -> list[str]:
    why = {
        "invariant": "a request always has one split, so it gets the same bits alone and in any batch",
        "tile-dependent": "the splits are fixed, so a request gets the same bits among requests of as many query "
        "tokens; the tile follows the query tokens of the whole launch, so a neighbour with more can change bits",
        "fixed size": "the split length is fixed, so the split count depends on the request's own length only",
        "fixed count": "the split count is the same in any batch, but the boundaries move as the request grows",
        "batch-dependent": "the splits depend on the other requests of the batch, and fp32 addition is not associative",
    }
    return [f"{plan.determinism}: {why.get(plan.determinism, 'see the engine page')}"]


def _pct(share: float) -> str:
    return f"{100 * share:.3g} %"

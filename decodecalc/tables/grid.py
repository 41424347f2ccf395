"""Rows and columns of `grid`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.invariance import invariant_option, invariant_plan
from decodecalc.analysis.occupancy import first_split_change, occupancy
from decodecalc.analysis.traffic import traffic
from decodecalc.engines.registry import ALL, SERVED_HERE, engine_names
from decodecalc.launch.plan import LaunchPlan
from decodecalc.scenario import Planned, Refusal
from decodecalc.tables.memory import capacity_notes
from decodecalc.tables.table import Column, Table, cell, grid_text, percent, summary
from decodecalc.tables.text import because

if TYPE_CHECKING:
    from decodecalc.request import Request

NOTES = (
    "splits asked is the split count that the engine's rule asks for, splits launched is the count that the grid has, "
    "and splits live is the count of those that have keys to read.",
    "coverage is the share of the SMs that get a block with keys to compute on. S* is the smallest split count whose "
    "first wave covers every SM; it need not be the fastest. S_opt is the count of least predicted time.",
)


def grid_table(request: Request) -> Table:
    """Every plan of the request as one row; engines that refuse the scenario come last, with the reason."""
    s = request.scenarios
    cases: list[int] = []
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for item in s.plans():
        if isinstance(item, Refusal):
            refused.append(_refused_row(item, s.gpu.sm_count))
        else:
            cases.append(item.case)
            rows.append(_row(item))
    _mark_defaults(request, rows)
    if len(s.engines) > 1:
        ranked = sorted(zip(cases, rows), key=lambda pair: (pair[0], _place_in_table(pair[1])))
        rows = [r for _, r in ranked]
    notes = [*NOTES, *capacity_notes(request)]
    if any(r["default_of"] for r in rows):
        notes.append("default of names the servers whose newest release chooses this engine here by itself.")
    notes += _unplanned(request) + _further(request)
    notes += _flips(request, rows) if len(s.engines) <= 2 else []
    if len(set(cases)) == 1:
        notes += _rereads(rows) + _extra_kernels(rows) + _invariance(rows)
    if len(rows) <= 4 and len(s.engines) <= 2:
        notes += [f"{r['engine']}: condition {g['name']} {_mark(g)}: {g['reason']}" for r in rows for g in r["gates"]]
    notes += dict.fromkeys(f"not shown: {because(r['engine'], r['gates'][0]['reason'])}" for r in refused)
    return Table("grid", request.inputs, rows + refused, _columns(rows), request.heading, notes, shown=rows)


def _place_in_table(row: dict[str, Any]) -> tuple[bool, bool, float]:
    """What a server was asked for comes first, then what servers run by themselves, then the rest by coverage."""
    return not row["asked"], not row["default_of"], -row["sm_coverage"]


def _mark(gate: dict[str, Any]) -> str:
    return "holds" if gate["passed"] else "does not hold"


def _mark_defaults(request: Request, rows: list[dict[str, Any]]) -> None:
    """Say in every row which servers run its engine by themselves, and whether --server asked for it."""
    from decodecalc.servers.policies import marks

    s = request.scenarios
    found = marks(s.place) if s.place is not None else {}
    first = set(s.first)
    for r in rows:
        own = found.get((r["layer_group"], r["engine"]), [])
        r["default_of"] = [m.title if m.version == r["version"] else f"{m.title} (@{m.version})" for m in own]
        r["asked"] = (r["engine"], r["version"]) in first


def _unplanned(request: Request) -> list[str]:
    """Servers whose own choice is none of the rows, where no engine was asked for by name."""
    from decodecalc.servers.policies import unplanned

    s = request.scenarios
    return unplanned(s.place) if s.place is not None and _listed(request) else []


def _listed(request: Request) -> set[str]:
    """The words for several engines that were asked for."""
    return {str(name).strip().lower() for name in request.inputs["engines"]} & {ALL, SERVED_HERE}


def _further(request: Request) -> list[str]:
    """How many engines are not in the table because no server runs them here."""
    from decodecalc.servers.policies import MARKED
    from decodecalc.servers.registry import TITLES

    s = request.scenarios
    if _listed(request) != {SERVED_HERE} or s.excluded:
        return []
    more = len(set(engine_names()) - {policy.name for policy, _ in s.engines})
    servers = " and ".join(TITLES[server] for server in MARKED)
    return [f"--engine all lists {more} further engines, which {servers} do not run here."]


def _same(values: tuple[int, ...]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else list(values)


def _row(item: Planned) -> dict[str, Any]:
    plan = item.plan
    o = occupancy(plan)
    invariant = invariant_plan(plan)
    return {
        "engine": plan.engine,
        "version": plan.version,
        "layer_group": item.layer_group.name,
        "layers": item.layer_group.layers,
        "q_heads": plan.geometry.q_heads,
        "kv_heads": plan.geometry.kv_heads,
        "head_dim": plan.geometry.head_dim,
        "window": plan.geometry.window,
        "batch": item.batch.size,
        "context": item.batch.max_seq_len,
        "q_len": item.batch.max_q_len,
        "path": plan.path,
        "kernel": plan.stage1.name,
        "grid": list(plan.stage1.grid),
        "launched_blocks": o.launched_blocks,
        "live_blocks": o.live_blocks,
        "working_blocks": o.working_blocks,
        "unsplit_blocks": o.unsplit_blocks,
        "sm_count": o.sm_count,
        "sm_coverage": o.sm_coverage,
        "waves": o.waves,
        "splits_requested": _same(plan.splits.requested),
        "splits_launched": plan.splits.launched,
        "splits_live": _same(plan.splits.live),
        "splits_working": _same(plan.splits.working),
        "tile_keys": plan.tile_keys,
        "s_star": o.s_star,
        "s_opt": _s_opt(plan),
        "merge_grid": list(plan.merge.grid) if plan.merge else None,
        "merge_in": plan.merge_in,
        "scheduler_kernels": sum(k.role == "scheduler" for k in plan.kernels),
        "scratch_bytes": plan.scratch_bytes,
        "kv_reads_per_key": traffic(plan).kv_reads_per_key,
        "determinism": plan.determinism,
        "invariant_option": invariant_option(plan, invariant),
        "invariant_live_blocks": None if invariant is None else invariant.live_blocks,
        "gates": [gate.to_dict() for gate in plan.gates],
    }


def _s_opt(plan: LaunchPlan) -> int | None:
    """The split count of least predicted time; None on a GPU whose memory bandwidth nobody knows."""
    from decodecalc.cost.tuning import s_opt

    if plan.gpu.hbm_bytes_per_s is None or not plan.batch.query_tokens:
        return None
    return s_opt(plan.geometry, plan.batch, plan.kv, plan.gpu)


def _refused_row(item: Refusal, sm_count: int) -> dict[str, Any]:
    return {
        "engine": item.engine,
        "version": item.version,
        "layer_group": item.layer_group.name,
        "layers": item.layer_group.layers,
        "batch": item.batch.size,
        "context": item.batch.max_seq_len,
        "path": None,
        "grid": None,
        "sm_count": sm_count,
        "gates": [{"name": item.code or "refused", "passed": False, "reason": item.reason}],
    }


def _named(rows: list[dict[str, Any]]) -> str:
    return ", ".join(r["engine"] for r in rows)


def _rereads(rows: list[dict[str, Any]]) -> list[str]:
    """Engines whose blocks ask for a key once per query head (or per tile of query rows)."""
    again = [r for r in rows if r["kv_reads_per_key"] is not None and r["kv_reads_per_key"] >= 2]
    times = ", ".join(f"{r['engine']} {r['kv_reads_per_key']:.3g} times" for r in again)
    return (
        [f"these engines request every key more than once, because query heads do not share the load: {times}"]
        if again
        else []
    )


def _extra_kernels(rows: list[dict[str, Any]]) -> list[str]:
    """Engines that launch a kernel before stage 1."""
    with_scheduler = [r for r in rows if r["scheduler_kernels"]]
    return [f"these engines first run a scheduler kernel: {_named(with_scheduler)}"] if with_scheduler else []


def _invariance(rows: list[dict[str, Any]]) -> list[str]:
    """Whose splits depend on the rest of the batch, and what each engine's reproducible mode costs in blocks."""
    moving = [r for r in rows if r["determinism"] == "batch-dependent"]
    priced = [r for r in moving if r["invariant_live_blocks"] is not None]
    by_hand = [r for r in moving if r["invariant_live_blocks"] is None and r["invariant_option"] is not None]
    never = [r for r in moving if r["invariant_option"] is None]
    lines = []
    priced = [r for r in priced if r["invariant_live_blocks"] != r["live_blocks"]]
    if priced:
        change = ", ".join(f"{r['engine']} {r['live_blocks']} to {r['invariant_live_blocks']}" for r in priced)
        lines.append(
            f"the splits depend on the batch; --batch-invariant fixes them and changes the live blocks: {change}"
        )
    if by_hand:
        options = ", ".join(f"{r['engine']} --opt {r['invariant_option']}" for r in by_hand)
        lines.append(f"the splits depend on the batch unless an option fixes them: {options}")
    if never:
        lines.append(f"the splits depend on the batch and no option fixes them: {_named(never)}")
    return lines


def _flips(request: Request, rows: list[dict[str, Any]]) -> list[str]:
    """At which batch the path changes, for each engine, layer group, context and query length that has rows.

    Of batches whose requests are alike only: what a ragged one does says nothing about other batch sizes.
    """
    s = request.scenarios
    steps = dict.fromkeys((b.max_seq_len, b.max_q_len) for b in s.batches if b.is_uniform)
    several = len({q for _, q in steps}) > 1
    lines: list[str] = []
    for policy, version in s.engines:
        release = policy.version(version).name
        for group in s.layer_groups:
            for context, q_len in steps:
                step = (policy.name, release, group.name, context, q_len)
                if not any(
                    (r["engine"], r["version"], r["layer_group"], r["context"], r["q_len"]) == step for r in rows
                ):
                    continue  # the engine refuses these layers, which the notes below say
                options = s.options_of(policy)
                flip = first_split_change(policy, group, s.kv, s.gpu, options, version, context, q_len)
                if flip is not None:
                    name = policy.name + (f", {group.name} layers" if len(s.layer_groups) > 1 else "")
                    at = f"{context} keys" + (f" and {q_len} query tokens" if several else "")
                    lines.append(f"{name}: at {at} the path changes from batch {flip - 1} to {flip}")
    return list(dict.fromkeys(lines))


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    def varies(key: str) -> bool:
        return len({str(r.get(key)) for r in rows}) > 1

    idle = any(r.get("working_blocks") != r.get("live_blocks") for r in rows)  # live, and outside the window

    def splits(value: Any) -> str:
        return summary(value) if isinstance(value, list) else cell(value)

    columns = [Column("engine", "engine", align="left", rank=0)]
    columns += [Column("asked", "", lambda v: "<-" if v else "", align="left")] if any(r["asked"] for r in rows) else []
    marked = any(r["default_of"] for r in rows)
    columns += [Column("default_of", "default of", lambda v: ", ".join(v), align="left")] if marked else []
    columns += [Column("layer_group", "layers", align="left")] if varies("layer_group") else []
    columns += [Column("batch", "batch"), Column("context", "keys")]
    columns += [Column("q_len", "query tokens")] if varies("q_len") else []
    return [
        *columns,
        Column("path", "path", align="left"),
        Column("grid", "grid", grid_text, align="left", rank=0),
        Column("launched_blocks", "blocks", rank=2),
        Column("live_blocks", "live blocks", rank=0),
        *([Column("working_blocks", "blocks in window", rank=0)] if idle else []),
        Column("sm_coverage", "coverage", percent, rank=0),
        Column("waves", "waves", lambda v: f"{v:.2f}", rank=2),
        Column("splits_requested", "splits asked", splits),
        Column("splits_launched", "splits launched"),
        Column("splits_live", "splits live", splits),
        Column("s_star", "S*", rank=0),
        *([Column("s_opt", "S_opt", rank=0)] if any(r["s_opt"] is not None for r in rows) else []),
        Column("merge_grid", "merge grid", grid_text, align="left", rank=2),
    ]

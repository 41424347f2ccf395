"""Rows and columns of `grid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.invariance import invariant_option, invariant_plan
from decodecalc.analysis.occupancy import first_split_change, occupancy
from decodecalc.analysis.traffic import traffic
from decodecalc.engines.registry import ALL, SERVED_HERE, engine_names
from decodecalc.launch.plan import LaunchPlan
from decodecalc.prefix import WHOLE
from decodecalc.scenario import Planned, Refusal
from decodecalc.tables.columns import ranging, scenario_columns
from decodecalc.tables.defaults import default_columns, in_order, leading, mark_defaults
from decodecalc.tables.memory import cautions
from decodecalc.tables.ranks import rank_columns, rank_notes
from decodecalc.tables.table import Column, Table, cell, grid_text, percent, summary, with_versions
from decodecalc.tables.text import absent, sentence
from decodecalc.units import counted

if TYPE_CHECKING:
    from decodecalc.request import Request


def grid_table(request: Request) -> Table:
    """Every plan of the request as one row; engines that refuse the scenario come last, with the reason."""
    s = request.scenarios
    cases: set[int] = set()
    plans: list[LaunchPlan] = []
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for item in s.plans():
        if isinstance(item, Refusal):
            refused.append(_refused_row(item, s.gpu.sm_count))
        else:
            cases.add(item.case)
            part = {} if item.part == WHOLE else {"part": item.part, "shared_prefix": s.shared_prefix}
            rows.append({**_row(item), **part, **rank_columns(item.plan)})
            plans.append(item.plan)
    mark_defaults(request, rows)
    if len(s.engines) > 1:
        rows = in_order(rows, lambda row: -row["sm_coverage"])
    seen = with_versions(rows)
    closed, open_ = _gates(seen) if len(s.engines) <= 2 else ([], [])
    reasons, details = absent((r["engine"], r["gates"][0]["reason"]) for r in with_versions(refused))
    notes = [
        *cautions(request),
        *_repeats(seen),
        *rank_notes(request, plans),
        *closed,
        *_unplanned(request),
        *reasons,
        *_further(request),
    ]
    notes += _flips(request, rows) if len(s.engines) <= 2 else []
    if len(cases) == 1:
        notes += _extra_kernels(seen) + _rereads(seen) + _invariance(seen)
    return Table(
        "grid",
        request.inputs,
        rows + refused,
        _columns(rows),
        request.heading,
        list(dict.fromkeys(notes)),
        rows,
        answer=_answer(rows),
        measured=("The share of the SMs that get work", COVERAGE),
        details=[*open_, *details],
    )


def _answer(rows: Sequence[dict[str, Any]]) -> str:
    """What the engine of the first row launches, in its only row or over all of them."""
    first, (who, mine) = rows[0], leading(rows)
    if len(mine) > 1:
        what = f"The share of the {first['sm_count']} SMs that get work from {who}"
        return sentence(ranging(what, mine, COVERAGE))
    launched, working, sms = first["launched_blocks"], first["working_blocks"], first["sm_count"]
    share = f"{min(working, sms)} of {sms} SMs ({percent(first['sm_coverage'])})"
    read = "reads" if working == 1 else "read"
    if first["repeating_blocks"]:
        text = (
            f"{who} launches {counted(launched, 'block')}, of which {working} {read} keys of their own, on {share}, "
            f"and {first['repeating_blocks']} read the first request's keys once more"
        )
    elif working < launched:
        text = f"{who} launches {counted(launched, 'block')}, of which {working} {read} keys, on {share}"
    else:
        text = f"{who} launches {counted(launched, 'block')} on {share}"
    best, live = first["s_opt"], first["splits_live"]
    if best is None or isinstance(live, list):
        return sentence(text)
    if best == live:
        return sentence(f"{text}; a request has {counted(live, 'split')} with keys, as many as S_opt")
    return sentence(f"{text}; a request has {counted(live, 'split')} with keys where S_opt is {best}")


def _gates(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Conditions of the rows' plans that do not hold, and those that do, each said once."""
    closed: dict[str, None] = {}
    open_: dict[str, None] = {}
    for r in rows:
        for gate in r["gates"]:
            words = "holds" if gate["passed"] else "does not hold"
            line = f"{r['engine']}: condition {gate['name']} {words}: {gate['reason']}"
            (open_ if gate["passed"] else closed)[line] = None
    return list(closed), list(open_)


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
    seen = item.batch if item.part == WHOLE else plan.batch
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
        "batch": seen.size,
        "context": seen.max_seq_len,
        "q_len": seen.max_q_len,
        "path": plan.path,
        "kernel": plan.stage1.name,
        "grid": list(plan.stage1.grid),
        "launched_blocks": o.launched_blocks,
        "live_blocks": o.live_blocks,
        "working_blocks": o.working_blocks,
        "repeating_blocks": plan.repeating_blocks,
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


def _named(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(r["engine"] for r in rows)


def _rereads(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Engines whose blocks ask for a key once per query head (or per tile of query rows)."""
    again = [r for r in rows if r["kv_reads_per_key"] is not None and r["kv_reads_per_key"] >= 2]
    times = ", ".join(f"{r['engine']} {r['kv_reads_per_key']:.3g} times" for r in again)
    return (
        [f"these engines request every key more than once, because query heads do not share the load: {times}"]
        if again
        else []
    )


def _repeats(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Engines whose grid has blocks that do the first request's work once more."""
    again = [r for r in rows if r["repeating_blocks"]]
    counts = ", ".join(f"{r['engine']} {r['repeating_blocks']}" for r in again)
    return [f"blocks that have no work but repeat the first request's: {counts}"] if again else []


def _extra_kernels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Engines that launch a kernel before stage 1."""
    with_scheduler = [r for r in rows if r["scheduler_kernels"]]
    return [f"these engines first run a scheduler kernel: {_named(with_scheduler)}"] if with_scheduler else []


def _invariance(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whose splits depend on the rest of the batch, and what each engine's reproducible mode costs in blocks."""
    moving = [r for r in rows if r["determinism"] == "batch-dependent"]
    by_tile = [r for r in rows if r["determinism"] == "tile-dependent"]
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
    if by_tile:
        lines.append(
            "the splits do not depend on the batch, but the tile follows the query tokens of the whole launch, so that "
            f"a neighbour's prefill can change bits: {_named(by_tile)}"
        )
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
    names = [policy.name for policy, _ in s.engines]
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
                    one = policy.name if names.count(policy.name) == 1 else f"{policy.name}@{release}"
                    name = one + (f", {group.name} layers" if len(s.layer_groups) > 1 else "")
                    at = f"{context} keys" + (f" and {q_len} query tokens" if several else "")
                    lines.append(f"{name}: at {at} the path changes from batch {flip - 1} to {flip}")
    return list(dict.fromkeys(lines))


COVERAGE = Column("sm_coverage", "coverage", percent, rank=0)


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    idle = any(r.get("working_blocks") != r.get("live_blocks") for r in rows)  # live, and outside the window

    def splits(value: Any) -> str:
        return summary(value) if isinstance(value, list) else cell(value)

    marks = (
        [Column("asked", "asked", lambda v: "<-" if v else "", align="left")] if any(r["asked"] for r in rows) else []
    )
    marks += default_columns(rows)
    return [
        *scenario_columns(rows, more=marks),
        Column("path", "path", align="left"),
        Column("grid", "grid", grid_text, align="left", rank=0),
        Column("launched_blocks", "blocks", rank=2),
        Column("live_blocks", "live blocks", rank=0),
        *([Column("working_blocks", "blocks in window", rank=0)] if idle else []),
        *([Column("repeating_blocks", "repeating", rank=0)] if any(r.get("repeating_blocks") for r in rows) else []),
        COVERAGE,
        Column("waves", "waves", lambda v: f"{v:.2f}", rank=2),
        Column("splits_requested", "splits asked", splits, rank=2),
        Column("splits_launched", "splits launched", rank=2),
        Column("splits_live", "splits live", splits),
        Column("s_star", "S*", rank=0),
        *([Column("s_opt", "S_opt", rank=0)] if any(r["s_opt"] is not None for r in rows) else []),
        Column("merge_grid", "merge grid", grid_text, align="left", rank=2),
    ]

"""Rows and columns of `roofline`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.roofline import roofline
from decodecalc.geometry import Geometry
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup
from decodecalc.scenario import Planned
from decodecalc.tables.table import Column, Table, percent
from decodecalc.tables.text import because
from decodecalc.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from decodecalc.request import Request

# DeepSeek-V3's latent (config.json: kv_lora_rank 512 + qk_rope_head_dim 64): the only MLA width in wide use.
MLA_LATENT, MLA_VALUE = 576, 512


def roofline_table(request: Request, compare: bool = False) -> Table:
    """One row per plan; with `compare`, the same query heads as MHA, GQA (8 KV heads), MQA and MLA."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            notes.append(f"not shown: {because(item.engine, item.reason)}")
            continue
        rows.append(_row(item.plan, item.layer_group.name, item.batch.size, item.batch.max_seq_len))
        notes.append(f"The compute peak is taken from: {rows[-1]['peak_reason']}")
    if compare:
        rows += _variants(request)
    notes.append(
        "roofline is the larger of bytes over bandwidth and FLOP over peak. It leaves out launches, latency and "
        "waves, so "
        "it is a lower bound and not a prediction."
    )
    return Table("roofline", request.inputs, rows, _columns(), request.heading, list(dict.fromkeys(notes)))


def _row(plan: LaunchPlan, name: str, batch: int, context: int) -> dict[str, Any]:
    return {
        "engine": plan.engine,
        "version": plan.version,
        "layer_group": name,
        "q_heads": plan.geometry.q_heads,
        "kv_heads": plan.geometry.kv_heads,
        "batch": batch,
        "context": context,
        **roofline(plan).to_dict(),
    }


def _variants(request: Request) -> Iterator[dict[str, Any]]:
    """The first layer group's query heads under other sharing schemes, planned by the reference rule."""
    from decodecalc.engines.registry import REFERENCE, load_policy

    s = request.scenarios
    geo, batch = s.layer_groups[0].geometry, s.batches[0]
    heads, dim = geo.q_heads, 128 if geo.mla else geo.head_dim
    shapes = [("as MHA", Geometry(heads, heads, dim)), ("as MQA", Geometry(heads, 1, dim))]
    if heads % 8 == 0 and heads > 8:
        shapes.insert(1, ("as GQA-8", Geometry(heads, 8, dim)))
    shapes.append(("as MLA", Geometry(heads, 1, MLA_LATENT, MLA_VALUE, mla=True)))
    policy = load_policy(REFERENCE)
    for name, shape in shapes:
        group = LayerGroup(name, 1, shape)
        yield _row(policy.plan(shape, batch, s.kv, s.gpu), group.name, batch.size, batch.max_seq_len)


def _columns() -> list[Column]:
    def times(value: float) -> str:
        return f"{value:.3g}x"

    return [
        Column("engine", "engine", align="left"),
        Column("layer_group", "layers", align="left"),
        Column("kind", "kind", align="left"),
        Column("batch", "batch"),
        Column("context", "keys"),
        Column("flop", "FLOP", lambda v: f"{v:.3g}"),
        Column("kv_read_bytes", "KV read", human_bytes),
        Column("intensity_flop_per_byte", "FLOP/B"),
        Column("ridge_flop_per_byte", "ridge FLOP/B"),
        Column("memory_bound_factor", "ridge / intensity", times),
        Column("tile_rows", "tile rows"),
        Column("tile_live_rows", "live rows"),
        Column("tile_wasted_row_share", "wasted rows", percent),
        Column("tile_kv_bytes", "tile KV bytes"),
        Column("tile_flop", "tile FLOP"),
        Column("roofline_s", "roofline", human_seconds),
    ]

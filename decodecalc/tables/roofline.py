"""Rows and columns of `roofline`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from decodecalc.analysis.roofline import roofline
from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup
from decodecalc.scenario import Planned
from decodecalc.tables.columns import ranging, scenario_columns
from decodecalc.tables.memory import cautions
from decodecalc.tables.table import Column, Table, percent
from decodecalc.tables.text import absent, sentence
from decodecalc.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from decodecalc.request import Request

# DeepSeek-V3's latent (config.json: kv_lora_rank 512 + qk_rope_head_dim 64): the only MLA width in wide use.
MLA_LATENT, MLA_VALUE = 576, 512


def roofline_table(request: Request, compare: bool = False) -> Table:
    """One row per plan; with `compare`, the same query heads as MHA, GQA (8 KV heads), MQA and MLA."""
    rows: list[dict[str, Any]] = []
    refused: list[tuple[str, str]] = []
    peaks: dict[str, None] = {}
    for item in request.scenarios.plans():
        if not isinstance(item, Planned):
            refused.append((item.engine, item.reason))
            continue
        rows.append(_row(item.plan, item.layer_group.name, item.batch))
        peaks[f"The compute peak is taken from: {rows[-1]['peak_reason']}"] = None
    answer = _answer(rows, request.scenarios.gpu.name)
    if compare:
        rows += _variants(request)
    reasons, details = absent(refused)
    bound = "roofline is a lower bound and no prediction: it leaves out launches, latency and waves"
    notes = [*cautions(request), *reasons, bound, *peaks]
    return Table(
        "roofline",
        request.inputs,
        rows,
        _columns(rows),
        request.heading,
        notes,
        answer=answer,
        details=details,
        measured=("The factor by which attention is memory-bound", FACTOR),
    )


def _answer(rows: list[dict[str, Any]], gpu: str) -> str:
    """How far the layers are from the ridge, and the least time."""
    first = rows[0]
    ridge = first["ridge_flop_per_byte"]
    if ridge is None:
        return sentence(ranging("Attention's intensity in FLOP per byte", rows, INTENSITY))
    if len(rows) > 1:
        what = f"{gpu} needs {ridge:.3g} FLOP per byte to be busy, and attention's intensity"
        return sentence(ranging(what, rows, INTENSITY))
    intensity = first["intensity_flop_per_byte"]
    if intensity <= ridge:
        bound = f"it is memory-bound by a factor of {ridge / intensity:.3g}"
    else:
        bound = f"it is compute-bound by a factor of {intensity / ridge:.3g}"
    least = "" if first["roofline_s"] is None else f", and a layer takes at least {human_seconds(first['roofline_s'])}"
    return (
        f"Attention does {intensity:.3g} FLOP for each byte of KV, where {gpu} would need {ridge:.3g}: {bound}{least}."
    )


FACTOR = Column("memory_bound_factor", "ridge / intensity", lambda v: f"{v:.3g}x", rank=0)
INTENSITY = Column("intensity_flop_per_byte", "FLOP/B", rank=0)


def _row(plan: LaunchPlan, name: str, batch: Batch) -> dict[str, Any]:
    return {
        "engine": plan.engine,
        "version": plan.version,
        "layer_group": name,
        "q_heads": plan.geometry.q_heads,
        "kv_heads": plan.geometry.kv_heads,
        "batch": batch.size,
        "context": batch.max_seq_len,
        "q_len": batch.max_q_len,
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
        yield _row(policy.plan(shape, batch, s.kv, s.gpu), group.name, batch)


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    return [
        *scenario_columns(rows),
        Column("kind", "kind", align="left"),
        Column("flop", "FLOP", lambda v: f"{v:.3g}"),
        Column("kv_read_bytes", "KV read a layer", human_bytes),
        INTENSITY,
        Column("ridge_flop_per_byte", "ridge FLOP/B", rank=0),
        FACTOR,
        Column("roofline_s", "roofline", human_seconds, rank=0),
        Column("tile_rows", "tile rows", rank=2),
        Column("tile_live_rows", "live rows", rank=2),
        Column("tile_wasted_row_share", "wasted rows", percent, rank=2),
        Column("tile_kv_bytes", "tile KV bytes", rank=3),
        Column("tile_flop", "tile FLOP", rank=3),
    ]

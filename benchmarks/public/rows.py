"""Rows of a published table as planned work: what our policy launches for each, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.public.tables import Table
from decodecalc.cost.cuts import cuts_of
from decodecalc.cost.model import Work
from decodecalc.cost.work import work_of
from decodecalc.engines import load_policy
from decodecalc.engines.tensorrt_llm.choice import XqaCall, decide
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.gpus import Gpu
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches

# Held out before any fit was made: whole families (KV heads, head width), and whole contexts.
HELD_OUT_FAMILIES = ((2, 128), (12, 128), (40, 128), (8, 64), (4, 256), (24, 256), (1, 192))
HELD_OUT_CONTEXTS = (32, 1024, 16384)
DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
LATENT = (576, 512)  # widths of the key and of the value in it of the only MLA that is timed (DeepSeek-V3)
MOST_GRAPHED = 512  # vLLM: the largest default capture size, whatever max_num_seqs is


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one table and KV type. Every array is [n]."""

    dtype: str
    work: Work
    measured_s: Any
    columns: dict[str, Any]
    """q_heads, kv_heads, head_dim, head_dim_v, batch, context, window, tile_keys, block_rows."""
    held_out: Any

    def take(self, where: Any) -> Rows:
        """Some of the rows."""
        return Rows(
            dtype=self.dtype, work=take(self.work, where), measured_s=self.measured_s[where],
            columns={k: v[where] for k, v in self.columns.items()}, held_out=self.held_out[where],
        )  # fmt: skip


def read_table(root: Path, gpu: str, table: Table) -> dict[str, Any] | None:
    """Columns of the published table that hold this kernel; None where there are none."""
    import pyarrow.parquet as parquet

    found = sorted(
        (root / "aiconfigurator_core/systems/data" / gpu / table.kind / table.framework).glob(
            f"*/generation_{table.kind}_perf.parquet"
        )
    )
    for path in found[-1:]:
        data = parquet.read_table(path)
        columns = {name: data[name].to_numpy() for name in data.column_names}
        for name, value in (("window_size", 0), ("num_key_value_heads", 1), ("head_dim", LATENT[0])):
            columns.setdefault(name, np.full(data.num_rows, value, dtype=np.int64))
        keep = columns["kernel_source"] == table.source
        if keep.any():
            return {name: values[keep] for name, values in columns.items()}
    return None


def plan_table(
    columns: dict[str, Any], table: Table, gpu: Gpu, windows: bool = False
) -> Iterator[tuple[str, Rows | None, dict[str, int]]]:
    """The table's rows with their work, by KV type."""
    for published, dtype in DTYPES.items():
        if dtype not in table.dtypes:
            continue
        keep = columns["kv_cache_dtype"] == published
        keep &= columns["window_size"] > 0 if windows else columns["window_size"] == 0
        if keep.any():
            yield dtype, *_planned({k: v[keep] for k, v in columns.items()}, table, gpu, dtype)


def _planned(rows: dict[str, Any], table: Table, gpu: Gpu, dtype: str) -> tuple[Rows | None, dict[str, int]]:
    """The planned rows, and how many the policy refuses by gate code."""
    policy = load_policy(table.policy)
    version = policy.version(table.version)
    options = policy.options_type.from_mapping(
        policy.name, {**table.options, **(table.fp8_options if dtype == "fp8" else {})}
    )
    kv = KvCache(dtype, table.page_size, None, dtype if table.quantized_query else "bf16")
    q_heads, head_dim, window = (rows[k].astype(np.int64) for k in ("num_heads", "head_dim", "window_size"))
    kv_heads = rows["num_key_value_heads"].astype(np.int64)
    kv_heads = np.where(kv_heads == 0, q_heads, kv_heads)
    batch, context = rows["batch_size"].astype(np.int64), rows["step"].astype(np.int64) + 1
    promised = np.where(context <= table.promised_keys, table.promised_keys, 0)
    graphed = batch <= MOST_GRAPHED
    named = np.stack([q_heads, kv_heads, head_dim, window, promised, graphed])
    kinds, of = np.unique(named, axis=1, return_inverse=True)
    parts, places, tiles, block_rows = [], [], [], []
    refused: dict[str, int] = {}
    for i, (q, k, d, w, promised, in_graph) in enumerate(kinds.T.tolist()):
        if not table.groups[0] <= q // k <= table.groups[1]:
            continue
        at = np.flatnonzero(of == i)
        geo = _geometry(table, q, k, d, w)
        promise = {"max_kv_len": promised} if promised else {}
        opts = replace(options, **promise, **(table.graph_options if in_graph else {}))
        try:
            steps = Batches.uniform(batch[at], context[at])
            if table.xqa is not None:
                used = decide(geo, steps, kv, gpu, XqaCall()).used == table.xqa
                at = at[used]
                if not len(at):
                    continue
                steps = Batches.uniform(batch[at], context[at])
            found = policy.launches(geo, steps, kv, gpu, opts, version)
        except GateError as error:
            refused[error.code] = refused.get(error.code, 0) + len(at)
            continue
        cuts = cuts_of(steps, found, found.tile_keys)
        parts.append(_spread(work_of(policy.name, geo, steps, kv, found, cuts), len(at)))
        tiles.append(np.broadcast_to(np.asarray(found.tile_keys), (len(at),)))
        block_rows.append(np.broadcast_to(np.asarray(found.block_rows), (len(at),)))
        places.append(at)
    if not places:
        return None, refused
    chosen = np.concatenate(places)
    order = np.argsort(chosen, kind="stable")
    chosen = chosen[order]
    q_heads, kv_heads, head_dim, window, batch, context = (
        x[chosen] for x in (q_heads, kv_heads, head_dim, window, batch, context)
    )
    work = Work._make(np.concatenate(column)[order] for column in zip(*parts))
    swapped = (q_heads > kv_heads) & (window == 0) & (table.policy == "flash-attention-2")
    held = np.isin(context, HELD_OUT_CONTEXTS)
    for k, d in HELD_OUT_FAMILIES:
        held |= (kv_heads == k) & (head_dim == d)
    found_rows = Rows(
        dtype=dtype,
        work=work,
        measured_s=rows["latency"][chosen].astype(float) * 1e-3,
        columns={
            "copied": swapped.astype(float), "gathered": (swapped & (kv_heads > 1) & (batch > 1)).astype(float),
            "own_split": work.is_split.astype(np.int64) * (policy.traits.time_kernels is not None),
            "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "head_dim_v": np.array([0 if table.kind == "mla" else _v_dim(table, d) for d in head_dim.tolist()]),
            "batch": batch, "context": context, "window": window,
            "tile_keys": np.concatenate(tiles)[order], "block_rows": np.concatenate(block_rows)[order],
        },
        held_out=held,
    )  # fmt: skip
    return found_rows, refused


def _v_dim(table: Table, head_dim: int) -> int:
    return 128 if head_dim == 192 and not table.equal_v else head_dim


def _geometry(table: Table, q_heads: int, kv_heads: int, head_dim: int, window: int) -> Geometry:
    if table.kind == "mla":
        return Geometry(q_heads, 1, *LATENT, mla=True)
    v_dim = _v_dim(table, head_dim)
    return Geometry(q_heads, kv_heads, head_dim, None if v_dim == head_dim else v_dim, window=window or None)


def _spread(work: Work, n: int) -> Work:
    """Every field as an [n] array, those that are None for what they then stand for."""
    values = work._asdict()
    if values["merge_kernels"] is None:
        values["merge_kernels"] = work.is_split
    if values["merge_walks"] is None:
        values["merge_walks"] = work.live_splits
    return Work(**{name: np.broadcast_to(np.asarray(value), (n,)) for name, value in values.items()})


def take(work: Work, where: Any) -> Work:
    """Some of the rows."""
    return Work._make(value[where] for value in work)

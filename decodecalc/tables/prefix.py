"""Rows and columns of `predict --shared-prefix`: a step both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.analysis.traffic import traffic
from decodecalc.batch import Batch
from decodecalc.cost.load import load_calibration
from decodecalc.cost.prefix import SharedPrefix, prefix_break_even, share_prefix
from decodecalc.errors import DecodecalcError
from decodecalc.servers.prefix import prefix_rules
from decodecalc.tables.memory import cautions
from decodecalc.tables.table import Column, Table
from decodecalc.tables.text import absent, sentence
from decodecalc.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from decodecalc.models import LayerGroup
    from decodecalc.request import Request

NOTES = (
    "shared time is the sum of three parts: the launch over the shared keys, the launch over each request's own keys, "
    "and the kernels beside them, which merge the two outputs. Times are for one layer.",
    "whole time is for requests that point to the same pages of the prefix: the memory delivers these pages once to "
    "the requests that read them together, and the L2 delivers them to each.",
    "least prefix is the number of shared keys from which on sharing is predicted to take less time, at these "
    "requests' own keys.",
)


def prefix_table(request: Request, kernel: str, l2: str, launch: str, calibration: str | None) -> Table:
    """One row for every engine, layer group and batch."""
    s = request.scenarios
    known = load_calibration(calibration, s.gpu)
    rows: list[dict[str, Any]] = []
    refused: list[tuple[str, str]] = []
    rules: list[str] = []
    for group in s.layer_groups:
        for batch in s.batches:
            rules += prefix_rules(group.geometry, batch, s.shared_prefix, s.gpu, s.kv.page_size)
            for policy, version in s.engines:
                how: dict[str, Any] = {
                    "options": s.options_of(policy), "version": version, "calibration": known, "kernel": kernel,
                    "l2": l2, "launch": launch,
                }  # fmt: skip
                try:
                    found = share_prefix(policy, group.geometry, batch, s.shared_prefix, s.kv, s.gpu, **how)
                    own = Batch([n - s.shared_prefix for n in batch.seq_lens], batch.q_lens)
                    least = prefix_break_even(policy, group.geometry, own, s.kv, s.gpu, **how)
                except DecodecalcError as error:
                    if len(s.engines) == 1:
                        raise
                    refused.append((policy.name, str(error)))
                else:
                    rows.append(_row(found, group, batch, least))
    inputs = {**request.inputs, "kernel": kernel, "l2": l2, "launch": launch, "calibration": known.label}
    verdicts = [
        f"{row['engine']}, batch {row['batch']}: attending {s.shared_prefix} shared keys separately {row['verdict']}"
        + (
            f", {human_seconds(row['shared_s'])} against {human_seconds(row['whole_s'])} a layer"
            if row["verdict"] and row["whole_s"]
            else ""
        )
        for row in rows
        if row["verdict"]
    ]
    lines = [f"The L2 is {l2}; calibration: {known.label}"]
    heading = [*request.heading, f"the requests of a batch share their first {s.shared_prefix} keys"]
    reasons, details = absent(refused)
    answer, *others = [sentence(verdict) for verdict in verdicts] or [""]
    return Table(
        "predict",
        inputs,
        rows,
        _columns(rows),
        heading,
        [*cautions(request), *others, *dict.fromkeys(rules), *reasons, *lines, *NOTES],
        answer=answer,
        details=details,
    )


def _row(found: SharedPrefix, group: LayerGroup, batch: Batch, least: int | None) -> dict[str, Any]:
    whole, prefix, suffix = found.whole, found.prefix, found.suffix
    return {
        "engine": whole[0].engine,
        "version": whole[0].version,
        "kernel": whole[1].kernel,
        "layer_group": group.name,
        "layers": group.layers,
        "batch": batch.size,
        "context": batch.max_seq_len,
        "q_len": batch.max_q_len,
        "shared_keys": found.keys,
        "whole_grid": list(whole[0].stage1.grid),
        "prefix_grid": list(prefix[0].stage1.grid),
        "suffix_grid": list(suffix[0].stage1.grid),
        "whole_launches": len(whole[0].kernels),
        "shared_launches": found.launches,
        "whole_read_bytes": traffic(whole[0]).kv_read_bytes,
        "shared_read_bytes": traffic(prefix[0]).kv_read_bytes + traffic(suffix[0]).kv_read_bytes,
        "saved_bytes": found.saved_bytes,
        "whole_s": found.whole_s,
        "whole_apart_s": whole[1].total_s,
        "prefix_s": found.prefix_s,
        "suffix_s": suffix[1].total_s,
        "side_kernels_s": found.kernels_s,
        "shared_s": found.total_s,
        "saved_s": found.saved_s,
        "verdict": found.verdict,
        "break_even_keys": least,
        "notes": list(dict.fromkeys(note for _, p in (whole, prefix, suffix) for note in p.notes)),
    }


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    groups = len({row["layer_group"] for row in rows}) > 1
    return [
        Column("engine", "engine", align="left", rank=0),
        *([Column("layer_group", "layers", align="left")] if groups else []),
        Column("batch", "batch", rank=0),
        Column("context", "keys", rank=0),
        Column("whole_s", "whole time", human_seconds, rank=0),
        Column("shared_s", "shared time", human_seconds, rank=0),
        Column("prefix_s", "prefix", human_seconds),
        Column("suffix_s", "own keys", human_seconds),
        Column("side_kernels_s", "merge", human_seconds),
        Column("whole_launches", "launches", rank=2),
        Column("shared_launches", "shared launches", rank=2),
        Column("saved_bytes", "bytes saved", human_bytes),
        Column("break_even_keys", "least prefix", rank=0),
    ]

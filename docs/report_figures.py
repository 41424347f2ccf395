"""Figures of the gallery that are drawn from committed reports: measured numbers, their report beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = "reports/h200/kernels-vs-peers.json"
_SERIES = {
    "ours_us": "bundled", "flash_attention_3_us": "FlashAttention-3", "flashinfer_us": "FlashInfer",
    "vllm_triton_us": "vLLM Triton", "sglang_triton_us": "SGLang Triton",
}  # fmt: skip


def verify_reports() -> Iterator[tuple[str, dict[str, Any]]]:
    """(path in the repository, content) of every committed verification report."""
    for path in sorted((ROOT / "reports").rglob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and str(data.get("schema", "")).startswith("decodecalc/verify/"):
            yield path.relative_to(ROOT).as_posix(), data


def latency_commands(most: int = 3) -> Iterator[tuple[str, str]]:
    """(name, command) of `plot latency` for layers whose split counts were all timed, of each report `most`."""
    for path, report in verify_reports():
        cells = {}
        for row in report["rows"]:
            if row.get("split_times_s") and not row.get("window") and row.get("head_dim") == row.get("head_dim_v", 0):
                key = tuple(row[name] for name in ("q_heads", "kv_heads", "head_dim", "batch", "context"))
                cells.setdefault(key, len(row["split_times_s"]))
        widest = sorted(cells, key=lambda key: (-cells[key], key))[:most]
        for q, kv, d, batch, context in widest:
            yield (
                f"latency-measured-{Path(path).parent.name}-{q}-{kv}-b{batch}-{context}",
                f"plot latency --q-heads {q} --kv-heads {kv} --head-dim {d} --batch {batch} --context {context} "
                f"--gpu {report['inputs']['gpu']} --measured {path}",
            )


def peers() -> bytes:
    """Time of the bundled kernel and its peers over what the bytes alone need, cell by cell, as PNG."""
    from decodecalc.plot.canvas import Look, canvas
    from decodecalc.plot.style import figure_bytes, line_style, plain_log_ticks
    from decodecalc.units import short_count

    report = json.loads((ROOT / PEERS).read_text(encoding="utf-8"))
    cells = [cell for cell in report["cells"] if cell.get("dtype") == "bf16" and cell.get("stream_us")]
    names = [f"{c['q_heads']}/{c['kv_heads']}, {c['batch']}, {short_count(c['context'])}" for c in cells]
    with canvas(Look("slide")) as made:
        made.question = "How near is each kernel to a plain read of the same bytes?"
        made.scenario = f"{report['gpu_before']['gpu']}, measured, cold L2, bf16 ({PEERS})"
        ((ax,),) = made.panels([""], height=len(cells) * 0.2 + 0.6)
        for i, (key, label) in enumerate(_SERIES.items()):
            at = [(c[key] / c["stream_us"], y) for y, c in enumerate(cells) if c.get(key)]
            if at:
                ax.plot(*zip(*at), label=label, **{**line_style(i), "linestyle": "", "markersize": 6})
        ax.set_xscale("log")
        plain_log_ticks(ax.xaxis)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.4, -0.6)
        made.key(ax.get_lines())
        made.name_axes(["time over a read of the same bytes"], ["query / KV heads, batch, keys"])
    return figure_bytes(made.fig, "png")

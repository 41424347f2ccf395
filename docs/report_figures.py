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
    from decodecalc.plot.style import COLORS, MARKERS, figure, figure_bytes

    report = json.loads((ROOT / PEERS).read_text(encoding="utf-8"))
    cells = [cell for cell in report["cells"] if cell.get("dtype") == "bf16" and cell.get("stream_us")]
    names = [f"{c['q_heads']}/{c['kv_heads']}, {c['batch']}, {_keys(c['context'])}" for c in cells]
    with figure("slide") as (fig, ax):
        for i, (key, label) in enumerate(_SERIES.items()):
            at = [(x, c[key] / c["stream_us"]) for x, c in enumerate(cells) if c.get(key)]
            if at:
                style = {"linestyle": "", "color": COLORS[i], "marker": MARKERS[i], "markersize": 6}
                ax.plot(*zip(*at), label=label, **style)
        ax.set_yscale("log")
        ticks = [1, 2, 5, 10, 20, 50]
        ax.set_yticks(ticks, [str(t) for t in ticks])
        ax.set_ylabel("time over a read of the same bytes")
        ax.set_xlabel("query / KV heads, batch, keys")
        ax.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
        ax.set_title(f"{report['gpu_before']['gpu']}, measured, cold L2, bf16 ({PEERS})")
        ax.legend(fontsize="small", loc="upper left")
        return figure_bytes(fig, "png")


def _keys(n: int) -> str:
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)

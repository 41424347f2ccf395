"""Requested and live splits against context, for several engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.engines.arrays import Batches
from decodecalc.errors import GateError
from decodecalc.plot.style import line_style, log2_ticks

if TYPE_CHECKING:
    from decodecalc.cli.options import Request

TITLE = "requested and live splits against context"
AGAINST = ("context",)


def rows(request: Request, **_: Any) -> list[dict[str, Any]]:
    """One row per (layer group, engine, context) at the first batch size."""
    s = request.scenarios
    contexts = np.array(sorted({b.max_seq_len for b in s.batches}))
    if len(contexts) == 1:
        contexts = np.unique(np.round(2 ** np.linspace(6, 17, 89)).astype(np.int64))
    size, q_len = s.batches[0].size, s.batches[0].max_q_len
    steps = Batches.uniform(size, contexts, q_len)
    out: list[dict[str, Any]] = []
    for group in s.layer_groups:
        for policy, version in s.engines:
            opts = policy.options_type.from_mapping(policy.name, s.options_of(policy))
            try:
                found = policy.launches(group.geometry, steps, s.kv, s.gpu, opts, policy.version(version))
            except GateError:
                continue
            shape = (len(contexts), 1)
            requested = np.broadcast_to(np.asarray(found.requested), shape)[:, 0]
            live = np.broadcast_to(np.asarray(found.live), shape)[:, 0]
            launched = np.broadcast_to(np.asarray(found.launched), (len(contexts),))
            for i, context in enumerate(contexts.tolist()):
                out.append(
                    {
                        "layer_group": group.name,
                        "engine": policy.name,
                        "version": policy.version(version).name,
                        "batch": size,
                        "context": context,
                        "splits_requested": int(requested[i]),
                        "splits_launched": int(launched[i]),
                        "splits_live": int(live[i]),
                    }
                )
    return out


def draw(fig: Any, ax: Any, data: list[dict[str, Any]], request: Request, **_: Any) -> None:
    """Live splits as lines, requested ones as a thin line of the same colour where they differ."""
    series = list(dict.fromkeys((r["layer_group"], r["engine"], r["version"]) for r in data))
    groups = len({g for g, _, _ in series}) > 1
    for i, (group, engine, version) in enumerate(series):
        mine = [r for r in data if (r["layer_group"], r["engine"]) == (group, engine)]
        x = [r["context"] for r in mine]
        style = {**line_style(i), "markersize": 3, "markevery": 8}
        label = f"{engine} {version}" + (f", {group} layers" if groups else "")
        ax.plot(x, [r["splits_live"] for r in mine], label=f"{label}: live", **style)
        if any(r["splits_requested"] != r["splits_live"] for r in mine):
            asked = [r["splits_requested"] for r in mine]
            ax.plot(x, asked, color=style["color"], linewidth=0.8, alpha=0.8, label=f"{label}: requested")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    log2_ticks(ax.xaxis, None)
    log2_ticks(ax.yaxis, None)
    ax.set_xlabel(f"keys per request (batch {data[0]['batch']})" if data else "keys per request")
    ax.set_ylabel("splits")
    ax.set_title(request.heading[0])
    ax.legend(fontsize="small")

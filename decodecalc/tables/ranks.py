"""What tables say of context parallelism: what a rank holds and does, and what the ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodecalc.launch.plan import LaunchPlan
from decodecalc.units import human_bytes

if TYPE_CHECKING:
    from decodecalc.analysis.exchange import Exchange
    from decodecalc.request import Request

_WORDS = {"all_gather": "an all-gather", "reduce_scatter": "a reduce-scatter", "all_to_all": "an all-to-all"}


def rank_columns(plan: LaunchPlan) -> dict[str, Any]:
    """Further keys of a row whose keys are divided over ranks; none where they are not.

    `dcp`, `rank_keys` (keys of the longest request on every rank), and the exchange of one layer.
    """
    share = plan.geometry.share
    if share is None:
        return {}
    from decodecalc.analysis.exchange import exchange

    found = exchange(plan)
    if found is None:
        return {}
    return {
        "dcp": share.ranks,
        "dcp_interleave": share.interleave,
        "dcp_exchange": share.exchange,
        "rank_keys": list(share.all_ranks(max(plan.batch.contexts or plan.batch.seq_lens))),
        "collectives": [collective.kind for collective in found.collectives],
        "exchange_launches": int(found.launches),
        "exchange_received_bytes": int(found.received_bytes),
    }


def exchange_lines(found: Exchange) -> list[str]:
    """The exchange of one layer in whole sentences."""
    moved = ", ".join(
        f"{_WORDS[c.kind]} of the {c.what} ({human_bytes(c.received_bytes)} received)" for c in found.collectives
    )
    lines = [f"the ranks run {len(found.collectives)} collectives a layer: {moved}"]
    if found.kernels:
        what = ", ".join(kernel.what for kernel in found.kernels)
        count = f"{len(found.kernels)} more kernels serve" if len(found.kernels) > 1 else "one more kernel serves"
        lines.append(f"{count} the exchange of a layer: {what}")
    return lines


def rank_notes(request: Request, plans: Sequence[LaunchPlan]) -> list[str]:
    """What a rank does under --dcp, and what it exchanges: of the first step. Nothing without --dcp."""
    share = request.layers.share
    if share is None or not plans:
        return []
    from decodecalc.analysis.exchange import exchange

    plan = plans[0]
    contexts = plan.batch.contexts or plan.batch.seq_lens
    local, longest = plan.batch.max_seq_len, max(contexts)
    found = exchange(plan)
    lines = [
        f"DCP {share.ranks}: a rank gathers {plan.geometry.q_heads} query heads from {share.ranks} ranks and reads at "
        f"most {local} of the {longest} keys of a request, which lie on the ranks in runs of {share.interleave}"
    ]
    if found is not None:
        tokens = plan.batch.query_tokens
        lines += [f"at {tokens} query token{'s' if tokens > 1 else ''}, {line}" for line in exchange_lines(found)]
    return lines

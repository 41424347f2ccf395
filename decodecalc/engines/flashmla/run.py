"""FlashMLA's dense decode as vLLM builds and calls it (`vllm.third_party.flashmla`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from decodecalc.verify.own.peers import find_package
from decodecalc.verify.own.runner import CannotRunError, KernelRunner, OwnStep, Prepared, Trying

FILES = ("vllm/third_party/flashmla/flash_mla_interface.py", "vllm/_flashmla_C.abi3.so")
# vLLM 0.30 and later build a FlashMLA of this date or a later one; the dense kernel has not changed since.
DENSE = "2026-04-29"


def prepare(step: OwnStep) -> Prepared:
    """`flash_mla_with_kvcache` on a dense bf16 cache. Its first call of a step launches the scheduler and keeps the
    schedule for the step's other layers."""
    from vllm.third_party.flashmla.flash_mla_interface import FlashMLASchedMeta, flash_mla_with_kvcache

    geo, batch, inputs = step.geometry, step.batch, step.inputs
    if len(set(batch.q_lens)) > 1:
        raise CannotRunError("FlashMLA takes the same number of query tokens from every request")
    q_len = batch.max_q_len
    queries = inputs.q.view(batch.size, q_len, geo.q_heads, geo.head_dim)
    # The library writes to an output tensor of the caller's for one query token only.
    mine = step.out.view(batch.size, q_len, geo.q_heads, geo.v_dim)
    kept: dict[str, Any] = {}

    def layer(index: int) -> None:
        out, _ = flash_mla_with_kvcache(
            queries, inputs.cache(index)[0], inputs.table, inputs.seq_lens, geo.v_dim, kept["plan"],
            softmax_scale=step.scale, causal=True, out=mine if q_len == 1 else None,
        )  # fmt: skip
        if q_len > 1:
            mine.copy_(out)

    def once() -> None:
        kept["plan"] = FlashMLASchedMeta()

    once()
    return Prepared(layer=layer, once=once, note="the first layer of a step launches the scheduler")


RUNNERS = (
    KernelRunner(
        engine="flashmla",
        calls="flash_mla_with_kvcache, dense",
        find=partial(find_package, "flashmla", "vllm", FILES, DENSE),
        prepare=prepare,
        steps=(
            Trying(model="deepseek-v3", tp=8, page=64),
            Trying(model="deepseek-v3", tp=8, batch=16, page=64),
            Trying(model="deepseek-v3", tp=8, ragged=(5000, 1200, 300), page=64),
            Trying(model="deepseek-v3", tp=8, batch=4, q_len=2, page=64),
        ),
    ),
)

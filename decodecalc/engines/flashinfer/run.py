"""FlashInfer's own kernels: the paged decode wrapper on tensor cores and on CUDA cores, XQA, and MLA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from decodecalc.verify.own.peers import find_package
from decodecalc.verify.own.runner import CannotRunError, KernelRunner, OwnStep, Prepared, Trying

WORKSPACE_BYTES = 256 << 20  # what vLLM gives the wrappers is of this size; XQA sets 8 MiB of it aside
# mha.cu rounds the weights and the partial outputs of its tiles to 16 bits, mha_sm90.cu the weights to FP8.
XQA_BOUNDS = {"bf16": 6e-3, "fp16": 1.5e-3, "fp8": 4e-2}
# The split kernels write partial outputs in the output's type (tmp_v of the workspace): one more rounding.
PLANNED_BOUNDS = {"bf16": 4e-3, "fp16": 1e-3}
BLOCK_PATHS = {"tensor_cores": True, "cuda_cores": False}


def workspace(step: OwnStep) -> Any:
    """Zeroed bytes on the step's device: XQA counts finished blocks in it."""
    import torch

    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=step.device)


def page_lists(step: OwnStep) -> tuple[Any, Any, Any]:
    """(indptr, indices, last_page_len) on the host, as the planners read them: pages of every request in order."""
    import torch

    page, inputs = step.kv.page_size, step.inputs
    pages = [-(-n // page) for n in step.batch.seq_lens]
    starts = [sum(pages[:r]) for r in range(len(pages) + 1)]
    if inputs.indptr is not None:
        indices = inputs.table
    else:
        indices = torch.cat([inputs.table[r, :n] for r, n in enumerate(pages)])
    last = [n - (own - 1) * page for n, own in zip(step.batch.seq_lens, pages)]
    return torch.tensor(starts, dtype=torch.int32), indices.int(), torch.tensor(last, dtype=torch.int32)


def one_q_len(step: OwnStep) -> int:
    """Query tokens of every request; CannotRunError where they differ."""
    if len(set(step.batch.q_lens)) > 1:
        raise CannotRunError("FlashInfer's decode entries take the same number of query tokens from every request")
    return step.batch.max_q_len


@contextmanager
def compiling() -> Iterator[None]:
    """FlashInfer compiles a kernel when it is first asked for; a build that fails says why in a few words."""
    try:
        yield
    except RuntimeError as failed:
        lines = [line.strip() for line in str(failed).splitlines() if "error" in line.lower()]
        if "build failed" not in str(failed).lower():
            raise
        raise CannotRunError(f"FlashInfer could not compile its kernel: {' | '.join(lines[:3])[:400]}") from None


def prepare_planned(step: OwnStep) -> Prepared:
    """BatchDecodeWithPagedKVCacheWrapper: `plan` on the host, `run` for every layer."""
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper

    geo, inputs, options = step.geometry, step.inputs, step.options
    if options.cuda_graph or options.path not in BLOCK_PATHS:
        raise CannotRunError("the runner plans without CUDA graphs, and with a path that is named")
    if geo.sinks:
        raise CannotRunError("the runner has no sinks")
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        workspace(step), "NHD", use_tensor_cores=BLOCK_PATHS[options.path], backend="fa2"
    )
    with compiling():
        wrapper.plan(
            *page_lists(step), geo.q_heads, geo.kv_heads, geo.head_dim, step.kv.page_size,
            window_left=-1 if geo.window is None else geo.window - 1, logits_soft_cap=geo.softcap,
            q_data_type=inputs.q.dtype, kv_data_type=inputs.keys.dtype, sm_scale=step.scale,
            fixed_split_size=options.fixed_split_size_pages, disable_split_kv=options.disable_split_kv,
            q_len_per_req=one_q_len(step),
        )  # fmt: skip
    scales = {name: value for name, value in inputs.common().items() if name in ("k_scale", "v_scale")}

    def layer(index: int) -> None:
        wrapper.run(inputs.q, inputs.cache(index), out=step.out, **scales)

    return Prepared(layer=layer, note="planned on the host, with backend fa2")


def prepare_xqa(step: OwnStep) -> Prepared:
    """`xqa_batch_decode_with_kv_cache`, whose split count follows the width of the page table."""
    import torch
    from flashinfer.decode import xqa_batch_decode_with_kv_cache as run

    geo, inputs, options = step.geometry, step.inputs, step.options
    q_len = one_q_len(step)
    if options.ragged_q or options.q_len_per_req not in (None, q_len):
        raise CannotRunError("the runner has the same number of query tokens for every request only")
    mask = draft_mask(q_len, step.batch.size, step.device) if q_len > 1 else None
    pages = -(-step.batch.max_seq_len // step.kv.page_size)
    width = options.page_table_width or pages
    table = torch.zeros((step.batch.size, width), dtype=torch.int32, device=step.device)
    table[:, :pages] = inputs.table[:, :pages]
    common = inputs.common()
    k_scale, v_scale = common.get("k_scale", 1.0), common.get("v_scale", 1.0)
    space = workspace(step)
    lens = inputs.seq_lens.view(torch.uint32)

    def layer(index: int) -> None:
        run(
            inputs.q, inputs.cache(index), space, table, lens, step.batch.max_seq_len,
            bmm1_scale=step.scale * k_scale, bmm2_scale=v_scale, out=step.out, sinks=inputs.sinks,
            window_left=-1 if geo.window is None else geo.window - 1, q_len_per_req=q_len, mask=mask,
        )  # fmt: skip

    with compiling():
        layer(0)
    return Prepared(layer=layer)


def draft_mask(q_len: int, requests: int, device: Any) -> Any:
    """[requests, q_len, 16-bit words of a row] uint16: which draft tokens a draft token sees, a bit each: itself and
    those before it."""
    import torch

    words = -(-q_len // 32) * 2
    rows = [[((1 << (token + 1)) - 1) >> (16 * word) & 0xFFFF for word in range(words)] for token in range(q_len)]
    one = torch.tensor(rows, dtype=torch.int32, device=device).to(torch.uint16)
    return one.expand(requests, q_len, words).contiguous()


def prepare_mla(step: OwnStep) -> Prepared:
    """BatchMLAPagedAttentionWrapper with the cache's latent and its rotary part."""
    import torch
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    geo, inputs, options = step.geometry, step.inputs, step.options
    one_q_len(step)
    starts, indices, _ = page_lists(step)
    wrapper = BatchMLAPagedAttentionWrapper(workspace(step), backend=options.backend)
    with compiling():
        wrapper.plan(
            step.query_starts().cpu(), starts, indices, torch.tensor(step.batch.seq_lens, dtype=torch.int32),
            geo.q_heads, geo.v_dim, geo.head_dim - geo.v_dim, step.kv.page_size, options.causal, step.scale,
            inputs.q.dtype, inputs.keys.dtype,
        )  # fmt: skip
    latent, rotary = inputs.q[..., : geo.v_dim].contiguous(), inputs.q[..., geo.v_dim :].contiguous()

    def layer(index: int) -> None:
        cache = inputs.cache(index)[0].squeeze(2)  # [pages, page, D]
        wrapper.run(latent, rotary, cache[..., : geo.v_dim], cache[..., geo.v_dim :], out=step.out)

    return Prepared(layer=layer, note="planned on the host")


def _found(engine: str, file: str) -> Any:
    return partial(find_package, engine, "flashinfer-python", (f"flashinfer/{file}",))


RUNNERS = (
    KernelRunner(
        engine="flashinfer",
        calls="BatchDecodeWithPagedKVCacheWrapper",
        find=_found("flashinfer", "decode.py"),
        prepare=prepare_planned,
        bounds=PLANNED_BOUNDS,
        steps=(
            Trying(model="llama3-8b", context=2560),
            Trying(model="llama3-8b", batch=64, context=8192),
            Trying(model="llama3-8b", ragged=(128, 8192, 777, 2560, 1, 4096, 333, 16384)),
            Trying(model="llama3-8b", batch=2, q_len=4),
            Trying(model="llama3-8b", context=2560, options=(("path", "cuda_cores"),)),
            Trying(model="llama3-8b", batch=64, context=8192, options=(("path", "cuda_cores"),)),
            Trying(
                model="llama3-8b", ragged=(128, 8192, 777, 2560, 1, 4096, 333, 16384), options=(("path", "cuda_cores"),)
            ),
        ),
    ),
    KernelRunner(
        engine="flashinfer-mla",
        calls="BatchMLAPagedAttentionWrapper",
        find=_found("flashinfer-mla", "mla/__init__.py"),
        prepare=prepare_mla,
        steps=(
            Trying(model="deepseek-v3", tp=8, page=64),
            Trying(model="deepseek-v3", tp=8, ragged=(5000, 1200, 300), page=64),
        ),
    ),
    KernelRunner(
        engine="flashinfer-xqa",
        calls="xqa_batch_decode_with_kv_cache",
        find=_found("flashinfer-xqa", "xqa.py"),
        prepare=prepare_xqa,
        steps=(
            Trying(model="llama3-8b", context=2560),
            Trying(model="llama3-8b", batch=64, context=8192),
            Trying(model="llama3-8b", ragged=(128, 8192, 777, 2560, 1, 4096, 333, 16384)),
            Trying(model="llama3-8b", batch=4, context=8192, dtype="fp8"),
            Trying(model="llama3-8b", batch=2, context=4096, q_len=4),
        ),
        bounds=XQA_BOUNDS,
    ),
)

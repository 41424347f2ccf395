"""Which FlashAttention vLLM's FLASH_ATTN runs, and the split cap that it hands to the kernel.

Source: `vllm/v1/attention/backends/fa_utils.py: get_flash_attn_version, flash_attn_supports_kv_cache_dtype`,
`flash_attn.py: FlashAttentionMetadataBuilder`.
"""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.servers.vllm.ask import Ask

HD256_PAGE = 128
FP8 = ("fp8", "fp8_e4m3")


def runs(version: int, ask: Ask) -> bool:
    """`is_fa_version_supported`: whether the wheel's FlashAttention of this version runs on the device."""
    device = ask.device
    if version == 2:
        return device.capability >= (8, 0)
    if version == 3:
        return device.family(90)
    return device.family(90) or device.family(100) or device.family(110)


def version(
    ask: Ask, *, head_dim: int | None = None, page: int | None = None, window: bool = False, hd256: bool = False,
    sinks: bool = False,
) -> int | None:  # fmt: skip
    """`get_flash_attn_version`: 2, 3 or 4, or None when the version asked for does not run on this device.

    head_dim: None where the caller does not pass one. page: the cache's page, where it is known. hd256: the caller
    can use the Blackwell kernel of head dim 256. window: the layer has a sliding window (0.27 passes it).
    """
    if ask.device.hip:
        return None
    device, rules = ask.device, ask.rules
    if device.major == 9 and runs(3, ask):
        found = 3
    elif device.major == 10 and runs(4, ask):
        found = 4
    else:
        found = 2
    if ask.settings.flash_attn_version is not None:
        found = ask.settings.flash_attn_version
    if device.major >= 10 and found == 3:
        found = 4 if runs(4, ask) else 2
    if (
        found == 3
        and device.major == 9
        and head_dim is not None
        and (head_dim > 256 and rules.fa3_wide_heads_become_fa4)
    ):
        found = 4
    if ask.batch_invariant and found == 4:
        found = 2
    if found == 4 and head_dim is not None and _blackwell_cannot(ask, head_dim, page, window, hd256, sinks):
        found = 2
    return found if runs(found, ask) else None


def _blackwell_cannot(ask: Ask, head_dim: int, page: int | None, window: bool, hd256: bool, sinks: bool) -> bool:
    """Whether FlashAttention 4 on Blackwell lacks a kernel for this head dim, so that FlashAttention 2 steps in."""
    major, rule = ask.device.major, ask.rules.fa4_hd256
    if head_dim == 256 and rule == "kernel" and major in (10, 11):
        return not hd256 or hd256_refusal(ask, page, sinks) is not None
    if major < 10 or head_dim <= 128:
        return False
    if head_dim == 256:
        return rule == "no" or (rule == "no_window" and window)
    return not (head_dim == 192 and ask.rules.fa4_takes_192)


def hd256_refusal(ask: Ask, page: int | None, sinks: bool) -> str | None:
    """`_fa4_hd256_fallback_reason`: why the kernel of head dim 256 is not used, or None."""
    if sinks:
        return "attention sinks"
    if ask.layer.softcap:
        return "logits soft capping"
    if ask.is_quantized:
        return f"quantized KV cache dtype {ask.kv_dtype}"
    if page is not None and page % HD256_PAGE:
        return f"a KV cache block size of {page}"
    return "mm_prefix bidirectional attention" if ask.layer.image_prefix else None


def layer_version(ask: Ask) -> int | None:
    """The version that the layer's implementation runs. It does not know the cache's page yet."""
    layer = ask.layer
    return version(ask, head_dim=layer.head_dim, window=layer.window is not None, hd256=True, sinks=layer.sinks)


def takes_fp8(ask: Ask, *, with_layer: bool) -> bool:
    """Whether an FP8 cache can be read; with_layer: asked for this layer's head dim and page, else in general."""
    if ask.kv_dtype == "fp8_e5m2":
        return False
    rules = ask.rules
    head_dim = ask.layer.head_dim if with_layer else None
    found = version(
        ask, head_dim=head_dim, page=ask.question.page_size if with_layer else None, hd256=with_layer,
        sinks=with_layer and ask.layer.sinks,
    )  # fmt: skip
    on_hopper = found == 3 or (rules.fa4_hopper_fp8 and found == 4 and head_dim in (None, 512))
    return (on_hopper and ask.device.family(90)) or (rules.fa4_fp8 and found == 4 and ask.device.family(100))


def imposed_page(ask: Ask) -> int | None:
    """The page that a special kernel needs: 64 for the FP8 cache of FlashAttention 4 on Hopper at head dim 512, 128
    for the Blackwell kernel of head dim 256."""
    rules, head_dim = ask.rules, ask.layer.head_dim
    if (
        rules.fa4_hopper_fp8
        and ask.device.family(90)
        and ask.kv_dtype in FP8
        and head_dim == 512
        and version(ask, head_dim=head_dim) == 4
    ):
        return 64
    if rules.fa4_hd256 == "kernel" and head_dim == 256 and ask.device.major in (10, 11):
        return HD256_PAGE if version(ask, head_dim=head_dim, hd256=True) == 4 else None
    return None


class SplitCap(NamedTuple):
    """The bound on the split count that the metadata builder holds and the one that a decode step hands on."""

    builder: int
    """The builder's bound; 0 leaves the count to the kernel."""
    step: int
    """The bound of a decode step; 1 in batch-invariant mode."""
    ahead_of_time: bool
    """The scheduler runs once a step, ahead of the layers."""
    scheduler_step: int | None
    """The bound that the scheduler call is handed; None when there is no such call."""


def split_cap(ask: Ask, tokens: int = 4) -> SplitCap:
    """The cap of a decode step of `tokens` query tokens. The version is asked for without a head dim."""
    ahead = version(ask) == 3
    full = ask.settings.has_full_graphs
    builder = ask.settings.flash_attn_max_num_splits_for_cuda_graph if full and ahead else 0
    most = ask.settings.max_cudagraph_capture_size
    step = builder if full and (most is None or tokens <= most) else 0
    if ask.batch_invariant:
        step = 1
    scheduled = ahead and not ask.batch_invariant
    return SplitCap(builder=builder, step=step, ahead_of_time=ahead, scheduler_step=step if scheduled else None)


def mla_split_cap(ask: Ask) -> SplitCap:
    """The same for FLASH_ATTN_MLA, whose builder itself holds the 1 of batch-invariant mode."""
    ahead = version(ask) == 3
    full = ask.settings.has_full_graphs
    builder = ask.settings.flash_attn_max_num_splits_for_cuda_graph if full and ahead else 0
    if ask.batch_invariant:
        builder = 1
    return SplitCap(builder=builder, step=builder, ahead_of_time=ahead, scheduler_step=builder if ahead else None)


def cuda_graphs(ask: Ask) -> str:
    """Class of CUDA-graph support, worked out without a head dim when the module is imported."""
    return "ALWAYS" if version(ask) in ask.rules.fa_full_graph_versions else "UNIFORM_BATCH"

"""The launcher `decode_attention` and its scratch. Neither does anything that a CUDA graph cannot capture."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl

from decodecalc_kernels.blocks import MLA_HOPPER, cdiv, key_blocks, list_grid, next_power_of_2, rows_by_eights
from decodecalc_kernels.choose import Problem, choose
from decodecalc_kernels.config import SPLIT_RULES, LaunchConfig
from decodecalc_kernels.merge import merge_kernel
from decodecalc_kernels.split_list import list_splits
from decodecalc_kernels.split_list import split_list as room_for_list
from decodecalc_kernels.stage1 import stage1_kernel

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LOG2E = 1.4426950408889634
# Up to this many blocks per SM the next launch's blocks may come as early as they can.
EARLY_BLOCKS_PER_SM = 1.5

# A listed block holds its request and split in registers: at this tile, rows, warps and width of a value it would have
# 104 of them, and four such blocks fit an SM instead of five.
LIST_TIGHT, LIST_REGISTERS = (32, 16, 4, 128), 96
WARP_GROUP_ROWS = 64  # of a block that Triton multiplies by warp groups on compute capability 9.0

# Element type of the matrix products by cache type. FP8 (E4M3 and E5M2 have at most fp16's bits) and int8 convert to
# fp16 without loss, in few instructions; queries are then clamped to fp16's range.
_COMPUTE = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float8_e4m3fn: tl.float16,
    torch.float8_e5m2: tl.float16,
    torch.int8: tl.float16,
}

_NAMES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8", torch.int8: "int8",
}  # fmt: skip


@dataclass(frozen=True)
class Workspace:
    """Scratch of split launches; allocate once, share between layers and graph replays of one stream.

    `out` [tokens, q_heads, num_splits, v_dim], `max` (base-2 units) and `sum` [tokens, q_heads, num_splits], fp32;
    `arrived` int32 counters of the fused merge, which every launch leaves at zero. `entries`: the list of live splits
    of listed launches that are given none.
    """

    out: torch.Tensor
    max: torch.Tensor
    sum: torch.Tensor
    arrived: torch.Tensor
    entries: torch.Tensor

    @classmethod
    def allocate(
        cls, tokens: int, q_heads: int, v_dim: int, num_splits: int, device: torch.device | str, requests: int = 0
    ) -> Workspace:
        """Scratch for up to `tokens` query tokens of up to `requests` (default: as many) requests."""
        state = (tokens, q_heads, num_splits)
        return cls(
            torch.empty((*state, v_dim), dtype=torch.float32, device=device),
            torch.empty(state, dtype=torch.float32, device=device),
            torch.empty(state, dtype=torch.float32, device=device),
            torch.zeros(max(tokens, requests) * q_heads, dtype=torch.int32, device=device),
            room_for_list(max(tokens, requests) * num_splits, device),
        )

    def poison(self) -> None:
        """Fill the states with NaN: a launch that reads one it did not write then shows it."""
        for tensor in (self.out, self.max, self.sum):
            tensor.fill_(float("nan"))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the partial states."""
        return sum(t.numel() * t.element_size() for t in (self.out, self.max, self.sum))


def on_nvidia(device: torch.device) -> bool:
    """Whether inline PTX can run there."""
    return device.type == "cuda" and torch.version.cuda is not None


@cache
def _sm_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def pdl_supported(device: torch.device) -> bool:
    """Programmatic dependent launch: NVIDIA compute capability 9.0 and later, and a Triton that has it."""
    if not on_nvidia(device):
        return False
    try:
        from triton.language.extra.cuda import gdc_wait  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def _extent(cache: torch.Tensor) -> int:
    """Elements from a cache's first to its last, plus one."""
    return 1 + sum((n - 1) * stride for n, stride in zip(cache.shape, cache.stride()))


def stage1_kernels() -> tuple[Any, ...]:
    """The stage-1 kernels that can run here, as Triton's functions."""
    try:
        from decodecalc_kernels.mla_hopper import mla_stage1_kernel
    except ImportError:
        return (stage1_kernel,)
    return stage1_kernel, mla_stage1_kernel


def no_warp_groups(
    q: torch.Tensor, k_cache: torch.Tensor, *, mla: bool, v_dim: int | None, window: int | None, softcap: float,
    sinks: torch.Tensor | None, scales: tuple[Any, Any],
) -> str:  # fmt: skip
    """Why `mla_stage1_kernel` cannot run this call; empty when it can."""
    heads, d = q.shape[1:]
    kv_heads = k_cache.shape[2]
    if len(stage1_kernels()) < 2:
        return "needs Gluon, which Triton 3.6 and later have"
    if not on_nvidia(q.device) or torch.cuda.get_device_capability(q.device) != (9, 0):
        return "runs on GPUs of compute capability 9.0"
    if not mla or (d, v_dim, kv_heads) != (576, 512, 1):
        return "takes latents of 576 elements, the first 512 of which are the value"
    if q.dtype not in (torch.bfloat16, torch.float16) or k_cache.dtype not in (q.dtype, torch.float8_e4m3fn):
        return "takes queries in bf16 or fp16, and a cache of the same type or of FP8"
    if q.stride(0) != heads * q.stride(1) or q.stride(1) % 8:
        return "takes equally spaced query rows that begin at multiples of 16 bytes"
    spacing = 64 if k_cache.element_size() == 1 else 16
    if any(stride % spacing for stride in k_cache.stride()[:2]):
        return f"takes keys and pages that begin at multiples of {spacing} elements"
    if any(t.data_ptr() % 16 for t in (q, k_cache)):
        return "takes tensors that begin at a multiple of 16 bytes"
    if window or softcap or sinks is not None or any(isinstance(s, torch.Tensor) for s in scales):
        return "takes no window, cap, sinks or scales in tensors"
    return ""


def _check(ok: bool, text: str) -> None:
    if not ok:
        raise ValueError(f"decode_attention: {text}")


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    seq_lens: torch.Tensor,
    config: LaunchConfig | None = None,
    page_table: torch.Tensor | None = None,
    kv_indptr: torch.Tensor | None = None,
    kv_indices: torch.Tensor | None = None,
    v_dim: int | None = None,
    q_len: int = 1,
    query_start: torch.Tensor | None = None,
    holes: bool = False,
    split_values: torch.Tensor | None = None,
    split_list: torch.Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: float | torch.Tensor = 1.0,
    v_scale: float | torch.Tensor = 1.0,
    workspace: Workspace | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    record: torch.Tensor | None = None,
    run: str = "both",
) -> torch.Tensor:
    """Decode attention over a paged KV cache, split along the keys as `config` says.

    Without a config the registered chooser says (`decodecalc_kernels.choose`): it reads the lengths on the host, so
    that a CUDA graph needs a config, chosen once before the capture.

    Shapes (T tokens, B requests; every last dimension contiguous, other strides free):

    * q [T, q_heads, D]: bf16, fp16 or fp32. Request b's tokens are rows b·q_len … or, with `query_start` [B + 1] int32,
      rows query_start[b] … query_start[b + 1], at most `q_len` of them. Its token t sees keys up to
      seq_lens[b] - its tokens + t (causal), and with `window` only the last `window` of those, its own included.
    * k_cache [pages, page, kv_heads, D], v_cache [pages, page, kv_heads, v_dim]: bf16, fp16, fp32, fp8 e4m3 or e5m2, or
      int8 (values times `k_scale` / `v_scale`: numbers, or tensors read on the device, of one element or one for each
      KV head). v_cache None: MLA, the value is the first `v_dim` elements of the key, read once where `v_dim` is the
      largest power of two in D (576 / 512).
    * seq_lens [B] int32, the query tokens counted in. 0 is an empty (padded) request: its output is zeros.
    * page_table [B, pages per request] int32; or kv_indptr [B + 1] and kv_indices int32, one cache slot
      (page · page size + place) per key.
    * holes: entries of the table or list below 0 name nothing, and their keys are left out of the sum, wherever they
      are: the padded lists of sparse attention. Every query token of a sparse layer has a list of its own: make it a
      request of one token (q_len 1) whose page_table row is its list, over the cache seen as pages of one key.
    * split_values [B] int32: counts or sizes, for those rules of `config`.
    * split_list: of a listed launch, what `list_splits` made of the same config and lengths, once for all layers. None
      makes it anew in the workspace, by a kernel of its own that takes about 2 µs.
    * sinks [q_heads]: a logit per head that joins the softmax's sum once.
    * lse [T, q_heads] fp32 (optional, written): natural log-sum-exp per row, sinks included, -inf for empty requests.
    * out [T, q_heads, v_dim]: written and returned; allocated in q's type when None.

    `workspace`: see Workspace; allocated when None. With `workspace` and `out` given nothing is allocated and nothing
    waits for the device, so the call can be captured in a CUDA graph and replayed after `seq_lens`, `page_table`,
    `split_values` or the cache changed in place. `run`: "stage1" or "merge" launches that kernel alone (timing).

    Splits beyond the grid are not read: `config.num_splits · keys per split` must cover the longest request, and
    `config.list_length` all live splits. Raises ValueError for shapes, types or a config that do not fit; lengths are
    on the device and are not looked at.
    """
    tokens, q_heads, d = q.shape
    mla = v_cache is None
    _check(k_cache.dim() == 4, "k_cache must be [pages, page, kv_heads, head_dim]")
    _, page, kv_heads, k_dim = k_cache.shape
    _check(k_dim == d, f"q has head_dim {d}, k_cache {k_dim}")
    _check(q_heads % kv_heads == 0, f"q_heads {q_heads} is not a multiple of kv_heads {kv_heads}")
    _check(d >= 16, "head_dim must be at least 16")
    _check(k_cache.dtype in _COMPUTE, f"no kernel for a {k_cache.dtype} cache")
    requests = seq_lens.shape[0]
    group = q_heads // kv_heads
    d1, d2 = key_blocks(d)
    if v_cache is None:
        _check(v_dim is not None and v_dim <= d, "without v_cache, v_dim (at most head_dim) is needed")
        v_cache = k_cache[..., :v_dim]
        shared = v_dim == d1
    else:
        shared = False
        _check(v_cache.shape[:3] == k_cache.shape[:3], "k_cache and v_cache differ in pages, page size or heads")
        _check(v_cache.dtype == k_cache.dtype, "k_cache and v_cache differ in type")
    v_dim = v_cache.shape[3]
    v_block = max(16, next_power_of_2(v_dim))
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        _check(tensor.stride(-1) == 1, f"the last dimension of {name} must be contiguous")
    _check(q_len >= 1, "q_len must be at least 1")
    if query_start is None:
        _check(tokens == requests * q_len, f"{tokens} query rows for {requests} requests of q_len {q_len}")
    _check(not holes or (q_len == 1 and not window), "holes are for lists of one query token, without a window")
    flat = page_table is None
    if flat:
        _check(kv_indptr is not None and kv_indices is not None, "page_table, or kv_indptr and kv_indices, is needed")
        for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
            _check(
                page == 1 or tensor.stride(0) == page * tensor.stride(1),
                f"a flat index list needs equally spaced slots in {name}",
            )
        # A page of one: slots are addressed by the slot stride alone, pages need not exist.
    if config is None:
        config = choose(
            Problem(
                q_heads=q_heads,
                kv_heads=kv_heads,
                head_dim=d,
                v_dim=v_dim,
                mla=mla,
                seq_lens=tuple(seq_lens.tolist()),
                q_lens=(q_len,) * requests if query_start is None else tuple(query_start.diff().tolist()),
                kv_dtype=_NAMES[k_cache.dtype],
                query_dtype=_NAMES[q.dtype],
                page_size=1 if flat else page,
                window=window,
                warp_groups=not no_warp_groups(
                    q,
                    k_cache,
                    mla=mla,
                    v_dim=v_dim,
                    window=window,
                    softcap=softcap,
                    sinks=sinks,
                    scales=(k_scale, v_scale),
                ),
                device_index=q.device.index or 0 if q.device.type == "cuda" else None,
            )
        )
    rule = SPLIT_RULES.index(config.split_rule)
    _check(config.listed or split_list is None, "split_list is for listed launches")
    _check(rule < 2 or split_values is not None, f"split_rule {config.split_rule!r} needs split_values")
    window = window or 0
    if out is None:
        out = torch.empty(tokens, q_heads, v_dim, dtype=q.dtype, device=q.device)
    _check(out.shape == (tokens, q_heads, v_dim) and out.stride(-1) == 1, "out must be [tokens, q_heads, v_dim]")
    _check(lse is None or lse.is_contiguous(), "lse must be contiguous")
    direct = config.direct
    fused = config.merge == "fused" and not direct
    if workspace is None and not direct:
        workspace = Workspace.allocate(tokens, q_heads, v_dim, config.num_splits, q.device, requests * q_len)
    if workspace is not None and not direct:
        # The states are addressed densely for this launch's num_splits: a larger scratch serves smaller launches.
        need = tokens * q_heads * config.num_splits
        _check(
            workspace.max.numel() >= need and workspace.out.numel() >= need * v_dim,
            f"workspace too small: {need} states of {v_dim} are needed",
        )

    compute = _COMPUTE[k_cache.dtype]
    scale = d**-0.5 if scale is None else scale
    k_tensor, v_tensor = isinstance(k_scale, torch.Tensor), isinstance(v_scale, torch.Tensor)
    scale_counts = {t.numel() for t in (k_scale, v_scale) if isinstance(t, torch.Tensor)}
    _check(
        scale_counts in (set(), {1}, {kv_heads}),
        "k_scale and v_scale in tensors must both have one element, or both one for each KV head",
    )
    scale_group = group if scale_counts == {kv_heads} else q_heads  # query heads that share an element
    scale_k = scale * (1.0 if k_tensor else float(k_scale))
    on_cuda = on_nvidia(q.device)
    pdl = config.pdl if pdl_supported(q.device) else "none"
    rows_used = config.rows_used or config.rows
    row_blocks = cdiv(q_len * group, rows_used)
    rows_used = rows_by_eights(rows_used, q_len * group)
    # A rule that reads no value of each request gets some other array: the kernels are the same.
    splits = (seq_lens if split_values is None else split_values, rule, config.split_value, config.split_unit)
    strides = (
        q.stride(0), q.stride(1),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2),
        out.stride(0), out.stride(1),
    )  # fmt: skip
    states = (workspace.out, workspace.max, workspace.sum) if workspace is not None and not direct else (None,) * 3
    same_layout = k_cache.stride() == v_cache.stride()
    wide = max(_extent(k_cache), _extent(v_cache)) >= 2**31
    # Values of one byte in pairs; E4M3 on NVIDIA 8.9 and later, where the conversion is one instruction. Not for blocks
    # of warp-group products, which take values from shared memory anyway (and whose descriptors of the second half
    # ptxas 12.8 overwrites: wrong results at a width of 64).
    v_pairs = (
        k_cache.element_size() == 1 and on_cuda and not shared and v_dim % 2 == 0 and config.rows < WARP_GROUP_ROWS
        and all(n % 2 == 0 for n in (*v_cache.stride()[:3], v_cache.data_ptr()))
        and (k_cache.dtype != torch.float8_e4m3fn or torch.cuda.get_device_capability(q.device) >= (8, 9))
    )  # fmt: skip
    page_shift = page.bit_length() - 1 if page & (page - 1) == 0 else -1
    clamp = int(config.window_partition == "window")

    grid = (kv_heads * row_blocks, requests + config.idle_requests, config.num_splits)
    if config.listed:
        grid = (grid[0], *list_grid(config.list_length or requests * config.num_splits))
        if split_list is None and workspace is not None and run in ("both", "stage1"):
            split_list = list_splits(
                config, seq_lens, q_len=q_len, query_start=query_start, split_values=split_values, window=window,
                out=workspace.entries,
            )  # fmt: skip
    # Blocks of the next launch that come early sit on SMs where this one's are still at work, and the rest of them
    # then has to crowd elsewhere: up to 16 % slower (NOTES.md). A launch that leaves most slots free has room for both.
    crowded = on_cuda and grid[0] * grid[1] * grid[2] > EARLY_BLOCKS_PER_SM * _sm_count(q.device)

    chained = {"launch_pdl": True} if pdl == "chain" else {}
    if config.kernel == MLA_HOPPER["kernel"] and run in ("both", "stage1"):
        from decodecalc_kernels.mla_hopper import launch_mla

        reason = no_warp_groups(
            q, k_cache, mla=mla, v_dim=v_dim, window=window, softcap=softcap, sinks=sinks, scales=(k_scale, v_scale),
        )  # fmt: skip
        _check(not reason, f"kernel {config.kernel} {reason}")
        whole = {"size": config.split_value, "sizes": 1}.get(config.split_rule, config.split_unit)
        _check(
            direct or whole % config.tile_keys == 0,
            f"kernel {config.kernel} takes splits of whole tiles of {config.tile_keys} keys, known on the host",
        )
        launch_mla(
            grid, q, k_cache, out, lse, states, seq_lens, kv_indices if flat else page_table,
            kv_indptr if flat else None, query_start, splits, record,
            (scale_k * LOG2E, float(v_scale)), config.num_splits, requests,
            q_len=q_len, holes=holes, rows_used=rows_used, direct=direct, pdl=pdl != "none",
            late=crowded and direct, **chained,
        )  # fmt: skip
    elif run in ("both", "stage1"):
        options = chained
        if config.listed and on_cuda and (config.tile_keys, config.rows, config.warps, v_block) == LIST_TIGHT:
            options = {**chained, "maxnreg": LIST_REGISTERS}
        stage1_kernel[grid](
            q, k_cache, v_cache, out, lse if direct or fused else None, *states,
            workspace.arrived if fused and workspace is not None else None,
            seq_lens, kv_indices if flat else page_table, kv_indptr, query_start, splits[0],
            sinks if direct or fused else None,
            k_scale if k_tensor else None, v_scale if v_tensor else None, record,
            scale_k / softcap if softcap else scale_k * LOG2E, softcap * LOG2E,
            1.0 if v_tensor else float(v_scale),
            *splits[1:], config.num_splits, requests, group, q_heads, *strides,
            0 if flat else page_table.stride(0), split_list, scale_group,
            ROW_BLOCKS=row_blocks, Q_LEN=q_len, D=d, D1=d1, D2=d2, D_V=v_dim, DV_BLOCK=v_block,
            SHARED_KV=shared, SAME_LAYOUT=same_layout,
            WIDE=wide, V_PAIRS=v_pairs, PAGE=page, PAGE_SHIFT=page_shift, FLAT=flat, HOLES=holes,
            WINDOW=window, CLAMP=clamp, SOFTCAP=bool(softcap),
            TILE=config.tile_keys, ROWS=config.rows, ROWS_USED=rows_used, STAGES=config.stages,
            COMPUTE=compute, OPERAND=tl.float32 if _INTERPRETED else compute, P_PARTS=config.p_parts,
            DIRECT=direct, FUSED=fused,
            MERGE_ROWS=next_power_of_2(min(rows_used, q_len * group)) if fused else 0,
            MERGE_SPLITS=config.merge_splits if fused else 0,
            RECORD=record is not None, ON_CUDA=on_cuda, PDL=pdl != "none", LATE=crowded and direct,
            LISTED=config.listed, num_warps=config.warps, num_stages=config.stages, **options,
        )  # fmt: skip
    if run in ("both", "merge") and not direct and not fused:
        dims = min(config.merge_dims, v_block)
        options = {"launch_pdl": True} if pdl != "none" else {}
        merge_kernel[(cdiv(q_len * q_heads, config.merge_rows), requests, cdiv(v_dim, dims))](
            *states, out, lse, seq_lens, query_start, splits[0], sinks, v_scale if v_tensor else None,
            1.0 if v_tensor else float(v_scale), *splits[1:], config.num_splits, q_heads, scale_group,
            out.stride(0), out.stride(1),
            Q_LEN=q_len, WINDOW=window, CLAMP=clamp, D_V=v_dim, ROWS=config.merge_rows,
            SPLITS=config.merge_splits, DIMS=dims, PDL=pdl != "none", LATE=crowded,
            num_warps=config.merge_warps, num_stages=1, **options,
        )  # fmt: skip
    return out

"""trtllm-gen: decode attention of TensorRT-LLM's precompiled Blackwell kernels, as FlashInfer launches them.

Servers call it for grouped-query layers and for MLA, dense or over a list of selected tokens. The split follows the
bound that the caller passes as the longest length (`max_kv_len`), never the requests, so that a replayed CUDA graph
keeps the split it was captured with. One wave of blocks is the aim. Up to 16 splits are reduced by a thread block
cluster through shared memory, more by the last block through global memory, and keeps-AB kernels of wide values by a
kernel of their own.

Read from flashinfer-python 0.7.4, 0.7.2.post1 and 0.6.13: csrc/trtllm_fmha_kernel_launcher.cu
(trtllm_paged_attention_launcher), include/flashinfer/trtllm/fmha/fmhaKernels.cuh, csrc/fmhaReduction.cu
(runFmhaReduction). The kernels themselves are closed: which keys a split gets is taken from the host's own cost model,
whole loop iterations in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.engines.flashinfer.releases import RELEASES
from decodecalc.engines.trtllm_gen.kernels import (
    CGA,
    DISABLED,
    DYNAMIC_PAGE,
    GMEM_SEPARATE,
    HEAD_DIMS,
    MLA_DIMS,
    MODE_NAMES,
    TILE_KV,
    CubinFamily,
    chunk_keys,
    reduction_grid,
)
from decodecalc.engines.trtllm_gen.selection import (
    CubinLaunch,
    FmhaProblem,
    TrtllmGenRules,
    partial_bytes,
    select_launch,
)
from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, row
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.plan import CLUSTER, LAST_BLOCK, MERGE_KERNEL, KeyRanges
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import SAME, SIXTEEN_BITS, Numbers, Takes, only
from decodecalc.launch.traits import Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

DTYPES = (("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8"), ("bf16", "fp8"), ("fp16", "fp8"))  # queries, keys
MLA_DTYPES = (("bf16", "bf16"), ("fp8", "fp8"))
SPARSE_LATENT = 576  # sparse MLA has kernels for this latent only
OUTPUTS = {"bf16": ("bf16",), "fp16": ("fp16",), "fp8": ("bf16", "fp16", "fp8")}
GPCS, GPC_SMS = 8, 20  # graphics processing clusters of a Blackwell die pair, and the most SMs of one
DEFAULT_WORKSPACE = 128 << 20  # bytes; the size in the examples of FlashInfer's documentation
REDUCTION_THREADS = 512


@dataclass(frozen=True, slots=True)
class TrtllmGenOptions(EngineOptions):
    """What the caller and the environment of `trtllm_batch_decode_with_kv_cache` (and `_mla`) decide."""

    max_kv_len: int | None = option(
        None,
        "int?",
        "the longest length that the caller promises (max_seq_len), which alone decides the split; by default "
        "the longest request of the step",
        "max_seq_len",
        low=1,
    )
    sparse_mla_top_k: int = option(
        0,
        "int",
        "keys that sparse MLA selects for a token; 0 takes the width of a sparse layer's list, or all keys",
        "sparse_mla_top_k",
    )
    o_dtype: str | None = option(
        None,
        "str?",
        "element type of the output; by default it is the query's, and bf16 for fp8 queries",
        "out_dtype",
        choices=("bf16", "fp16", "fp8"),
    )
    workspace_bytes: int = option(
        DEFAULT_WORKSPACE,
        "int",
        "bytes of the caller's workspace, which partial states of several waves must fit into",
    )
    multi_wave_env: bool = option(
        False,
        "bool",
        "let a split use up to four waves where one wave has room for two splits at most (0.7.4)",
        "FLASHINFER_TRTLLM_GEN_MULTI_WAVE_KV_SPLIT=1",
    )
    gpc_sms: tuple[int, ...] | None = option(
        None,
        "ints?",
        "SMs of each graphics processing cluster, which bound the thread block clusters that run at a time; by "
        "default eight clusters, as even as pairs of SMs allow",
        low=1,
    )


class TrtllmGenDetail(NamedTuple):
    """The launch in the host code's words."""

    kernel: Any
    """Name of the precompiled kernel."""
    kernel_type: Any
    """`swaps_mma_ab`: keys are the rows of the matrix product; `keeps_mma_ab`: queries are."""
    scheduler: Any
    """`persistent` where nothing is split, else `static`."""
    multi_ctas_kv_mode: Any
    """Where splits are combined."""
    tile_q: Any
    """Query rows of a block, which is its step along the queries too."""
    tile_kv: int
    """Keys of one matrix product."""
    step_kv: Any
    """Keys of one loop iteration."""
    head_dim_per_cta_v: Any
    """Value elements of a block."""
    two_cta_mma: Any
    """Two blocks share a matrix product."""
    groups_tokens_heads_q: Any
    """Query tokens and heads share a tile."""
    ctas_per_seq_q: Any
    """Blocks along a request's query tokens."""
    ctas_per_seq_kv: Any
    """Splits."""
    cluster_x: Any
    """Blocks of a cluster."""
    smem: Any
    """Dynamic shared memory of a block in bytes."""
    queried_cluster: Any
    """Cluster size that the host asked the driver about; 0 where it did not ask."""
    max_active_clusters: Any
    """Clusters of that size that run at a time."""


class TrtllmGen(Policy):
    """One wave of splits by the promised length, reduced in a cluster, by the last block or by a kernel."""

    name = "trtllm-gen"
    title = "trtllm-gen decode attention (SM100/SM103) through FlashInfer"
    releases = RELEASES
    word_for_split = "CTA along the keys"
    options_type = TrtllmGenOptions
    versions = (
        PolicyVersion(
            name="0.7.4",
            source="flashinfer-python 0.7.4: fmhaKernels.cuh, trtllm_fmha_kernel_launcher.cu, fmhaReduction.cu",
            covers=("0.7.4", "0.7.4"),
            rules=TrtllmGenRules(),
            note=(
                "this was recorded from the host code over the kernel list of flashinfer-cubin 0.6.13 and not "
                "verified on a GPU; an environment variable allows several waves of splits"
            ),
        ),
        PolicyVersion(
            name="0.7.2.post1",
            source="flashinfer-python 0.7.2.post1: the same files",
            covers=("0.7.2", "0.7.2.post1"),
            rules=TrtllmGenRules(multi_wave=False),
            note=(
                "this was recorded from the host code over the kernel list of flashinfer-cubin 0.6.13 and not "
                "verified on a GPU; more than 16 splits become 16 where a cluster can then reduce them"
            ),
        ),
        PolicyVersion(
            name="0.6.13",
            source="flashinfer-python 0.6.13 and flashinfer-cubin 0.6.13: the same files",
            covers=("0.6.13", "0.6.13"),
            rules=TrtllmGenRules(
                clamps_to_cluster=False, pads_mla_heads=False, groups_mla_tokens=False,
                cluster_for_one_mla_request=False, short_draft_halves=False, wide_keeps=False, one_head_pages=False,
                multi_wave=False,
            ),
            note="this was recorded from the host code and its own kernel list, and not verified on a GPU",
        ),
    )  # fmt: skip
    rule = (
        "S = min(ceil(window / (2 * step)), max(1, SMs // unsplit blocks)), window being the promised length, no more "
        "than top-k or the sliding window and a step; from 0.7.2 on more than 16 splits become 16 where each then has "
        "at most 4096 keys. S = 1 runs a persistent kernel, up to 16 a cluster, more go through global memory"
    )
    traits = Traits(
        server_names=("trtllm_mha", "trtllm_mla"), longest_option="max_kv_len", frozen_option="max_kv_len", sparse=True
    )

    def combinations(self, options: TrtllmGenOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """Describe which layers, caches and devices the version takes."""
        return tuple(_combinations(options, version.rules))

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: TrtllmGenOptions,
        version: PolicyVersion,
    ) -> Launches:
        """Apply the rule to arrays.

        Raises GateError for another architecture, or a layer, cache, page or window that no kernel serves, and
        InputError for a promised length below the longest request.
        """
        rules: TrtllmGenRules = version.rules
        o_dtype = options.o_dtype or ("bf16" if kv.query_dtype == "fp8" else kv.query_dtype)
        keys = _promised_keys(batches, options)
        top_k = _top_k(geo, options)
        _check(geo, batches, kv, gpu, top_k, o_dtype, keys, rules)
        family = CubinFamily.of(geo, kv, top_k > 0, o_dtype)
        q_len = np.maximum(batches.max_q_len, 1)
        problem = FmhaProblem(
            family=family, rules=rules, q_heads=geo.q_heads, group=geo.group, sms=gpu.sm_count, window=geo.window,
            top_k=top_k, batch=batches.batch, q_len=q_len, keys=keys,
        )  # fmt: skip
        gpcs = options.gpc_sms or even_gpcs(gpu.sm_count)
        found = select_launch(problem, gpcs, options.workspace_bytes, options.multi_wave_env)
        _check_selection(found, geo, version)
        return _launches(problem, found, geo, batches, gpu)


def _combinations(options: TrtllmGenOptions, rules: TrtllmGenRules) -> Iterator[Takes]:
    """Describe what the precompiled kernels take."""
    layer = Takes(devices=("sm100", "sm103"), softcaps=False)
    types = (
        replace(layer, cache_dtypes=SIXTEEN_BITS, query_dtypes=SAME),
        replace(layer, cache_dtypes=("fp8",), query_dtypes=(*SIXTEEN_BITS, "fp8")),
    )
    small, large = only(16, 32, 64), Numbers(low=DYNAMIC_PAGE, powers_of_2=True)
    several = Numbers(low=1 if rules.one_head_pages else 2)
    for one in types:
        plain = replace(one, mla=False, value_dims=None)
        yield replace(plain, head_dims=only(*(key for key, _ in HEAD_DIMS)), page_sizes=small)
        yield replace(plain, head_dims=only(64, 128, 256), page_sizes=large, groups=several)
    groups = Numbers(without=(65, 127)) if rules.pads_mla_heads else Numbers()
    latent = replace(layer, mla=True, cache_dtypes=("bf16", "fp8"), query_dtypes=SAME, groups=groups)
    for key, value in MLA_DIMS:
        yield replace(latent, head_dims=only(key), value_dims=only(value), page_sizes=small)
        if key == SPARSE_LATENT:
            # A list holds single keys, so that the page plays no part.
            dense = options.sparse_mla_top_k > 0
            yield replace(latent, head_dims=only(key), value_dims=only(value), sparse=True, dense=dense)


def even_gpcs(sms: int) -> tuple[int, ...]:
    """SMs of each graphics processing cluster where the option is not given: pairs of SMs are dealt to eight or more.

    >>> even_gpcs(148)
    (20, 20, 18, 18, 18, 18, 18, 18)
    """
    count = max(GPCS, cdiv(sms, GPC_SMS))
    pairs = sms // 2
    return tuple(2 * (pairs // count + (i < pairs % count)) for i in range(count))


def _top_k(geo: Geometry, options: TrtllmGenOptions) -> int:
    """Entries of the lists that are read; 0 for whole sequences. The option comes before the layer's own width."""
    gather = geo.gather
    if options.sparse_mla_top_k or gather is None:
        return options.sparse_mla_top_k
    if gather.topk is None or gather.window is not None or gather.per_kv_head:
        raise GateError("trtllm-gen: sparse MLA reads one list of a fixed width for all heads", "sparse_layer")
    return gather.topk


def _promised_keys(batches: Batches, options: TrtllmGenOptions) -> Any:
    """The longest length as the caller gives it [N]."""
    longest = batches.max_seq_len
    if options.max_kv_len is None:
        return np.maximum(longest, 1)
    if (longest > options.max_kv_len).any():
        raise InputError(f"trtllm-gen: max_kv_len is {options.max_kv_len}, but a request has {int(longest.max())} keys")
    return np.full(batches.n, options.max_kv_len, dtype=np.int64)


def _check(
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    gpu: Gpu,
    top_k: int,
    o_dtype: str,
    keys: Any,
    rules: TrtllmGenRules,
) -> None:
    """Refuse what no kernel serves."""
    dims, g, page = (geo.head_dim, geo.v_dim), geo.group, kv.page_size
    sparse = top_k > 0
    types = MLA_DTYPES if geo.mla else DTYPES
    power = page & (page - 1) == 0
    if geo.mla:
        pages = sparse or page in (16, 32, 64)
    else:
        large = geo.head_dim <= 256 and (g > 1 or rules.one_head_pages)
        pages = page in (16, 32, 64) or (page >= DYNAMIC_PAGE and power and large)
    short = geo.window is not None and bool((keys > geo.window).any())
    refusals = (
        (gpu.is_hip or gpu.sm not in (100, 103), "not_sm100", f"runs on SM100 and SM103, not on {gpu.label}"),
        (
            dims not in (MLA_DIMS if geo.mla else HEAD_DIMS),
            "head_dim",
            f"keys and values have {'576/512 or 320/256' if geo.mla else '64, 128, 256 or 512'} elements, not "
            f"{geo.head_dim}/{geo.v_dim}",
        ),
        (geo.softcap is not None, "softcap", "no logit soft cap"),
        (
            sparse and (not geo.mla or geo.head_dim != 576),
            "sparse_mla",
            "a list of selected tokens needs MLA of 576/512 elements",
        ),
        (
            (kv.query_dtype, kv.dtype) not in types,
            "dtype",
            f"{', '.join('/'.join(pair) for pair in types)} are the types of queries and keys that are planned, "
            f"not {kv.query_dtype}/{kv.dtype}",
        ),
        (
            o_dtype not in (("bf16",) if geo.mla else OUTPUTS.get(kv.query_dtype, ())),
            "output_dtype",
            f"no kernel writes {o_dtype} from {kv.query_dtype} queries{' of MLA' if geo.mla else ''}",
        ),
        (
            not pages,
            "page_size",
            f"pages have 16, 32 or 64 keys, or a power of two from {DYNAMIC_PAGE} on for grouped-query heads up to 256 "
            f"elements, not {page}",
        ),
        (
            rules.pads_mla_heads and geo.mla and 64 < g < 128,
            "mla_heads",
            f"MLA with 65 to 127 query heads per rank has no kernel, and this rank has {g}",
        ),
        (
            geo.mla and not sparse and short,
            "window",
            "MLA needs a window that covers all keys that the caller promises",
        ),
        (
            not geo.mla and kv.query_dtype != kv.dtype and g > 16 and g % 16 != 0,
            "head_group",
            f"groups of {g} query heads do not fill tiles of 16 rows",
        ),
    )
    for refused, code, why in refusals:
        if refused:
            raise GateError(f"trtllm-gen: {why}", code)


def _check_selection(found: CubinLaunch, geo: Geometry, version: PolicyVersion) -> None:
    """Refuse what the host code refuses after it has selected."""
    if found.grid.uneven.any():
        raise GateError(
            f"trtllm-gen: {geo.q_heads} query heads over {geo.kv_heads} KV heads do not fill the tiles (the "
            "numHeadsQ/numHeadsKv is not supported)",
            "head_group",
        )
    if not found.settled.all():
        raise GateError("trtllm-gen: kernel selection does not converge for this step", "selection")
    if version.name == "0.6.13" and not found.listed.all():
        raise GateError(
            "trtllm-gen: Missing TRTLLM-GEN kernel (decode): flashinfer-cubin 0.6.13 has none for this step",
            "no_kernel",
        )


def _launches(problem: FmhaProblem, found: CubinLaunch, geo: Geometry, batches: Batches, gpu: Gpu) -> Launches:
    """The selection as launches."""
    family, choice, grid = problem.family, found.choice, found.grid
    is_split = grid.splits > 1
    step = family.step_kv(choice.keeps)
    # Blocks of a request: those of its own query tokens, over heads, shares of the value and pairs.
    tokens = np.maximum(np.where(choice.groups, choice.tile_q // geo.group, 1), 1)
    of_tokens = cdiv(batches.q_lens, tokens[:, None])
    columns = of_tokens * (grid.y * np.where(choice.pair, 2, 1))[:, None]
    # Keys: what a window hides is skipped in whole iterations; sparse MLA reads a list of selected keys.
    lens = batches.seq_lens
    first = np.zeros_like(lens)
    if problem.window is not None and not family.mla:
        hidden = np.maximum(lens - batches.q_lens - problem.window + 1, 0)
        first = hidden // step[:, None] * step[:, None]
    read = lens - first
    if problem.top_k:
        read = np.minimum(read, problem.top_k)
    chunk = np.maximum(chunk_keys(read, grid.splits[:, None], step[:, None]), 1)
    live = cdiv(read, chunk)
    in_memory = is_split & (choice.mode != CGA)
    partial = np.where(in_memory[:, None], np.minimum(cdiv(read, TILE_KV), grid.splits[:, None]), 0)
    reduction = reduction_grid(
        family, geo.group, geo.q_heads, gpu.sm_count, choice.tile_q, choice.width, choice.pair, grid.ctas_q, grid.z
    )
    separate = choice.mode == GMEM_SEPARATE
    smem = family.shared_memory(choice.tile_q, choice.keeps, choice.mode, choice.persistent, choice.width, choice.pair)
    names = _names(problem, found)
    live_blocks = batches.total(columns * live)
    stages = tuple(
        KernelArray(
            name=name,
            role="stage1",
            grid=(grid.x, grid.y, grid.z),
            threads=family.threads("KeepsAb" in name),
            live_blocks=live_blocks,
            tile_keys=step,
            when=names == name,
        )
        for name in dict.fromkeys(names.tolist())
    )
    rows = np.where(choice.groups, np.minimum(problem.q_len, tokens), 1) * geo.group

    def selected(n: int) -> KeyRanges:
        r = lens.shape[1]
        return KeyRanges(row(first, n, r), row(chunk, n, r), row(live, n, r), row(read, n, r))

    return Launches(
        is_split=is_split,
        kernels=(
            *stages,
            KernelArray(
                name="fmhaReductionKernel",
                role="merge",
                grid=reduction,
                threads=REDUCTION_THREADS,
                live_blocks=reduction[0] * reduction[1] * reduction[2],
                when=separate & is_split,
            ),
        ),
        requested=np.broadcast_to(grid.splits[:, None], lens.shape),
        launched=grid.splits,
        live=live,
        split_keys=chunk,
        first_key=first,
        keys_read=read,
        blocks_per_split=columns,
        unsplit_blocks=batches.total(columns * (lens > 0)),
        tile_keys=step,
        block_rows=choice.tile_q,
        live_rows=np.minimum(rows, choice.tile_q),
        merge_in=np.where(separate, MERGE_KERNEL, np.where(choice.mode == CGA, CLUSTER, LAST_BLOCK)),
        partial_splits=partial,
        state_values=family.vo // 2 + 2 * (family.vo // choice.width),
        scratch_bytes=np.where(in_memory, partial_bytes(gpu.sm_count, choice, grid), 0),
        determinism="batch-dependent",
        detail=TrtllmGenDetail(
            kernel=names,
            kernel_type=np.where(choice.keeps, "keeps_mma_ab", "swaps_mma_ab"),
            scheduler=np.where(choice.persistent, "persistent", "static"),
            multi_ctas_kv_mode=np.array(MODE_NAMES)[choice.mode],
            tile_q=choice.tile_q,
            tile_kv=TILE_KV,
            step_kv=step,
            head_dim_per_cta_v=choice.width,
            two_cta_mma=choice.pair,
            groups_tokens_heads_q=choice.groups,
            ctas_per_seq_q=grid.ctas_q,
            ctas_per_seq_kv=grid.splits,
            cluster_x=grid.cluster,
            smem=smem,
            queried_cluster=found.asked_cluster,
            max_active_clusters=found.active_clusters,
        ),
        gates=_gates(problem, found, gpu),
        # The keys of sparse MLA are numbered along the list of selected ones.
        key_ranges=selected if problem.top_k else None,
    )


def _names(problem: FmhaProblem, found: CubinLaunch) -> Any:
    """The kernel of every step [N]."""
    choice = found.choice
    parts = (
        choice.tile_q, choice.keeps, choice.mode, choice.persistent, choice.width, choice.pair, choice.groups,
        problem.sliding,
    )  # fmt: skip
    steps = list(zip(*(part.tolist() for part in parts)))
    named = {step: problem.family.name(*step) for step in set(steps)}
    return np.array([named[step] for step in steps], dtype=object)


def _gates(problem: FmhaProblem, found: CubinLaunch, gpu: Gpu) -> tuple[GateArray, ...]:
    """The conditions that decided."""
    grid, mode = found.grid, found.choice.mode

    def split(n: int) -> str:
        unsplit = at(grid.blocks, n) // max(at(grid.splits, n), 1)
        return (
            f"{gpu.sm_count} SMs have room for {at(grid.wanted, n)} times {unsplit} blocks, and "
            f"{at(problem.keys, n)} promised keys for {at(grid.most, n)} splits of two iterations, "
            f"so S = {at(grid.splits, n)}"
        )

    def cluster(n: int) -> str:
        if at(mode, n) == DISABLED:
            return "nothing is split, so one block walks all keys"
        asked = at(found.asked_cluster, n)
        if not asked:
            return (
                f"{at(grid.splits, n)} splits of values of {problem.family.vo} elements do not reduce in a cluster; "
                "only up to 16 splits of a swaps-AB kernel below 512 elements do"
            )
        return (
            f"{at(found.active_clusters, n)} clusters of {asked} blocks run at a time, and all blocks of the "
            f"launch have to run at once"
        )

    return (
        GateArray(name="split", passed=grid.splits > 1, reason=split),
        GateArray(name="cluster_reduction", passed=mode == CGA, reason=cluster),
        GateArray(
            name="kernel_listed",
            passed=found.listed,
            reason=lambda n: (
                "the kernel is in the list of flashinfer-cubin 0.6.13"
                if at(found.listed, n)
                else "a kernel that the selection meets is not in the list of flashinfer-cubin 0.6.13, so a "
                "newer list must have it"
            ),
        ),
    )


POLICY = TrtllmGen()

"""What decides vLLM's launches, and where its Python says so (releases 0.9.2 to 0.33.0)."""

from __future__ import annotations

from typing import Any

from decodecalc.batch import Batch
from decodecalc.drift.checks import THING, AnyOf, Check, Computes, Constant, Defined, LaunchCalls, Local, Uses
from decodecalc.drift.package import Followed, Package
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan
from decodecalc.launch.policy import PolicyVersion

BUILDER = ("vllm/v1/attention/backends/triton_attn.py",)
KERNEL = (
    "vllm/v1/attention/ops/triton_unified_attention.py",
    "vllm/attention/ops/triton_unified_attention.py",
)
CONFIG = ("vllm/config/vllm.py",)
MLA = ("vllm/v1/attention/backends/mla/triton_mla.py",)
MLA_KERNEL = ("vllm/v1/attention/ops/triton_decode_attention.py", "vllm/attention/ops/triton_decode_attention.py")
ROCM = ("vllm/platforms/rocm.py",)
ROCM_PAGED = (
    "vllm/v1/attention/ops/chunked_prefill_paged_decode.py",
    "vllm/attention/ops/chunked_prefill_paged_decode.py",
)
PAGED = ("vllm/attention/ops/paged_attn.py",)
FLASH_ATTENTION = ("vllm/config/attention.py", "vllm/v1/attention/backends/flash_attn.py", "vllm/envs.py")


def _plan(engine: str, version: PolicyVersion, geo: Geometry, batch: Batch, **options: Any) -> LaunchPlan:
    from decodecalc.engines import plan

    gpu = options.pop("gpu", "h100-sxm")
    kv = options.pop("kv", KvCache())
    return plan(f"{engine}@{version.name}", geo, batch, kv=kv, gpu=gpu, **options)


# -- vllm-triton: the threshold ---------------------------------------------------------------------------------------

_KV_HEADS = (1, 2, 3, 5, 8, 10, 16, 40)
_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
_BUILDER_GIVEN = {
    "current_platform.is_cuda()": True,
    "current_platform.is_device_capability()": False,
    "self.headdim": 128,
    "self.num_heads_q": 32,
    "vllm_config.scheduler_config.max_num_seqs": 256,
    "speculative_config": None,
}


def _thresholds(version: PolicyVersion, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(
        _plan("vllm-triton", version, Geometry(n, n, 128), Batch.uniform(1, 1), capture_sizes=sizes).detail.threshold
        for n in _KV_HEADS
    )


def _threshold_reader(graphs: bool) -> Computes:
    sizes = "self.vllm_config.compilation_config.cudagraph_capture_sizes"
    given = {**_BUILDER_GIVEN, "self.decode_cudagraph_enabled": graphs, sizes: list(_SIZES)}
    return Computes(
        "TritonAttentionMetadataBuilder.__init__",
        "self.seq_threshold_3D",
        tuple({"self.num_heads_kv": n} for n in _KV_HEADS),
        given,
    )


_DRAFTS = (0, 1, 3, 7, 15)


def _scratch_rows(version: PolicyVersion) -> tuple[int, ...]:
    one = Geometry(32, 8, 128), Batch.uniform(1, 1)
    return tuple(
        _plan("vllm-triton", version, *one, capture_sizes=None, num_speculative_tokens=n).detail.scratch_rows
        for n in _DRAFTS
    )


_SM120 = ((8, 188), (4, 188), (2, 188), (1, 188), (8, 170), (1, 84))


def _small_grid(version: PolicyVersion) -> tuple[int, ...]:
    rules = version.rules
    if rules.small_grid_segments == 16:
        return tuple(0 for _ in _SM120)
    return tuple((sms - 1) // (16 * kv) for kv, sms in _SM120)


# -- vllm-triton: the launch ------------------------------------------------------------------------------------------

# (q_heads, kv_heads, head_dim, window, requests, query tokens, threshold, scratch rows, bytes of a query element)
_STEPS = (
    (32, 8, 128, None, 1, 1, 16, 16, 2),
    (32, 8, 128, None, 16, 1, 16, 16, 2),
    (32, 8, 128, None, 17, 1, 16, 16, 2),
    (8, 1, 128, None, 64, 1, 128, 128, 2),
    (28, 4, 128, None, 3, 1, 32, 32, 2),
    (28, 4, 128, None, 33, 1, 32, 32, 1),
    (48, 1, 128, None, 1, 1, 128, 128, 2),
    (71, 1, 64, None, 2, 1, 128, 128, 2),
    (32, 8, 128, None, 2, 1, 16, 16, 1),
    (16, 8, 256, 1024, 2, 1, 16, 16, 2),
    (16, 8, 256, 1024, 40, 1, 16, 16, 2),
    (32, 8, 128, None, 4, 4, 16, 128, 2),
    (32, 8, 128, None, 4, 5, 16, 128, 2),
    (32, 8, 128, None, 4, 9, 16, 128, 2),
    (32, 8, 128, None, 4, 5, 16, 16, 2),
    (32, 8, 64, 4096, 8, 2, 16, 128, 2),
)
STEP_NAMES = tuple(
    f"{q}/{kv}/{d}{f' window {w}' if w else ''}, batch {b}, {n} query tokens, threshold {t}, {r} scratch rows, "
    f"{e}-byte queries"
    for q, kv, d, w, b, n, t, r, e in _STEPS
)
_LAUNCH_GIVEN = {
    "causal": True, "use_causal": True, "use_per_seq_causal": False, "use_mm_prefix": False, "mm_prefix_range": None,
    "is_batch_invariant": False, "use_td": False, "chunk_lookback": -1, "sinks": None, "alibi_slopes": None,
    "qq_bias": None, "output_scale": None, "q_descale": None, "q.element_size()": 2, "rswa_window": None,
    "current_platform.is_device_capability_family()": False, "softmax_segm_output": THING, "softmax_segm_max": THING,
    "softmax_segm_expsum": THING, "num_par_softmax_segments": 16, "sliding_window": None, "max_seqlen_k": 4096,
    "kv_quant_mode": 0, "KVQuantMode.INT4_PER_TOKEN_HEAD": 4, "KVQuantMode.INT8_PER_TOKEN_HEAD": 2,
    "KVQuantMode.FP8_PER_TOKEN_HEAD": 3, "KVQuantMode.NONE": 0, "use_per_token_head_scales": False,
}  # fmt: skip


def _step_names(step: tuple[Any, ...]) -> dict[str, Any]:
    q, kv, d, window, b, n, threshold, rows, element = step
    return {
        "q.shape": (b * n, q, d), "k.shape": (99, 16, kv, d), "v.shape": (99, 16, kv, d), "num_seqs": b,
        "max_seqlen_q": n, "window_size": (-1 if window is None else window - 1, 0), "seq_threshold_3D": threshold,
        "softmax_segm_max.shape": (rows, q, 16), "q.element_size()": element,
    }  # fmt: skip


def _planned(version: PolicyVersion, step: tuple[Any, ...]) -> LaunchPlan:
    q, kv, d, window, b, n, threshold, rows, element = step
    drafts = rows // threshold - 1 if rows > threshold else None
    return _plan(
        "vllm-triton", version, Geometry(q, kv, d, window=window), Batch.uniform(b, 4096, n),
        capture_sizes=(threshold,), num_speculative_tokens=drafts,
        kv=KvCache(query_dtype="fp8" if element == 1 else "bf16"),
    )  # fmt: skip


_LAUNCH = LaunchCalls(
    "unified_attention", tuple(_step_names(s) for s in _STEPS), _LAUNCH_GIVEN, ("TILE_SIZE",), first_only=True
)


def _expected_launches(version: PolicyVersion) -> tuple[Any, ...]:
    plans = [_planned(version, step) for step in _STEPS]
    return tuple(((p.stage1.name, p.stage1.grid, p.tile_keys),) for p in plans)


def _expected_rows(version: PolicyVersion) -> tuple[Any, ...]:
    plans = [_planned(version, step) for step in _STEPS]
    return tuple(((p.stage1.name, p.stage1.grid, p.detail.block_m, p.detail.block_q),) for p in plans)


_ROWS = LaunchCalls(
    "unified_attention", tuple(_step_names(s) for s in _STEPS), _LAUNCH_GIVEN, ("BLOCK_M", "BLOCK_Q"), first_only=True
)
_LARGE_HEAD = ((32, 4, 256, None, 2, 4, 32, 32, 2), (8, 1, 256, None, 2, 1, 128, 128, 2))


def _expected_large_head(version: PolicyVersion) -> tuple[Any, ...]:
    found = []
    for q, kv, d, _, b, n, threshold, _, _ in _LARGE_HEAD:
        p = _plan(
            "vllm-triton", version, Geometry(q, kv, d), Batch.uniform(b, 4096, n), capture_sizes=(threshold,),
            gpu="b200",
        )  # fmt: skip
        found.append(((p.stage1.name, p.stage1.grid, p.tile_keys, p.detail.block_m),))
    return tuple(found)


# -- vllm-triton: capture sizes ---------------------------------------------------------------------------------------

# (max_num_seqs, max_num_batched_tokens, draft tokens, compute capability 10.x, mode)
_SERVERS = (
    (256, 8192, 0, False, "balanced"),
    (100, 8192, 0, False, "balanced"),
    (1024, 8192, 0, True, "balanced"),
    (1024, 300, 0, False, "balanced"),
    (33, 8192, 0, False, "interactivity"),
    (64, 8192, 3, False, "balanced"),
    (7, 2048, 2, False, "balanced"),
)
SERVER_NAMES = tuple(
    f"max_num_seqs {n}, {t} batched tokens, {d} draft tokens{', compute capability 10.x' if b else ''}, {m}"
    for n, t, d, b, m in _SERVERS
)


def _server_names(server: tuple[Any, ...]) -> dict[str, Any]:
    seqs, tokens, drafts, blackwell, mode = server
    return {
        "self.scheduler_config.max_num_seqs": seqs, "self.scheduler_config.max_num_batched_tokens": tokens,
        "self.uniform_decode_query_len": 1 + drafts, "self.performance_mode": mode,
        "self.speculative_config": THING if drafts else None,
        "self.speculative_config.num_speculative_tokens": drafts,
        "self.num_speculative_tokens": drafts,
        "speculative_config.uses_dynamic_speculative_decoding()": False,
        "current_platform.is_device_capability_family()": blackwell,
    }  # fmt: skip


_CAPTURE = Computes(
    "VllmConfig._set_cudagraph_sizes",
    "cudagraph_capture_sizes",
    tuple(_server_names(s) for s in _SERVERS),
    {
        "self.model_config": THING, "self.model_config.enforce_eager": False,
        "self.compilation_config.cudagraph_mode": 2, "CUDAGraphMode.NONE": 0,
        "self.compilation_config.max_cudagraph_capture_size": None,
        "self.compilation_config.cudagraph_capture_sizes": None, "self.parallel_config.tensor_parallel_size": 1,
        "self.compilation_config.pass_config.enable_sp": False,
    },
)  # fmt: skip


def _captured(version: PolicyVersion) -> tuple[Any, ...]:
    from decodecalc.engines.vllm.capture import capture_sizes

    return tuple(
        capture_sizes(seqs, tokens, drafts, blackwell, mode, rules=version.rules.capture)
        for seqs, tokens, drafts, blackwell, mode in _SERVERS
    )


TRITON = (
    Check(
        "blocks below which the 2D grid counts as too small", BUILDER, Constant("MIN_LAUNCH_GRID_SIZE_2D"),
        lambda v: 128, lambda r: not r.gates_on_grid,
    ),
    Check("segments", BUILDER, Constant("NUM_PAR_SOFTMAX_SEGMENTS"), lambda v: 16, lambda r: not r.gates_on_grid),
    Check("segments", KERNEL, Local("unified_attention", "NUM_SEGMENTS"), lambda v: 16, lambda r: r.gates_on_grid),
    Check(
        "longest query of the split path", KERNEL, Constant("MAX_3D_QUERY_LEN"), lambda v: v.rules.max_query_len_3d,
        lambda r: r.max_query_len_3d > 1,
    ),
    Check(
        "a longest query of the split path is named", KERNEL, Defined("MAX_3D_QUERY_LEN"), lambda v: False,
        lambda r: r.max_query_len_3d == 1,
    ),
    Check(
        "threshold without full graphs", BUILDER, _threshold_reader(False), lambda v: _thresholds(v, None),
        lambda r: not r.gates_on_grid, tuple(f"{n} KV heads" for n in _KV_HEADS),
    ),
    Check(
        "threshold snapped to a capture size", BUILDER, _threshold_reader(True), lambda v: _thresholds(v, _SIZES),
        lambda r: not r.gates_on_grid, tuple(f"{n} KV heads" for n in _KV_HEADS),
    ),
    Check(
        "scratch rows", BUILDER,
        Computes(
            "TritonAttentionMetadataBuilder.__init__", "max_num_tokens_3d",
            tuple(
                {"speculative_config": THING, "speculative_config.num_speculative_tokens": n}
                for n in _DRAFTS
            ),
            {
                **{k: v for k, v in _BUILDER_GIVEN.items() if k != "speculative_config"},
                "self.decode_cudagraph_enabled": False, "self.num_heads_kv": 8,
                "speculative_config.parallel_drafting": False, "MAX_3D_QUERY_LEN": 8, "kv_cache_spec.kv_quant_mode": 0,
                "KVQuantMode.INT4_PER_TOKEN_HEAD": 4,
            },
        ),
        _scratch_rows, lambda r: r.scratch_per_query, tuple(f"{n} draft tokens" for n in _DRAFTS),
    ),
    Check(
        "requests that get 64 segments on compute capability 12.0", BUILDER,
        Computes(
            "TritonAttentionMetadataBuilder.__init__", "self.max_seqs_64_segments",
            tuple({"self.num_heads_kv": kv, "current_platform.num_compute_units()": sms} for kv, sms in _SM120),
            {
                **_BUILDER_GIVEN, "self.decode_cudagraph_enabled": False,
                "current_platform.is_device_capability()": True,
            },
        ),
        _small_grid, lambda r: r.small_grid_segments > 16, tuple(f"{kv} KV heads, {sms} SMs" for kv, sms in _SM120),
    ),
    Check("kernel, grid and tile", KERNEL, _LAUNCH, _expected_launches, cases=STEP_NAMES),
    Check(
        "BLOCK_M and BLOCK_Q", KERNEL, _ROWS, _expected_rows, lambda r: r.kernels[0] == r.kernels[1], STEP_NAMES,
    ),
    Check(
        "large heads on compute capability 10.x", KERNEL,
        LaunchCalls(
            "unified_attention", tuple(_step_names(s) for s in _LARGE_HEAD),
            {**_LAUNCH_GIVEN, "current_platform.is_device_capability_family()": True}, ("TILE_SIZE", "BLOCK_M"), True,
        ),
        _expected_large_head, lambda r: r.kernels[0] == r.kernels[1], ("4 query tokens", "1 query token"),
    ),
    Check(
        "keys that a kernel page must be a multiple of", BUILDER,
        AnyOf((
            Computes("TritonAttentionBackend.get_supported_kernel_block_sizes", "return", ({},)),
            Constant("TritonAttentionBackend.supported_kernel_block_sizes"),
        )),
        lambda v: ((16,),), lambda r: not r.gates_on_grid,
    ),
    Check(
        "default capture sizes", CONFIG, _CAPTURE, _captured, lambda r: not r.gates_on_grid, SERVER_NAMES,
    ),
)  # fmt: skip


# -- vllm-triton-mla --------------------------------------------------------------------------------------------------

_LENGTHS = (1, 511, 1023, 1024, 4096, 65_536, 131_072, 163_840)
_MLA_GEO = Geometry(16, 1, 576, 512, mla=True)


def _mla_splits(version: PolicyVersion) -> tuple[int, ...]:
    return tuple(_plan("vllm-triton-mla", version, _MLA_GEO, Batch.uniform(1, n)).splits.launched for n in _LENGTHS)


_MLA_SHAPES = ((1, 16, 4), (8, 128, 8), (3, 8, 2))


def _mla_grids(version: PolicyVersion) -> tuple[Any, ...]:
    found = []
    for rows, heads, splits in _MLA_SHAPES:
        p = _plan("vllm-triton-mla", version, Geometry(heads, 1, 576, 512, mla=True), Batch.uniform(rows, 999))
        found.append(((p.stage1.name, (*p.stage1.grid[:2], splits), p.tile_keys, p.block_rows),))
    return tuple(found)


_SPLIT_FUNCTIONS = ("TritonMLAImpl.forward_mqa", "TritonMLAImpl._forward_decode")
TRITON_MLA = (
    Check(
        "splits", MLA,
        Computes("_compute_num_kv_splits", "return", tuple({"max_seq_len": n, "sm_count": 132} for n in _LENGTHS)),
        _mla_splits, lambda r: r.multi_token, tuple(f"{n} keys" for n in _LENGTHS),
    ),
    Check(
        "splits", MLA,
        AnyOf(tuple(
            Computes(
                name, "num_kv_splits", tuple({"max_seq_len": n, "attn_metadata.max_seq_len": n} for n in _LENGTHS),
                {
                    "envs.VLLM_BATCH_INVARIANT": False, "vllm_is_batch_invariant()": False, "self._sm_count": 132,
                    "attn_metadata.decode": THING, "attn_metadata.prefill": None, "self.kv_lora_rank": 512,
                },
            )
            for name in _SPLIT_FUNCTIONS
        )),
        _mla_splits, lambda r: not r.multi_token, tuple(f"{n} keys" for n in _LENGTHS),
    ),
    Check(
        "kernel, grid, tile and heads of a block", MLA_KERNEL,
        LaunchCalls(
            "_decode_grouped_att_m_fwd",
            tuple({"q.shape": (rows, heads, 576), "num_kv_splits": splits} for rows, heads, splits in _MLA_SHAPES),
            {"is_hip_": False, "k_buffer.shape": (99, 16, 1, 576), "v_buffer.shape": (99, 16, 1, 512), "is_mla": True},
            ("BLOCK_N", "BLOCK_H"), True,
        ),
        _mla_grids, cases=tuple(f"{r} rows, {h} heads, {s} splits" for r, h, s in _MLA_SHAPES),
    ),
    Check(
        "kernel page sizes", MLA, Computes("TritonMLABackend.get_supported_kernel_block_sizes", "return", ({},)),
        lambda v: ((16,),), lambda r: r.multi_token,
    ),
)  # fmt: skip


# -- flash-attention-3 in vLLM, rocm-paged, paged-attention ------------------------------------------------------------

FLASH_ATTENTION_3 = (
    Check(
        "num_splits under full CUDA graphs", FLASH_ATTENTION,
        AnyOf((
            Constant("AttentionConfig.flash_attn_max_num_splits_for_cuda_graph"),
            Constant("_DEFAULT_MAX_NUM_SPLITS_FOR_CUDA_GRAPH"),
            Constant("VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH"),
        )),
        lambda v: v.rules.cuda_graph_bound,
    ),
)  # fmt: skip

# (head_dim, block, group, longest, window, sinks)
_ROCM_STEPS = (
    (128, 16, 4, 4096, 0, False),
    (64, 32, 16, 131_072, 0, False),
    (128, 16, 1, 131_073, 0, False),
    (128, 16, 17, 4096, 0, False),
    (256, 16, 4, 4096, 0, False),
    (128, 64, 4, 4096, 0, False),
    (128, 16, 4, 4096, 128, False),
    (64, 16, 8, 4096, 0, True),
)


def _custom(version: PolicyVersion, gpu: str) -> tuple[bool, ...]:
    found = []
    for d, block, group, longest, window, sinks in _ROCM_STEPS:
        geo = Geometry(group, 1, d, window=window or None, sinks=sinks)
        p = _plan("rocm-paged", version, geo, Batch.uniform(1, longest), kv=KvCache(page_size=block), gpu=gpu)
        found.append(bool(p.detail.custom))
    return tuple(found)


def _rocm_reader(cdna: bool) -> Computes:
    return Computes(
        "use_rocm_custom_paged_attention", "return",
        tuple(
            {
                "head_size": d, "block_size": block, "gqa_ratio": group, "max_seq_len": longest,
                "sliding_window": window, "sinks": THING if sinks else None,
            }
            for d, block, group, longest, window, sinks in _ROCM_STEPS
        ),
        {
            "qtype": 2, "torch.half": 1, "torch.bfloat16": 2, "kv_cache_dtype": "auto", "alibi_slopes": None,
            "on_cdna()": cdna, "on_gfx9()": cdna, "ON_GFX9": cdna, "_ON_GFX9": cdna, "_ON_GFX1X": not cdna,
            "ON_GFX11_GFX12": not cdna, "on_gfx1x()": not cdna, "envs.VLLM_USE_V1": True,
            "envs.VLLM_ROCM_CUSTOM_PAGED_ATTN": True, "envs.VLLM_ROCM_USE_AITER_PAGED_ATTN": False,
            "envs.VLLM_ROCM_USE_AITER": False, "rocm_aiter_ops.is_pa_attn_enabled()": False,
        },
    )  # fmt: skip


_ROCM_NAMES = tuple(
    f"D {d}, block {block}, group {group}, {longest} keys{f', window {w}' if w else ''}{', sinks' if s else ''}"
    for d, block, group, longest, w, s in _ROCM_STEPS
)
ROCM_PAGED_CHECKS = (
    Check(
        "conditions of the custom kernel on CDNA", ROCM, _rocm_reader(True), lambda v: _custom(v, "mi300x"),
        lambda r: r.triton_fallback, _ROCM_NAMES,
    ),
    Check(
        "keys of a partition", ROCM_PAGED, Local("chunked_prefill_paged_decode", "_PARTITION_SIZE_ROCM"),
        lambda v: v.rules.partition_keys, lambda r: r.triton_fallback,
    ),
    Check(
        "the fallback has a tile of its own for blocks that are no power of two", ROCM_PAGED,
        Uses("chunked_prefill_paged_decode", "is_pow2"), lambda v: v.rules.odd_tile, lambda r: r.triton_fallback,
    ),
    Check(
        "the fallback's tile has a limit", ROCM_PAGED, Uses("chunked_prefill_paged_decode", "MAX_TRITON_BLOCK_SIZE"),
        lambda v: v.rules.capped_tile, lambda r: r.triton_fallback,
    ),
)  # fmt: skip

# (requests, q_heads, longest)
_PAGED_STEPS = (
    (16, 32, 4096), (17, 32, 4096), (64, 32, 8192), (64, 32, 8193), (1, 32, 513), (1, 32, 512),
)  # fmt: skip


def _picks_v1(version: PolicyVersion) -> tuple[bool, ...]:
    from decodecalc.engines.vllm.paged_attention import picks_v1

    return tuple(bool(picks_v1(longest, batch, heads)) for batch, heads, longest in _PAGED_STEPS)


PAGED_ATTENTION = (
    Check("keys of a partition", PAGED, Constant("_PARTITION_SIZE"), lambda v: 512),
    Check(
        "whether v1 runs", PAGED,
        Computes(
            "PagedAttention.forward_decode", "use_v1",
            tuple({"query.shape": (b, h, 128), "max_seq_len": n} for b, h, n in _PAGED_STEPS),
            {"block_size": 16, "blocksparse_vert_stride": 0},
        ),
        _picks_v1, cases=tuple(f"{b} requests, {h} heads, {n} keys" for b, h, n in _PAGED_STEPS),
    ),
)  # fmt: skip

_PAGED_IS_THERE = (PAGED[0], "paged_attention_v2")  # left vLLM with its V0 engine

PACKAGES = (
    Package(
        name="vllm",
        distributions=("vllm",),
        probes=("vllm/v1/attention/backends/triton_attn.py", "vllm/platforms/rocm.py"),
        follows=(
            Followed(engine="vllm-triton", checks=TRITON),
            Followed(engine="vllm-triton-mla", checks=TRITON_MLA),
            Followed(engine="flash-attention-3", checks=FLASH_ATTENTION_3, versions="vllm-"),
            Followed(engine="rocm-paged", checks=ROCM_PAGED_CHECKS),
            Followed(engine="paged-attention-v1", checks=PAGED_ATTENTION, needs=_PAGED_IS_THERE),
            Followed(engine="paged-attention-v2", checks=PAGED_ATTENTION, needs=_PAGED_IS_THERE),
        ),
        version_files=("vllm/_version.py",),
    ),
)

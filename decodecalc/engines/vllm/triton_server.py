"""What a vLLM server with the Triton backend decides at start-up: refusals, threshold, graph sizes, scratch, tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from decodecalc.engines.vllm.capture import MODES, capture_sizes, round_for_drafts
from decodecalc.engines.vllm.triton_rules import MIN_BLOCKS_2D, SEGMENTS, VllmTritonRules
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv, round_up
from decodecalc.kvcache import KvCache
from decodecalc.launch.options import EngineOptions, option
from decodecalc.launch.takes import AMD, UNKNOWN, Numbers, Takes

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

PAGE_MULTIPLE = 16  # get_supported_kernel_block_sizes: MultipleOf(16)
MIN_HEAD_DIM = 32  # supports_head_size
NARROW_TILE, WIDE_TILE = 16, 32  # keys; the wide one for 1-byte queries, the 2D path and Gemma 3
GEMMA3_WINDOW, GEMMA3_HEAD_DIMS = 1024, (128, 256)
LARGE_HEAD_DIM, LARGE_GROUP = 256, 16


@dataclass(frozen=True, slots=True)
class VllmTritonOptions(EngineOptions):
    """The settings of a server that change the launch.

    The default is a default server: full decode graphs with the sizes that it makes itself. The default max_num_seqs
    and max_num_batched_tokens are those of a mid-sized GPU. Larger ones (1024 and 8192 or more on 70 GiB and up) change
    neither the sizes near the threshold nor the scratch.
    """

    capture_sizes: tuple[int, ...] | str | None = option(
        "default",
        "ints?",
        "CUDA-graph sizes of full decode graphs; none: no full graphs; default: the list that a server makes itself",
        "--compilation-config '{\"cudagraph_capture_sizes\": […]}'",
        ("default",),
        low=1,
    )
    max_num_seqs: int = option(256, "int", "most requests of a step", "--max-num-seqs", low=1)
    max_num_batched_tokens: int = option(
        8192, "int", "most tokens of a step (for the default capture sizes)", "--max-num-batched-tokens", low=1
    )
    num_speculative_tokens: int | None = option(
        None, "int?", "draft tokens of a request; none: no speculative decoding", "--speculative-config"
    )
    parallel_drafting: bool = option(False, "bool", "the drafter drafts in parallel", "--speculative-config")
    batch_invariant: bool = option(False, "bool", "results do not depend on the batch", "VLLM_BATCH_INVARIANT=1")
    padded_num_seqs: int | str | None = option(
        None,
        "int?",
        "requests after padding for a CUDA graph; none: they are not padded; auto: padded to the next capture size",
        None,
        ("auto",),
        low=1,
    )
    model_kv_heads: int | None = option(
        None,
        "int?",
        "KV heads per rank that the model reports, where its layers differ; none: those of this layer",
        low=1,
    )
    causal: bool = option(True, "bool", "causal mask (diffusion models have passes without)")
    performance_mode: str = option("balanced", "str", "capture-size profile", "--performance-mode", MODES)
    model_runner: str | None = option(
        None,
        "str?",
        "v1 rounds capture sizes to whole speculative requests; none: the version's default",
        "VLLM_USE_V2_MODEL_RUNNER",
        ("v1", "v2"),
    )


class Server(NamedTuple):
    """A server that has started.

    captured: capture sizes, empty without full decode graphs. unsnapped, threshold: 128 // model_kv_heads, before and
    after it snaps to a capture size. scratch_rows at scratch_segments; the same buffers serve rows * segments / 16 at
    16 segments. queries_per_seq: query tokens of a request that scratch is made for. max_seqs_small_grid: most requests
    that get the segments of an idle SM120 (0: none). narrow_tile, wide_tile: keys of a tile in 3D and in 2D.
    tunes_large_head: several query tokens get the large-head tiles. can_split: not batch-invariant.
    """

    options: VllmTritonOptions
    rules: VllmTritonRules
    int4: bool
    model_kv_heads: int
    captured: tuple[int, ...]
    unsnapped: int
    threshold: int
    queries_per_seq: int
    scratch_rows: int
    scratch_segments: int
    max_seqs_small_grid: int
    narrow_tile: Any
    wide_tile: int
    tunes_large_head: bool
    can_split: bool

    @property
    def max_query_len_3d(self) -> int:
        """Longest query that the split path takes."""
        return 1 if self.int4 else self.rules.max_query_len_3d

    @property
    def checks_scratch(self) -> bool:
        """Whether the launcher compares scratch rows with query tokens."""
        return self.rules.scratch_per_query and not self.int4

    @property
    def kernels(self) -> tuple[str, str]:
        """Names of the 2D and the 3D kernel."""
        return ("_attn_packed", "_attn_packed") if self.int4 else self.rules.kernels

    @classmethod
    def start(cls, geo: Geometry, kv: KvCache, gpu: Gpu, options: VllmTritonOptions, rules: VllmTritonRules) -> Server:
        """Starts a server with these settings. Raises GateError as `check_start_up` does, and with code
        `capture_sizes`."""
        check_start_up(geo, kv, gpu, options, rules)
        return cls.settle(geo, kv, gpu, options, rules)

    @classmethod
    def settle(cls, geo: Geometry, kv: KvCache, gpu: Gpu, options: VllmTritonOptions, rules: VllmTritonRules) -> Server:
        """What such a server decides once it starts. Raises GateError with code `capture_sizes`."""
        int4 = kv.dtype == "int4"
        captured = _captured(options, gpu, rules)
        model_kv = options.model_kv_heads or geo.kv_heads
        unsnapped = MIN_BLOCKS_2D // model_kv
        threshold = min(captured, key=lambda size: abs(size - unsnapped)) if captured else unsnapped
        narrow, wide = _tiles(geo, kv, gpu, rules)
        return cls(
            options=options,
            rules=rules,
            int4=int4,
            model_kv_heads=model_kv,
            captured=captured,
            unsnapped=unsnapped,
            threshold=threshold,
            narrow_tile=narrow,
            wide_tile=wide,
            tunes_large_head=rules.tuned_large_head
            and not int4
            and geo.head_dim == LARGE_HEAD_DIM
            and geo.group <= LARGE_GROUP
            and gpu.is_sm_family(100),
            can_split=not (options.batch_invariant and rules.batch_invariant_gate),
            **_scratch(threshold, model_kv, options, gpu, rules, int4),
        )


def check_start_up(geo: Geometry, kv: KvCache, gpu: Gpu, options: VllmTritonOptions, rules: VllmTritonRules) -> None:
    """Raises GateError for what makes the server refuse to start with this backend.

    The codes are page_size, allocator_page_size, mla, head_dim_v, head_dim, kv_dtype and causal.
    """
    refuse = refusal("vllm-triton")
    check_pages("vllm-triton", kv)
    if geo.mla:
        raise GateError(f"{refuse}MLA models take another backend; see vllm-triton-mla", "mla")
    if geo.v_dim != geo.head_dim:
        raise GateError(
            f"vllm-triton: keys ({geo.head_dim}) and values ({geo.v_dim}) must be equally wide; vLLM takes another "
            f"backend for such a layer, from 0.24 on this one's fork: see vllm-triton-diffkv",
            "head_dim_v",
        )
    if geo.head_dim < MIN_HEAD_DIM:
        raise GateError(f"{refuse}head dim {geo.head_dim} is below {MIN_HEAD_DIM}", "head_dim")
    if kv.dtype not in rules.cache_dtypes:
        raise GateError(f"{refuse}the KV cache is {kv.dtype}; valid are {', '.join(rules.cache_dtypes)}", "kv_dtype")
    if rules.fp8_needs_sm89:
        check_fp8("vllm-triton", kv, gpu)
    if not options.causal and (not rules.non_causal or kv.dtype == "int4"):
        what = "a packed INT4 cache" if rules.non_causal else "this version"
        raise GateError(f"{refuse}{what} supports causal masks only", "causal")


def server_takes(rules: VllmTritonRules) -> tuple[Takes, ...]:
    """What a server with this backend takes."""
    layer = Takes(
        mla=False, head_dims=Numbers(low=MIN_HEAD_DIM), value_dims=None, page_sizes=Numbers(step=PAGE_MULTIPLE)
    )
    return cache_types(layer, rules.cache_dtypes, rules.fp8_needs_sm89)


def cache_types(layer: Takes, dtypes: tuple[str, ...], fp8_needs_sm89: bool) -> tuple[Takes, ...]:
    """The layer with these cache types, FP8 where the device has it if the server asks for that."""
    if not fp8_needs_sm89 or "fp8" not in dtypes:
        return (replace(layer, cache_dtypes=dtypes),)
    return (
        replace(layer, cache_dtypes=tuple(dtype for dtype in dtypes if dtype != "fp8")),
        replace(layer, devices=("sm89+", AMD, UNKNOWN), cache_dtypes=("fp8",)),
    )


def refusal(engine: str) -> str:
    """How a start-up refusal begins."""
    return f"{engine} refuses to start (this is an error, not a slow path): "


def check_pages(engine: str, kv: KvCache) -> None:
    """Raises GateError unless the kernel's page is a multiple of 16 and the allocator's page a multiple of the
    kernel's."""
    if kv.page_size % PAGE_MULTIPLE:
        raise GateError(
            f"{refusal(engine)}page size {kv.page_size} is not a multiple of {PAGE_MULTIPLE}; use "
            f"{round_up(kv.page_size, PAGE_MULTIPLE)}",
            "page_size",
        )
    if kv.allocator_page_size is not None and kv.allocator_page_size % kv.page_size:
        raise GateError(
            f"{refusal(engine)}allocator page {kv.allocator_page_size} is not a multiple of the kernel's "
            f"{kv.page_size}; use {round_up(kv.allocator_page_size, kv.page_size)}",
            "allocator_page_size",
        )


def check_fp8(engine: str, kv: KvCache, gpu: Gpu) -> None:
    """Raises GateError for an FP8 cache on an NVIDIA GPU without FP8 units."""
    if kv.dtype == "fp8" and gpu.sm is not None and gpu.sm < 89:
        raise GateError(
            f"{refusal(engine)}an FP8 KV cache needs compute capability 8.9, {gpu.label} has {gpu.sm / 10}; use bf16",
            "kv_dtype",
        )


def _captured(options: VllmTritonOptions, gpu: Gpu, rules: VllmTritonRules) -> tuple[int, ...]:
    if not isinstance(options.capture_sizes, str):
        return options.capture_sizes or ()
    drafts = options.num_speculative_tokens or 0
    sizes = capture_sizes(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        num_speculative_tokens=drafts,
        is_data_center_blackwell=gpu.is_sm_family(100),
        performance_mode=options.performance_mode,
        rules=rules.capture,
    )
    runner = options.model_runner or rules.model_runner
    return round_for_drafts(sizes, 1 + drafts) if runner == "v1" else sizes


def _scratch(
    threshold: int, model_kv: int, options: VllmTritonOptions, gpu: Gpu, rules: VllmTritonRules, int4: bool
) -> dict[str, Any]:
    """The builder's partial-state buffers, as fields of `Server`."""
    seqs, queries = threshold, 1
    if rules.scratch_per_query:
        seqs = min(threshold, options.max_num_seqs)
        if options.num_speculative_tokens is not None and not int4:
            drafts = options.num_speculative_tokens * (2 if options.parallel_drafting else 1)
            queries = min(1 + drafts, rules.max_query_len_3d)
    rows, segments, small = seqs * queries, SEGMENTS, 0
    if rules.small_grid_segments > SEGMENTS and gpu.is_sm(120):
        small = (gpu.sm_count - 1) // (SEGMENTS * model_kv)
    if small > 0:
        segments = rules.small_grid_segments
        rows = max(min(small, seqs) * queries, cdiv(rows, segments // SEGMENTS))
    return {
        "queries_per_seq": queries, "scratch_rows": rows, "scratch_segments": segments, "max_seqs_small_grid": small,
    }  # fmt: skip


def _tiles(geo: Geometry, kv: KvCache, gpu: Gpu, rules: VllmTritonRules) -> tuple[int, int]:
    """Keys of a tile in 3D and in 2D."""
    if rules.gemma3_tile and geo.window == GEMMA3_WINDOW and geo.head_dim in GEMMA3_HEAD_DIMS:
        return WIDE_TILE, WIDE_TILE
    return (WIDE_TILE if query_is_fp8(kv, gpu, rules) else NARROW_TILE), WIDE_TILE


def query_is_fp8(kv: KvCache, gpu: Gpu, rules: VllmTritonRules) -> bool:
    """Whether Q has 1-byte elements: given so, or quantised because the cache is FP8 (supports_quant_query_input)."""
    if kv.query_dtype == "fp8":
        return True
    if kv.dtype != "fp8":
        return False
    if not gpu.is_hip:
        return True
    return rules.rocm_fp8_query and not (gpu.gfx or "").startswith(("gfx90a", "gfx11"))

"""Where `backend="auto"` of FlashInfer's batch decode leaves fa2: cuDNN on SM100 and SM103, XQA on SM90.

The wrapper decides it anew in every `plan()`. cuDNN's own kernels are closed, so only the decision is known here: a
plan of the `flashinfer` policy is fa2's, and its gate `backend_is_fa2` says whether `auto` would have run it.

Read from flashinfer/decode.py (`_auto_decode_prefers_cudnn`, `BatchDecodeWithPagedKVCacheWrapper._auto_prefers_cudnn`,
`_is_xqa_mtp_decode_supported`, `_xqa_mtp_decode_has_measured_shape`) and flashinfer/cudnn/utils.py
(`cudnn_frontend_serves_frost_decode`, `cudnn_frontend_leads_short_caches`,
`cudnn_frontend_accepts_cuda_graph_replay_hint`, `cudnn_frontend_frost_runtime_available`) of flashinfer-python
0.7.2.post1 and 0.7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decodecalc.geometry import Geometry
from decodecalc.intmath import IntArray
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, BoolArray, at
from decodecalc.launch.policy import version_key

if TYPE_CHECKING:
    from decodecalc.engines.flashinfer.options import FlashInferOptions
    from decodecalc.gpus import Gpu

OFF, ON = ("0", "false", "no", "off"), ("1", "true", "yes", "on")  # words of FLASHINFER_DECODE_AUTO_CUDNN
CAPABILITIES = ((10, 0), (10, 3))
SHORT_CACHE_TOKENS = 2048  # _CUDNN_DECODE_MAX_KV_BUCKET
TILE_ROWS = 128  # rows of cuDNN's decode tile: _AUTO_CUDNN_MAX_ROWS, which also holds a group of query heads
LEAST_ROWS, LEAST_UNITS = 32, 64  # _AUTO_CUDNN_MIN_ROWS, _AUTO_CUDNN_MIN_UNITS
D256_GROUPS = (4, 8, 16)
D256_LEAST_UNITS, D256_LEAST_UNITS_REPLAYED, D256_MOST_UNITS = 96, 64, 256


class AutoRules(NamedTuple):
    """What differs between versions."""

    single_token_d256: bool = True
    """cuDNN takes one query token at head dim 256 in a band of requests times KV heads."""
    xqa_route: bool = True
    """A few measured speculative shapes on SM90 go to XQA under a CUDA graph."""
    frontend: tuple[int, int] = (1, 32)
    """The cudnn-frontend that the wheel requires at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRequest:
    """The arguments of `_auto_decode_prefers_cudnn` under its own names. Arrays have one entry for each step [N]."""

    compute_capability: tuple[int, int] | None
    """The device's compute capability; None where it is not known, and cuDNN is then not preferred."""
    frontend_serves_frost_decode: bool
    """The installed cudnn-frontend is 1.30 or newer."""
    cudnn_available: bool
    """cuDNN and its frontend can be imported."""
    q_data_type: str
    """Element type of the query."""
    kv_data_type: str
    """Element type of the cache."""
    o_data_type: str
    """Element type of the output."""
    head_dim: int
    """Width of a key and of a value."""
    num_qo_heads: int
    """Query heads of the rank."""
    num_kv_heads: int
    """KV heads of the rank."""
    batch_size: IntArray
    """Requests [N]."""
    page_size: int
    """Keys of a page."""
    pos_encoding_mode: str = "NONE"
    """Rotary embedding in the kernel; `NONE` for none."""
    window_left: int = -1
    """Keys before its own that a query sees; -1 for all."""
    logits_soft_cap: float = 0.0
    """Soft cap of the logits; 0 without one."""
    q_len_per_req: IntArray
    """Query tokens of each request [N]."""
    fa2_available: BoolArray
    """Whether fa2 has a kernel for these query tokens [N]: CUDA cores take one only."""
    declared_kv_len: int | None = None
    """Tokens that the caller's own block tables have room for; None when the wrapper builds the tables."""
    frontend_leads_short_caches: bool = False
    """The installed cudnn-frontend is 1.31 or newer."""
    frost_runtime_available: bool = True
    """The frontend's own engines can run: the CuTe DSL is new enough."""
    fixed_split_size: int | None = None
    """Pages of every chunk, when the caller fixes them."""
    disable_split_kv: bool = False
    """Whether the caller forbids splitting."""
    replay_hint: bool = False
    """Whether the frontend is told that the graph is replayed."""
    override: str = ""
    """FLASHINFER_DECODE_AUTO_CUDNN."""


class Route(NamedTuple):
    """The decision of `auto` for every step, and the condition that decided it."""

    prefers_cudnn: BoolArray
    """Whether cuDNN runs the step [N]."""
    decided_by: IntArray
    """Index of the condition that decided [N]."""
    conditions: tuple[tuple[str, Callable[[int], str]], ...]
    """Code and wording of every condition, in the order of the source."""

    def code(self, n: int = 0) -> str:
        """The condition that decided step n, as a word in snake case."""
        return self.conditions[int(self.decided_by[n])][0]

    def reason(self, n: int = 0) -> str:
        """The condition that decided step n, with its numbers."""
        return self.conditions[int(self.decided_by[n])][1](n)


def auto_route(ask: AutoRequest, rules: AutoRules) -> Route:
    """The decision of `_auto_decode_prefers_cudnn`: the first condition that holds decides."""
    override = ask.override.strip().lower()
    forced = override in ON
    group = ask.num_qo_heads // ask.num_kv_heads
    rows, units = ask.q_len_per_req * group, ask.batch_size * ask.num_kv_heads
    least = D256_LEAST_UNITS_REPLAYED if ask.replay_hint else D256_LEAST_UNITS
    types = {ask.q_data_type, ask.kv_data_type, ask.o_data_type}
    dims = (128, 256) if rules.single_token_d256 else (128,)
    page = ask.page_size
    wide = rules.single_token_d256 and ask.head_dim == 256
    no_fa2 = ~ask.fa2_available
    # (code, takes cuDNN, holds, wording)
    steps: list[tuple[str, bool, Any, Callable[[int], str]]] = [
        ("override_off", False, override in OFF, lambda n: f"FLASHINFER_DECODE_AUTO_CUDNN is {override}"),
        (
            "no_cudnn",
            False,
            not ask.cudnn_available,
            lambda n: "cuDNN and its frontend (1.30 or newer) are not installed",
        ),
        (
            "frontend_too_old",
            False,
            not (ask.frontend_serves_frost_decode or forced),
            lambda n: "cudnn-frontend is older than 1.30",
        ),
        (
            "compute_capability",
            False,
            ask.compute_capability not in CAPABILITIES,
            lambda n: f"cuDNN is preferred on compute capability 10.0 and 10.3, not {_dotted(ask.compute_capability)}",
        ),
        (
            "dtype",
            False,
            len(types) != 1 or not types <= {"bf16", "fp16"},
            lambda n: (
                f"cuDNN takes the same 16-bit type for all three, not {ask.q_data_type} queries, "
                f"{ask.kv_data_type} keys and {ask.o_data_type} outputs"
            ),
        ),
        (
            "rope_or_soft_cap",
            False,
            ask.pos_encoding_mode != "NONE" or (ask.logits_soft_cap or 0.0) > 0,
            lambda n: f"cuDNN applies no soft cap ({ask.logits_soft_cap}) and no rotary embedding in the kernel",
        ),
        (
            "no_fa2_kernel",
            True,
            no_fa2 & (ask.q_len_per_req >= 2) & (ask.head_dim in (128, 256)),
            lambda n: f"fa2 has no CUDA-core kernel for {at(ask.q_len_per_req, n)} query tokens, so cuDNN takes them",
        ),
        ("no_kernel", False, no_fa2, lambda n: f"cuDNN has kernels for head dims of 128 and 256, not {ask.head_dim}"),
        (
            "split_control",
            False,
            (ask.fixed_split_size or 0) > 0 or ask.disable_split_kv,
            lambda n: f"disable_split_kv and fixed_split_size ({ask.fixed_split_size or 'none'}) are options of "
            f"fa2 only",
        ),
        (
            "no_frost_runtime",
            False,
            not (ask.frost_runtime_available or forced),
            lambda n: "the CuTe DSL is older than 4.7, so the frontend's decode tile cannot run",
        ),
        (
            "short_block_tables",
            False,
            ask.declared_kv_len is not None
            and ask.declared_kv_len < SHORT_CACHE_TOKENS
            and not ask.frontend_leads_short_caches,
            lambda n: (
                f"block tables of {ask.declared_kv_len} tokens are shorter than {SHORT_CACHE_TOKENS}, which a "
                "cudnn-frontend older than 1.31 serves with a slow engine"
            ),
        ),
        (
            "head_dim",
            False,
            ask.head_dim not in dims,
            lambda n: f"cuDNN is preferred at head dim {' and '.join(map(str, dims))}, not {ask.head_dim}",
        ),
        (
            "page_size",
            False,
            page % 8 != 0 or not (128 % page == 0 or page % 128 == 0),
            lambda n: f"the page size of {page} keys is not a multiple of 8 that divides 128 or is a multiple of 128",
        ),
        (
            "window",
            False,
            ask.window_left >= 0,
            lambda n: f"a sliding window of {ask.window_left + 1} keys stays on fa2",
        ),
        (
            "d256_shape",
            False,
            wide & ((ask.q_len_per_req != 1) | (group not in D256_GROUPS)),
            lambda n: (
                f"head dim 256 needs 1 query token and a group of 4, 8 or 16, not {at(ask.q_len_per_req, n)} and "
                f"{group}"
            ),
        ),
        (
            "d256_units",
            False,
            wide & ((units < least) | (units > D256_MOST_UNITS)),
            lambda n: f"{at(units, n)} requests x KV heads are outside {least} to {D256_MOST_UNITS} at head dim 256",
        ),
        (
            "d256",
            True,
            wide,
            lambda n: f"{at(units, n)} requests x KV heads lie within {least} to {D256_MOST_UNITS} at head dim 256",
        ),
        (
            "group",
            False,
            TILE_ROWS % group != 0,
            lambda n: f"a group of {group} query heads does not divide {TILE_ROWS}",
        ),
        (
            "q_len",
            False,
            (ask.q_len_per_req < 2) | (ask.q_len_per_req > 4),
            lambda n: f"cuDNN is preferred for 2 to 4 query tokens, not {at(ask.q_len_per_req, n)}",
        ),
        (
            "rows",
            False,
            (rows < LEAST_ROWS) | (rows > TILE_ROWS),
            lambda n: f"{at(rows, n)} query rows of a KV head are outside {LEAST_ROWS} to {TILE_ROWS}",
        ),
        (
            "units",
            False,
            units < LEAST_UNITS,
            lambda n: f"{at(units, n)} requests x KV heads are fewer than {LEAST_UNITS}",
        ),
        (
            "decode_tile",
            True,
            True,
            lambda n: (
                f"{at(rows, n)} query rows lie within {LEAST_ROWS} to {TILE_ROWS}, and {at(units, n)} requests x "
                f"KV heads are at least {LEAST_UNITS}"
            ),
        ),
    ]
    shape = np.broadcast_shapes(ask.batch_size.shape, ask.q_len_per_req.shape)
    holds = np.stack([np.broadcast_to(np.asarray(step[2], dtype=bool), shape) for step in steps])
    first = holds.argmax(axis=0)
    return Route(
        prefers_cudnn=np.array([step[1] for step in steps])[first],
        decided_by=first,
        conditions=tuple((step[0], step[3]) for step in steps),
    )


def backend_route(
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    gpu: Gpu,
    options: FlashInferOptions,
    rules: AutoRules | None,
    tensor_cores: bool,
) -> tuple[Any, Callable[[int], str]]:
    """(fa2 runs the step [N], why in words): the backend that `plan()` of the wrapper resolves to."""
    if options.backend != "auto":
        return True, lambda n: f"the backend is {options.backend}"
    if rules is None:
        return True, lambda n: "`auto` means fa2 in every version before 0.7.2"
    uniform = batches.smallest(batches.q_lens) == batches.max_q_len
    xqa = uniform & _xqa_route(geo, batches, kv, gpu, options, rules, tensor_cores)
    several = batches.max_q_len > 1
    own_tables = options.block_tables_tokens is not None
    frontend = _frontend(options, rules)
    graph = options.cuda_graph
    asked = auto_route(
        AutoRequest(
            compute_capability=gpu.compute_capability,
            frontend_serves_frost_decode=frontend is not None and frontend >= (1, 30),
            cudnn_available=frontend is not None,
            q_data_type=kv.query_dtype,
            kv_data_type=kv.dtype,
            o_data_type=kv.query_dtype,
            head_dim=geo.head_dim,
            num_qo_heads=geo.q_heads,
            num_kv_heads=geo.kv_heads,
            batch_size=batches.batch,
            page_size=kv.page_size,
            window_left=-1 if geo.window is None else geo.window - 1,
            logits_soft_cap=geo.softcap or 0.0,
            q_len_per_req=batches.max_q_len,
            fa2_available=~several | tensor_cores,
            declared_kv_len=options.block_tables_tokens,
            frontend_leads_short_caches=frontend is not None and frontend >= (1, 31),
            fixed_split_size=options.fixed_split_size_pages,
            disable_split_kv=options.disable_split_kv,
            replay_hint=graph and frontend is not None and frontend >= (1, 31),
            override=options.decode_auto_cudnn,
        ),
        rules,
    )
    # The wrapper's own tables cannot grow under a graph, so it asks only where fa2 has no kernel.
    kept = graph & ~(several & (not tensor_cores)) & (not own_tables)
    cudnn = uniform & ~kept & asked.prefers_cudnn

    def reason(n: int) -> str:
        if at(xqa, n):
            return (
                f"`auto` runs XQA for {at(batches.max_q_len, n)} query tokens at this measured shape, but this "
                f"plan is fa2's"
            )
        if at(cudnn, n):
            return f"`auto` runs cuDNN, but this plan is fa2's: {asked.reason(n)}"
        if at(kept, n):
            return "`auto` stays on fa2 under a CUDA graph, because the wrapper's own block tables cannot grow"
        return f"`auto` stays on fa2: {asked.reason(n)}"

    return ~(xqa | cudnn), reason


def _frontend(options: FlashInferOptions, rules: AutoRules) -> tuple[int, int] | None:
    """(major, minor) of the installed cudnn-frontend, None without one; by default what the wheel requires."""
    if options.cudnn_frontend is None:
        return rules.frontend
    if options.cudnn_frontend == "absent":
        return None
    major, minor = (*version_key(options.cudnn_frontend), 0)[:2]
    return major, minor


def _xqa_route(
    geo: Geometry,
    batches: Batches,
    kv: KvCache,
    gpu: Gpu,
    options: FlashInferOptions,
    rules: AutoRules,
    tensor_cores: bool,
) -> Any:
    """Whether the wrapper takes XQA [N]: H100 shapes with measurements, under a CUDA graph, in the NHD layout."""
    plain = options.fixed_split_size_pages is None and not options.disable_split_kv and not geo.softcap
    if not (rules.xqa_route and tensor_cores and options.cuda_graph and plain and gpu.compute_capability == (9, 0)):
        return False
    shape = (geo.head_dim, kv.page_size, geo.q_heads, geo.kv_heads)
    if geo.window is not None or (kv.query_dtype, kv.dtype) != ("fp16", "fp16") or shape != (128, 16, 32, 8):
        return False
    keys, tokens, batch = batches.max_seq_len, batches.max_q_len, batches.batch
    equal = batches.min_seq_len == keys
    known = np.isin(batch, (4, 16, 64)) & np.isin(tokens, (4, 8))
    return equal & known & (((tokens == 8) & (keys == 8192)) | ((batch == 16) & (keys == 1024)))


def _dotted(capability: tuple[int, int] | None) -> str:
    return "an unknown one" if capability is None else ".".join(map(str, capability))

"""flashinfer: the plan half of FlashInfer's paged batch decode, for both of its kernels.

The host chooses a chunk of pages (`plan`), and one grid axis then holds every (request, query tile, chunk) work item.
There are two planners. `cuda_cores` sizes the grid from an occupancy query and chooses whole pages. `tensor_cores` is
the prefill planner at few query rows: it packs the group into the query rows, limits the length to the sliding window
first, and assumes two blocks per SM for every kernel. vLLM always takes `tensor_cores`.

Read from flashinfer-ai/flashinfer: include/flashinfer/attention/scheduler.cuh (DecodePlan, PrefillSplitQOKVIndptr,
PrefillBinarySearchKVChunkSize), include/flashinfer/utils.cuh (FA2DetermineCtaTileQ, DISPATCH_GQA_GROUP_SIZE),
include/flashinfer/attention/{decode,prefill,cascade}.cuh (launchers), flashinfer/decode.py (the wrapper), and the
wheels of 0.6.18, 0.7.0, 0.7.1, 0.7.2.post1 and 0.7.4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from decodecalc.engines.flashinfer.options import FlashInferOptions
from decodecalc.engines.flashinfer.planners import cuda_core_launches, tensor_core_launches
from decodecalc.engines.flashinfer.releases import RELEASES
from decodecalc.engines.flashinfer.routing import AutoRules, backend_route
from decodecalc.engines.flashinfer.rules import FlashInferRules
from decodecalc.errors import GateError
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, Launches
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.launch.takes import FLOATS, SIXTEEN_BITS, UNKNOWN, Numbers, Takes, only
from decodecalc.launch.traits import SIZE, Partition, SplitSetting, Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

KV_DTYPES = ("bf16", "fp16", "fp8", "nvfp4")
TENSOR_CORE_GROUP = 4  # SGLang 0.5.23, flashinfer_backend.py, should_use_tensor_core
LEAST_CAPABILITY = (7, 5)  # flashinfer/jit/core.py, check_cuda_arch

_V074 = FlashInferRules(groups=(1, 2, 3, 4, 6, 8, 16), routing=AutoRules())
_V072 = _V074._replace(
    fixed_uniform_q_len=False,
    routing=AutoRules(single_token_d256=False, xqa_route=False, frontend=(1, 31)),
)
_V071 = _V072._replace(routing=None)
_V0618 = _V071._replace(groups=(1, 2, 3, 4, 6, 8), bounds_partials=False)
_V0617 = _V0618._replace(groups=(1, 2, 3, 4, 8), tile_probe=False, checks_lengths=False)
_V0615 = _V0617._replace(uniform_q_len=False)
_V0613 = _V0615._replace(wide_heads=False)
_V031 = _V0613._replace(window_clamp=False, fixed_split=False)


class FlashInfer(Policy):
    """Pages-per-chunk by binary search, so that all work items fit the grid.

    One grid axis holds the work items of all requests, so a split launch has `launched` = what that axis holds, padding
    included: it is not a count per request.
    """

    name = "flashinfer"
    title = "FlashInfer paged batch decode (plan/run)"
    releases = RELEASES
    word_for_split = "chunk"
    options_type = FlashInferOptions
    split_flag = "fixed_split_size / disable_split_kv"
    traits = Traits(
        server_names=("FLASHINFER", "flashinfer"),
        split_setting=SplitSetting("fixed_split_size={pages}", "fixed_split_size_pages"),
        invariant_option=("disable_split_kv", True),
        graph_option=("cuda_graph", True),
        requests_in_turn=True,
        partition=Partition(rule=SIZE),
        returns_lse=True,
    )
    versions = (
        PolicyVersion(
            "0.7.4",
            "flashinfer-python 0.7.4: attention/scheduler.cuh, utils.cuh, decode.py",
            ("0.7.4", "0.7.4"),
            _V074,
            "a CUDA graph counts the query tiles of one token exactly and is planned unsplit beyond the split budget",
        ),
        PolicyVersion(
            "0.7.2.post1",
            "flashinfer-python 0.7.2, 0.7.2.post1: the same files",
            ("0.7.2", "0.7.2.post1"),
            _V072,
            "`auto` may run cuDNN on SM100 and SM103",
        ),
        PolicyVersion(
            "0.7.1",
            "flashinfer-python 0.7.1: the same files",
            ("0.7.1", "0.7.1"),
            _V071,
            "groups of 16 on CUDA cores; partial states are reserved for query rows, not for packed rows",
        ),
        PolicyVersion(
            "0.6.18",
            "flashinfer-ai/flashinfer@fb28d72 (v0.6.18rc7): attention/scheduler.cuh, utils.cuh; flashinfer-python "
            "0.6.18, 0.6.18.post1, 0.7.0, 0.7.0.post1",
            ("0.6.18", "0.7.0.post1"),
            _V0618,
            "groups of 6 on CUDA cores; the query tile falls back to 64 rows where 16 would not fit shared memory",
        ),
        PolicyVersion(
            "0.6.17",
            "flashinfer-ai/flashinfer v0.6.16, v0.6.17: the same files",
            ("0.6.16", "0.6.17"),
            _V0617,
            "a uniform query length sizes the padded grid of a CUDA graph",
        ),
        PolicyVersion(
            "0.6.15",
            "flashinfer-ai/flashinfer v0.6.14, v0.6.15: the same files",
            ("0.6.14", "0.6.15.post1"),
            _V0615,
            "head dims of 512 and more",
        ),
        PolicyVersion(
            "0.6.13",
            "flashinfer-ai/flashinfer v0.4.0, v0.5.3, v0.6.9: the same files",
            ("0.4.0", "0.6.13"),
            _V0613,
            "fixed split size (pull request 1675); lengths clamped to the window (pull request 1661)",
        ),
        PolicyVersion(
            "0.3.1",
            "flashinfer-ai/flashinfer v0.2.5, v0.3.1: the same files",
            ("0.2.1", "0.3.1"),
            _V031,
            "chunks cover the whole length even with a sliding window",
        ),
    )
    rule = (
        "the smallest chunk of at least max(128 / page, 1) pages for which all work items fit the grid. CUDA cores: "
        "sum(ceil(pages / chunk)) * kv_heads <= blocks_per_sm * SMs, and no split at all once B * kv_heads fills the "
        "grid. Tensor cores: sum(query tiles * ceil(pages / chunk)) <= 2 * SMs // kv_heads, pages counting no more "
        "than window + query tile; query tiles are ceil(q * group / 16, 64 or 128). Under a CUDA graph the split "
        "kernel runs always, on a grid padded to what could fit; from 0.7.4 on not when the query tiles alone exceed "
        "that"
    )

    def combinations(self, options: FlashInferOptions, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes."""
        rules: FlashInferRules = version.rules
        layer = Takes(
            devices=("sm75+", UNKNOWN),
            mla=False,
            cache_dtypes=KV_DTYPES,
            head_dims=Numbers(step=16),
            value_dims=Numbers(step=16),
        )
        tensor_cores = replace(layer, query_dtypes=SIXTEEN_BITS)
        cuda_cores = replace(layer, query_dtypes=FLOATS, groups=only(*rules.groups))
        return {"tensor_cores": (tensor_cores,), "cuda_cores": (cuda_cores,)}.get(
            options.path, (tensor_cores, cuda_cores)
        )

    def launches(
        self,
        geo: Geometry,
        batches: Batches,
        kv: KvCache,
        gpu: Gpu,
        options: FlashInferOptions,
        version: PolicyVersion,
    ) -> Launches:
        """The rule on arrays.

        Raises GateError for MLA (which another kernel runs), AMD, a compute capability below 7.5, a head dim or element
        type that no kernel is compiled for, a group that CUDA cores are not compiled for, and what the wrapper refuses.
        """
        rules: FlashInferRules = version.rules
        if geo.mla:
            raise GateError("flashinfer: MLA runs in another kernel of FlashInfer that has no policy here", "mla")
        if gpu.is_hip:
            raise GateError(f"flashinfer is an NVIDIA kernel, and {gpu.label} is an AMD device", "not_nvidia")
        if gpu.compute_capability is not None and gpu.compute_capability < LEAST_CAPABILITY:
            raise GateError(
                f"flashinfer needs compute capability 7.5 or newer, not {'.'.join(map(str, gpu.compute_capability))}",
                "compute_capability",
            )
        if geo.head_dim % 16 or geo.v_dim % 16:
            raise GateError(
                f"flashinfer: head dims must be multiples of 16, not {geo.head_dim}/{geo.v_dim}", "head_dim"
            )
        if kv.dtype not in KV_DTYPES:
            raise GateError(f"flashinfer takes keys of {', '.join(KV_DTYPES)}, not {kv.dtype}", "kv_dtype")
        path = options.path
        if path == "auto":
            path = "tensor_cores" if kv.dtype == "fp8" or geo.group >= TENSOR_CORE_GROUP else "cuda_cores"
        if path == "cuda_cores":
            found = cuda_core_launches(geo, batches, kv, gpu, options, rules)
        else:
            if kv.query_dtype not in ("bf16", "fp16"):
                raise GateError(
                    f"flashinfer: tensor cores take bf16 or fp16 queries, not {kv.query_dtype} (2 bytes, prefill.cuh)",
                    "query_dtype",
                )
            found = tensor_core_launches(geo, batches, kv, gpu, options, rules)
        is_fa2, reason = backend_route(geo, batches, kv, gpu, options, rules.routing, path == "tensor_cores")
        gate = GateArray(name="backend_is_fa2", passed=is_fa2, reason=reason)
        return replace(found, gates=(*found.gates, gate))


POLICY = FlashInfer()

"""What callers of FlashInfer's two batch wrappers decide, as options of the policies."""

from __future__ import annotations

from dataclasses import dataclass

from decodecalc.launch.options import EngineOptions, option


@dataclass(frozen=True, slots=True)
class FlashInferOptions(EngineOptions):
    """What the caller of `BatchDecodeWithPagedKVCacheWrapper` decides."""

    path: str = option(
        "tensor_cores",
        "str",
        "planner and kernel: tensor_cores (vLLM, always), cuda_cores (the wrapper's own default), or auto (SGLang's "
        "choice: tensor cores for FP8 keys or a group of 4 and more)",
        flag="use_tensor_cores",
        choices=("tensor_cores", "cuda_cores", "auto"),
    )
    cuda_graph: bool = option(False, "bool", "plan for capture in a CUDA graph", flag="use_cuda_graph")
    fixed_split_size_pages: int | None = option(
        None, "int?", "pages of every chunk; tensor cores only (SGLang deterministic: 2048)", "fixed_split_size", low=1
    )
    disable_split_kv: bool = option(
        False, "bool", "never split; tensor cores only (vLLM batch-invariant mode)", "disable_split_kv"
    )
    blocks_per_sm: int | None = option(
        None,
        "int?",
        "what the occupancy query answers, CUDA cores only; computed from threads, shared memory and registers when "
        "not given",
        low=1,
    )
    backend: str = option(
        "auto",
        "str",
        "backend of the wrapper: fa2, or auto, which from 0.7.2 on may run another kernel on SM100, SM103 and SM90; "
        "the plan is fa2's, and the gate backend_is_fa2 says whether fa2 runs",
        flag="backend",
        choices=("auto", "fa2"),
    )
    cudnn_frontend: str | None = option(
        None,
        "str?",
        "cudnn-frontend that is installed, such as 1.30, or absent; what the wheel requires when not given",
    )
    block_tables_tokens: int | None = option(
        None,
        "int?",
        "tokens that block tables of the caller's own have room for; the wrapper builds the tables when not given",
        flag="block_tables",
        low=1,
    )
    decode_auto_cudnn: str = option(
        "unset",
        "str",
        "0 keeps auto on fa2, 1 applies the rule to an older cudnn-frontend too",
        flag="FLASHINFER_DECODE_AUTO_CUDNN",
        choices=("unset", "0", "1"),
    )


@dataclass(frozen=True, slots=True)
class FlashInferMlaOptions(EngineOptions):
    """What the caller of `BatchMLAPagedAttentionWrapper` decides."""

    backend: str = option(
        "auto",
        "str",
        "fa2, fa3, or auto: fa3 on SM90, else fa2; from 0.7.1 on auto may run other kernels on SM100, and the gate "
        "backend_is_planned says so",
        flag="backend",
        choices=("auto", "fa2", "fa3"),
    )
    causal: bool = option(
        True, "bool", "several query tokens see only the keys before them; one token sees all either way", flag="causal"
    )
    cuda_graph: bool = option(
        False, "bool", "the wrapper is made for CUDA graphs: the plan is the same, auto may choose otherwise",
        flag="use_cuda_graph",
    )  # fmt: skip
